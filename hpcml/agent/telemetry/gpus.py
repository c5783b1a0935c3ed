"""The GPUs of a run: which of those that NVML shows belong to it, and their facts.

GPUs are identified by UUID, never by NVML's index, which need not be CUDA's. `find_gpus` reads the job's environment
(CUDA_VISIBLE_DEVICES and Slurm's variables); `gpu_facts` gives the flat facts that are recorded with the run. Pure:
NVML is read in hpcml/agent/nvml.
"""

from __future__ import annotations

import re
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
    """A GPU, or a MIG instance of one. A field is None where NVML does not give it; `refused` then has the reason."""

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
    nvlinks: int | None = None  # that are up; of the board, for an instance
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
        """The number of streaming multiprocessors: NVML's, or the number of cores divided by the cores of each."""
        if self.multiprocessors is not None or self.cores is None:
            return self.multiprocessors
        per_sm = _CORES_PER_SM.get(self.compute_capability)
        return self.cores // per_sm if per_sm else None


def gpu_facts(gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Return the facts of a run's GPUs as a flat dict; unknown ones are left out.

    Words that differ between GPUs are joined ("A100, V100"); of numbers the least is given. Units are in the names.
    """
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
        "gpu_nvlinks": _least(gpu.nvlinks for gpu in gpus),
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


SHARED = "shared/unknown"
_ORDER = "CUDA_DEVICE_ORDER"
_CUDA_LIKE = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")  # the second is what Slurm sets beside the first
_PHYSICAL = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # ids of the node, whatever the job sees (man srun)
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "HPCML_JOB_ID")
_LEGACY_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]+)/(\d+)/(\d+)", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpus:
    """The GPUs of a run, and how they were found.

    `source` is the variable that named them, or what was concluded; `SHARED` means that they cannot be told from the
    GPUs of others, and `reason` says why.
    """

    gpus: Sequence[Gpu]
    source: str
    reason: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether these are the run's GPUs, and not just all that are visible."""
        return self.source != SHARED


def visible_gpus(gpus: Sequence[Gpu], cuda_visible_devices: str | None, order: str | None = None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects: indices in PCI order, UUIDs or their beginnings; None: all.

    As in CUDA, the first entry that names no GPU ends the list (CUDA C++ Programming Guide, environment variables).
    """
    if cuda_visible_devices is None:
        return list(gpus)
    return _read_as_cuda(gpus, cuda_visible_devices, order)[0]


def find_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str], *, expected: int | None = None) -> FoundGpus:
    """Return which of *gpus* belong to the run, by the variables of *environ*.

    *expected* is how many GPUs the job requested on this node, None where not known. Where a cgroup limits what the job
    sees, nothing special is needed: NVML and CUDA then show the same devices, and both number them from 0.
    """
    doubts = []
    for name in _CUDA_LIKE:
        if (text := environ.get(name)) is not None:
            found, doubt = _read_as_cuda(gpus, text, environ.get(_ORDER))
            if doubt is None:
                return FoundGpus(gpus=found, source=name)
            doubts.append(f"{name}={text}: {doubt}")
    for name in _PHYSICAL:
        if text := environ.get(name):
            found, doubt = _read_as_physical(gpus, text)
            if doubt is None:
                return FoundGpus(gpus=found, source=name)
            doubts.append(f"{name}={text}: {doubt}")
    if not gpus:
        return FoundGpus(gpus=(), source="none shown", reason="; ".join(doubts) or None)
    everything = [part for gpu in gpus for part in gpu.instances or (gpu,)]
    if expected and len(everything) == expected:
        return FoundGpus(gpus=everything, source="all shown", reason="; ".join(doubts) or None)
    if not doubts and not any(environ.get(name) for name in _JOBS):
        return FoundGpus(gpus=everything, source="no job: all shown")
    doubts.append(f"{len(everything)} GPUs are shown, and the job asked for {expected or 'an unknown number'}")
    return FoundGpus(gpus=everything, source=SHARED, reason="; ".join(doubts))


def _read_as_cuda(gpus: Sequence[Gpu], text: str, order: str | None) -> tuple[list[Gpu], str | None]:
    """Return the GPUs that CUDA would take for the list *text*, and what is doubtful about it (None: nothing).

    Numbers count in PCI order, as with CUDA_DEVICE_ORDER=PCI_BUS_ID. With CUDA's own default, FASTEST_FIRST, different
    models may be numbered otherwise, which is such a doubt.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.pci) if all(gpu.pci for gpu in gpus) else list(gpus)  # type: ignore[arg-type, return-value]
    chosen: list[Gpu] = []
    doubt = None
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdecimal():
            found = ordered[int(entry) : int(entry) + 1]
            if found and found[0].instances:
                doubt = _doubt_of_instances(found[0])
                found = list(found[0].instances[:1])
        else:
            found = _named(gpus, entry)
        if len(found) != 1:
            if entry.isdecimal() and not chosen:
                doubt = f"{len(gpus)} GPUs are shown, none of which is number {entry}"
            break
        if found[0] not in chosen:
            chosen += found
    by_number = any(part.strip().isdecimal() for part in text.split(","))
    if by_number and order != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1 and 0 < len(chosen) < len(gpus):
        doubt = f"CUDA numbers different models by speed unless {_ORDER}=PCI_BUS_ID"  # its default, FASTEST_FIRST
    return chosen, doubt


def _doubt_of_instances(gpu: Gpu) -> str | None:
    return None if len(gpu.instances) == 1 else f"a number, and {gpu.uuid} is divided into {len(gpu.instances)} by MIG"


def _named(gpus: Sequence[Gpu], entry: str) -> list[Gpu]:
    """Return the GPUs or MIG instances whose UUID is, or begins with, *entry*; also in the form MIG-GPU-uuid/gi/ci."""
    if match := _LEGACY_MIG.fullmatch(entry):
        board, place = match[1].lower(), (int(match[2]), int(match[3]))
        return [
            part
            for gpu in gpus
            if gpu.uuid.lower().startswith(board)
            for part in gpu.instances
            if part.instance == place
        ]
    if entry.startswith("GPU-"):
        return [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    if entry.startswith("MIG-"):
        return [part for gpu in gpus for part in gpu.instances if part.uuid.startswith(entry)]
    return []


def _read_as_physical(gpus: Sequence[Gpu], text: str) -> tuple[list[Gpu], str | None]:
    """Return the GPUs behind ids that Slurm numbers by device file: by their minor numbers, not by NVML's indices."""
    ids: list[int] = []
    for part in (word.strip() for word in text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            return [], f"{part!r} is no id"
        ids += range(int(match[1]), int(match[2] or match[1]) + 1)
    if any(gpu.mig_mode for gpu in gpus):
        return [], "ids do not tell MIG instances apart"
    if len(gpus) == len(ids):
        return list(gpus), None  # the job sees its own alone, or has the whole node
    by_minor = {gpu.minor: gpu for gpu in gpus}
    if missing := [number for number in ids if number not in by_minor]:
        return [], f"no GPU shown is /dev/nvidia{missing[0]}"
    return [by_minor[number] for number in ids], None
