"""The GPUs of this machine as NVML names them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device; `compute_capability` as (major, minor)."""

    uuid: str
    name: str
    compute_capability: tuple[int, int]
    memory_mb: int
    driver: str


def list_gpus() -> list[Gpu]:
    """Return all GPUs NVML shows, in its order; none where there is no driver or no library."""
    with _nvml() as available:
        if not available:
            return []
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [_describe(handle, driver) for handle in handles]


def visible_gpus(gpus: Sequence[Gpu], cuda_visible_devices: str | None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves: indices in PCI order, UUIDs or their beginnings.

    As in CUDA, the first entry that names no GPU ends the list (CUDA C++ Programming Guide, environment variables).
    """
    if cuda_visible_devices is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in cuda_visible_devices.split(",")):
        if entry.isdecimal():
            found = list(gpus[int(entry) : int(entry) + 1])
        else:
            found = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(found) != 1:
            break
        chosen += found
    return chosen


def _describe(handle: object, driver: str) -> Gpu:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        compute_capability=(int(major), int(minor)),
        memory_mb=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20,
        driver=driver,
    )


@contextmanager
def _nvml() -> Iterator[bool]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no library, no driver, no permission: a machine without GPUs, as far as we may know
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()
