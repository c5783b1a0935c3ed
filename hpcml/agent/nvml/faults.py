"""The Xid errors that NVML tells of as they happen (NVIDIA, "Xid Errors": 79 is a GPU that has fallen off the bus)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import pynvml

_MOST = 64  # taken at once: a GPU that fails may tell of thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One error of one GPU."""

    gpu: str
    code: int


class XidWatch:
    """Watches some boards, each of which has a name; may raise NVML's errors in every call."""

    def __init__(self, boards: Mapping[str, object]) -> None:
        self._names = {_address(board): name for name, board in boards.items()}
        self._set = pynvml.nvmlEventSetCreate()
        for board in boards.values():
            pynvml.nvmlDeviceRegisterEvents(board, pynvml.nvmlEventTypeXidCriticalError, self._set)

    def take(self) -> list[Xid]:
        """Return what has happened since the last call, without waiting."""
        found: list[Xid] = []
        while len(found) < _MOST:
            try:
                event = pynvml.nvmlEventSetWait(self._set, 0)
            except pynvml.NVMLError_Timeout:
                break
            found.append(Xid(gpu=self._names.get(_address(event.device), "?"), code=int(event.eventData)))
        return found


def _address(handle: object) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]
