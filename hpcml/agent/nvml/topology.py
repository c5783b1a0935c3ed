"""How the GPUs of a run are connected with each other, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pynvml

from hpcml.agent.gpu import Gpu
from hpcml.agent.nvml.session import attempt

# nvmlGpuTopologyLevel_t
_PATHS: Mapping[int, str] = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Board:
    uuid: str
    pci: str | None
    handle: object
    links: Sequence[str]  # of each NVLink that is up, the PCI address at its other end; "" where that is not said


def topology_facts(gpus: Sequence[Gpu], refused: dict[str, str]) -> dict[str, Any]:
    """Return how many NVLinks are up, at the least, and what lies between the GPUs; *refused* gets what NVML refuses.

    Where all pairs are connected alike it is one word, else a word for each pair: ``0-1 NV4, 0-2 SYS``.
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
    direct = Counter(one.links)[other.pci] if other.pci else 0
    if direct:
        return f"NV{direct}"
    if one.links and other.links:  # through switches, which all links lead to
        status = pynvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == pynvml.NVML_P2P_STATUS_OK:
            return f"NV{min(len(one.links), len(other.links))}"
    level = int(pynvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle))
    return _PATHS.get(level, f"level {level}")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
