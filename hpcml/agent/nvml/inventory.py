"""The GPUs that NVML shows, with their MIG instances, unchanging properties, and connections to each other.

Connections are named as in ``nvidia-smi topo -m`` (NV4, PIX, SYS ...).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pynvml

from hpcml.agent.nvml.session import attempt, started
from hpcml.agent.telemetry.gpus import Gpu

_MIB = 2**20
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}  # nvmlComputeMode_t


def list_gpus(environ: Mapping[str, str]) -> list[Gpu]:
    """Return all GPUs that NVML shows, in its order, with their MIG instances.

    The list is empty without a driver or library. *environ* may name the library (HPCML_NVML_LIBRARY). NVML is started
    and shut down again, so that no handle of it stays valid.
    """
    with started(environ) as obstacle:
        return [] if obstacle else shown_gpus()[0]


def shown_gpus() -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that NVML shows, and the reasons why others could not be described.

    NVML must be started (`session.started`). Raises `pynvml.NVMLError` where not even the number of GPUs can be asked
    for.
    """
    driver = str(pynvml.nvmlSystemGetDriverVersion())
    refused: dict[str, str] = {}
    version = attempt(pynvml.nvmlSystemGetCudaDriverVersion_v2, "cuda_driver", refused)
    cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = attempt(lambda index=index: _at(index, driver, cuda), f"GPU {index}", refused)  # type: ignore[misc]
        if gpu is not None:
            found.append(gpu)
    return found, [f"{name}: {why}" for name, why in refused.items()]


def _at(index: int, driver: str, cuda: str | None) -> Gpu:
    """Return the GPU that NVML has at *index*; a property that it refuses is None, with the reason in `refused`."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    refused: dict[str, str] = {}

    def ask(name: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - whatever NVML answers
        return attempt(lambda: function(handle, *arguments), name, refused)

    mig = ask("mig_mode", pynvml.nvmlDeviceGetMigMode)
    ecc = ask("ecc", pynvml.nvmlDeviceGetCurrentEccMode)
    pci = ask("pci", pynvml.nvmlDeviceGetPciInfo)
    processes = ask("processes", pynvml.nvmlDeviceGetComputeRunningProcesses)
    gpu = Gpu(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        compute_capability=(int(major), int(minor)),
        memory_mb=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB,
        driver=driver,
        cuda_driver=cuda,
        pci=None if pci is None else _text(pci.busId),
        minor=ask("minor", pynvml.nvmlDeviceGetMinorNumber),
        cores=ask("cores", pynvml.nvmlDeviceGetNumGpuCores),
        power_limit_w=_watts(ask("power_limit", pynvml.nvmlDeviceGetEnforcedPowerLimit)),
        power_limit_default_w=_watts(ask("power_limit_default", pynvml.nvmlDeviceGetPowerManagementDefaultLimit)),
        max_sm_mhz=ask("max_sm_mhz", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        max_mem_mhz=ask("max_mem_mhz", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
        applications_sm_mhz=ask(
            "applications_sm_mhz", pynvml.nvmlDeviceGetApplicationsClock, pynvml.NVML_CLOCK_GRAPHICS
        ),
        applications_mem_mhz=ask("applications_mem_mhz", pynvml.nvmlDeviceGetApplicationsClock, pynvml.NVML_CLOCK_MEM),
        pcie=_link(
            ask("pcie_generation", pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
            ask("pcie_width", pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        ),
        compute_mode=_COMPUTE_MODES.get(ask("compute_mode", pynvml.nvmlDeviceGetComputeMode)),
        persistence=_switch(ask("persistence", pynvml.nvmlDeviceGetPersistenceMode)),
        ecc=_switch(ecc),
        mig_mode=_switch(mig[0] if mig else None),
        processes=None if processes is None else len(processes),
        refused=refused,
    )
    return replace(gpu, instances=_instances(handle, gpu)) if gpu.mig_mode else gpu


def _instances(board: object, gpu: Gpu) -> list[Gpu]:
    """Return the MIG instances of *board*: properties of the board, but their own UUID, memory and multiprocessors."""
    found = []
    for index in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(board))):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)
        except pynvml.NVMLError_NotFound:  # this place is not taken
            continue
        refused = dict.fromkeys(("cores", "minor"), "not of a MIG instance")
        attributes = attempt(lambda of=handle: pynvml.nvmlDeviceGetAttributes(of), "sm_count", refused)  # type: ignore[misc]
        found.append(
            replace(
                gpu,
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                name=f"{gpu.name} MIG",
                memory_mb=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB,
                cores=None,
                minor=None,
                multiprocessors=None if attributes is None else int(attributes.multiprocessorCount),
                board=gpu.uuid,
                instance=(
                    int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
                    int(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
                ),
                instances=(),
                refused={**gpu.refused, **refused},
            )
        )
    return found


def _link(generation: int | None, width: int | None) -> str | None:
    return None if generation is None or width is None else f"gen{generation} x{width}"


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _switch(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# nvmlGpuTopologyLevel_t
_PATHS: Mapping[int, str] = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Board:
    """A GPU as an end of connections; MIG instances are connected as their board is."""

    uuid: str
    pci: str | None
    handle: object
    links: Sequence[str]  # of each NVLink that is up, the PCI address at its other end; "" where that is not said


def topology_facts(gpus: Sequence[Gpu], refused: dict[str, str]) -> dict[str, Any]:
    """Return the facts "gpu_nvlinks" (the least number of active NVLinks of a board) and "gpu_topology".

    The topology is one word where all pairs are connected alike, else a word per pair: ``0-1 NV4, 0-2 SYS``. What NVML
    refuses is put into *refused*.
    """
    boards: dict[str, _Board] = {}
    for gpu in gpus:
        if (gpu.board or gpu.uuid) not in boards:
            board = attempt(lambda gpu=gpu: _board(gpu, refused), "topology", refused)  # type: ignore[misc]
            if board is None:
                return {}
            boards[board.uuid] = board
    if not boards:
        return {}
    facts: dict[str, Any] = {"gpu_nvlinks": min(len(board.links) for board in boards.values())}
    pairs = {}
    for (number, one), (other_number, other) in combinations(enumerate(boards.values()), 2):
        path = attempt(lambda one=one, other=other: _path(one, other), "topology", refused)  # type: ignore[misc]
        if path is None:
            return facts
        pairs[f"{number}-{other_number}"] = path
    if len(set(pairs.values())) == 1:
        facts["gpu_topology"] = next(iter(pairs.values()))
    elif pairs:
        facts["gpu_topology"] = ", ".join(f"{at} {path}" for at, path in pairs.items())
    return facts


def _board(gpu: Gpu, refused: dict[str, str]) -> _Board:
    uuid = gpu.board or gpu.uuid
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    links = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            break  # it has none, or no more
        remote = attempt(
            lambda link=link: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link),  # type: ignore[misc]
            "nvlink",
            refused,
        )
        links.append("" if remote is None else _text(remote.busId))
    return _Board(uuid=uuid, pci=gpu.pci, handle=handle, links=links)


def _path(one: _Board, other: _Board) -> str:
    """Return how two boards are connected, in the words of ``nvidia-smi topo -m``.

    NV and a number are NVLinks between the two; else it is the nearest common ancestor on PCIe: PIX (one switch), PXB
    (several), PHB (the host bridge), NODE (the NUMA node), SYS (between NUMA nodes).
    """
    direct = Counter(one.links)[other.pci] if other.pci else 0
    if direct:
        return f"NV{direct}"
    if one.links and other.links:  # through switches, which all links lead to
        status = pynvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == pynvml.NVML_P2P_STATUS_OK:
            return f"NV{min(len(one.links), len(other.links))}"
    level = int(pynvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle))
    return _PATHS.get(level, f"level {level}")
