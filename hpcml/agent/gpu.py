"""What is known of a GPU, and how that is said as flat facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# CUDA cores of each multiprocessor by compute capability (NVIDIA's cuda-samples, Common/helper_cuda.h)
_CORES_PER_SM: Mapping[tuple[int, int], int] = {
    **dict.fromkeys(((3, 0), (3, 2), (3, 5), (3, 7)), 192),
    **dict.fromkeys(((5, 0), (5, 2), (5, 3), (6, 1), (6, 2)), 128),
    **dict.fromkeys(((6, 0), (7, 0), (7, 2), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 1), (10, 3), (12, 0), (12, 1)), 128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, or a MIG instance of one. None: NVML does not say, and `refused` says why."""

    uuid: str
    name: str
    compute_capability: tuple[int, int]  # major, minor
    memory_mb: int
    driver: str
    pci: str | None = None
    minor: int | None = None  # of /dev/nvidia<minor>; not NVML's index, which is no identity
    cuda_driver: str | None = None  # the newest CUDA that the driver serves
    cores: int | None = None
    multiprocessors: int | None = None  # said by NVML for MIG instances alone
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    max_sm_mhz: int | None = None
    max_mem_mhz: int | None = None
    applications_sm_mhz: int | None = None  # what programs get if power and heat allow; below the highest on some sites
    applications_mem_mhz: int | None = None
    pcie: str | None = None  # the fastest link that GPU and machine make together; idle ones are slower
    compute_mode: str | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    mig_mode: bool | None = None
    processes: int | None = None  # that compute on it now
    board: str | None = None  # of an instance: the UUID of the GPU that it is a part of
    instance: tuple[int, int] | None = None  # GPU instance and compute instance
    instances: Sequence[Gpu] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def sm_count(self) -> int | None:
        """The streaming multiprocessors: NVML's number, or its cores divided by those of each multiprocessor."""
        if self.multiprocessors is not None or self.cores is None:
            return self.multiprocessors
        per_sm = _CORES_PER_SM.get(self.compute_capability)
        return self.cores // per_sm if per_sm else None


def gpu_facts(gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Return flat facts of the GPUs of a run; what differs among them is joined, what is unknown left out."""
    if not gpus:
        return {}
    facts: dict[str, Any] = {
        "n_gpus": len(gpus),
        "gpu_model": _joined(gpu.name for gpu in gpus),
        "gpu_uuids": ",".join(gpu.uuid for gpu in gpus),
        "gpu_pci": ",".join(gpu.pci or "?" for gpu in gpus) if any(gpu.pci for gpu in gpus) else None,
        "gpu_driver": gpus[0].driver,
        "cuda_driver": gpus[0].cuda_driver,
        "gpu_memory_mb": min(gpu.memory_mb for gpu in gpus),
        "gpu_compute_capability": _joined(f"{major}.{minor}" for major, minor in {g.compute_capability for g in gpus}),
        "gpu_power_limit_w": _least(gpu.power_limit_w for gpu in gpus),
        "gpu_power_limit_default_w": _least(gpu.power_limit_default_w for gpu in gpus),
        "gpu_max_sm_mhz": _least(gpu.max_sm_mhz for gpu in gpus),
        "gpu_max_mem_mhz": _least(gpu.max_mem_mhz for gpu in gpus),
        "gpu_applications_sm_mhz": _least(gpu.applications_sm_mhz for gpu in gpus),
        "gpu_applications_mem_mhz": _least(gpu.applications_mem_mhz for gpu in gpus),
        "gpu_pcie": _joined(gpu.pcie for gpu in gpus),
        "gpu_sm_count": _least(gpu.sm_count for gpu in gpus),
        "gpu_compute_mode": _joined(gpu.compute_mode for gpu in gpus),
        "gpu_persistence": _joined(_on(gpu.persistence) for gpu in gpus),
        "gpu_ecc": _joined(_on(gpu.ecc) for gpu in gpus),
        "gpu_mig": _joined(_on(gpu.mig_mode) for gpu in gpus),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _joined(words: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({word for word in words if word is not None})) or None


def _least(numbers: Iterable[float | None]) -> float | None:
    return min((number for number in numbers if number is not None), default=None)


def _on(switch: bool | None) -> str | None:  # noqa: FBT001 - NVML's own switch
    return None if switch is None else "on" if switch else "off"
