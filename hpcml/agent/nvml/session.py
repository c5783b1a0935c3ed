"""NVML found, loaded and started; or the reason why it cannot be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import pynvml

LIBRARY = "HPCML_NVML_LIBRARY"  # the file to load instead of the loader's libnvidia-ml.so.1
Value = TypeVar("Value")


@contextmanager
def started(environ: Mapping[str, str]) -> Iterator[str | None]:
    """Have NVML ready within the block and yield None; else yield why there is none."""
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
    """Return what *ask* answers; None with the reason in *refused* under *name* where NVML refuses."""
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
