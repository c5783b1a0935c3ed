"""The most memory that the steps of a torch training took on their device."""

from __future__ import annotations

import contextlib
from typing import Dict, Iterator, Optional, Union

import torch

_MIB = 1 << 20


class PeakMemory:
    """What torch's allocator held at most since this was made; unknown on a CPU, where torch does not count."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._allocated = self._reserved = 0
        self._reset()

    @contextlib.contextmanager
    def passed_over(self) -> Iterator[None]:
        """Leave out what the block takes: an evaluation in FP32 would hide what a precision saves."""
        self._note()
        yield
        self._reset()

    def details(self) -> Dict[str, Union[str, Optional[float]]]:
        """Return the details of the event ``memory``; MiB."""
        self._note()
        known = self._device.type == "cuda"
        return {
            "device": str(self._device),
            "peak_allocated_mb": self._allocated / _MIB if known else None,
            "peak_reserved_mb": self._reserved / _MIB if known else None,
        }

    def _note(self) -> None:
        if self._device.type == "cuda":
            self._allocated = max(self._allocated, torch.cuda.max_memory_allocated(self._device))
            self._reserved = max(self._reserved, torch.cuda.max_memory_reserved(self._device))

    def _reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
