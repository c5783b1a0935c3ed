"""The GPUs that NVML shows, with their MIG instances and unchanging properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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
        nvlinks=ask("nvlinks", _active_links),
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


def _active_links(handle: object) -> int:
    """Return how many NVLinks of a GPU are up."""
    count = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            count += bool(pynvml.nvmlDeviceGetNvLinkState(handle, link))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            break  # it has none, or no more
    return count
