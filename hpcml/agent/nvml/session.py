"""NVML loaded and started (`started`), its errors as reasons (`attempt`), and its Xid events (`XidWatch`).

Xid errors are the driver's reports of GPU failures (NVIDIA, "Xid Errors": 79 is a GPU that has fallen off the bus).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pynvml

LIBRARY = "HPCML_NVML_LIBRARY"  # the file to load instead of the loader's libnvidia-ml.so.1
Value = TypeVar("Value")


@contextmanager
def started(environ: Mapping[str, str]) -> Iterator[str | None]:
    """Start NVML for the block and yield None; where that fails, yield the reason instead of raising an error."""
    path = environ.get(LIBRARY)
    try:
        if path:
            _load(ctypes.CDLL(path))
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:  # no library, no driver, another driver's library, no permission
        _unload(path)
        yield f"NVML: {error}"
        return
    except OSError as error:
        yield f"{LIBRARY}: {error}"
        return
    try:
        yield None
    finally:
        try:
            pynvml.nvmlShutdown()
        finally:
            _unload(path)


def attempt(ask: Callable[[], Value], name: str, refused: dict[str, str]) -> Value | None:
    """Return the result of *ask*; where NVML refuses, return None and put the reason into *refused* under *name*.

    Errors other than `pynvml.NVMLError` are not caught.
    """
    try:
        return ask()
    except pynvml.NVMLError as error:
        refused[name] = str(error)
        return None


def _load(library: ctypes.CDLL | None) -> None:
    """Have pynvml use *library*: it has no option for it, only a global, and it remembers functions."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001


def _unload(path: str | None) -> None:
    if path:
        _load(None)


_MOST = 64  # taken at once: a GPU that fails may tell of thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One Xid error of one GPU: the name that its board was given, and NVIDIA's number of the error."""

    gpu: str
    code: int


class XidWatch:
    """Collects the Xid events of some boards, by the name of each; every call may raise `pynvml.NVMLError`."""

    def __init__(self, boards: Mapping[str, object]) -> None:
        self._names = {_address(board): name for name, board in boards.items()}
        self._set = pynvml.nvmlEventSetCreate()
        for board in boards.values():
            pynvml.nvmlDeviceRegisterEvents(board, pynvml.nvmlEventTypeXidCriticalError, self._set)

    def take(self) -> list[Xid]:
        """Return the errors since the last call, without waiting; at most 64 at once."""
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
