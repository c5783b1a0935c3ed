"""Whose GPU is it: the GPUs of a run among those that NVML shows, found by UUID and never by NVML's index. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.agent.gpu import Gpu

SHARED = "shared/unknown"
_ORDER = "CUDA_DEVICE_ORDER"
_CUDA_LIKE = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")  # the second is what Slurm sets beside the first
_PHYSICAL = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # ids of the node, whatever the job sees (man srun)
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID")
_LEGACY_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]+)/(\d+)/(\d+)", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The GPUs of a run. `source` is the variable that named them, what was concluded, or `SHARED` with a `reason`."""

    gpus: Sequence[Gpu]
    source: str
    reason: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether these GPUs are the run's, and not merely all that can be seen."""
        return self.source != SHARED


def visible_gpus(gpus: Sequence[Gpu], cuda_visible_devices: str | None, order: str | None = None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves: indices in PCI order, UUIDs or their beginnings.

    As in CUDA, the first entry that names no GPU ends the list (CUDA C++ Programming Guide, environment variables).
    """
    if cuda_visible_devices is None:
        return list(gpus)
    return _read_as_cuda(gpus, cuda_visible_devices, order)[0]


def find_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str], *, expected: int | None = None) -> Found:
    """Return which of *gpus* are the run's, as the job's *environ* says; *expected* is how many it asked for.

    A cgroup-limited view needs no care of its own: NVML and CUDA then show the same few, and both number them from 0.
    """
    doubts = []
    for name in _CUDA_LIKE:
        if (text := environ.get(name)) is not None:
            found, doubt = _read_as_cuda(gpus, text, environ.get(_ORDER))
            if doubt is None:
                return Found(gpus=found, source=name)
            doubts.append(f"{name}={text}: {doubt}")
    for name in _PHYSICAL:
        if text := environ.get(name):
            found, doubt = _read_as_physical(gpus, text)
            if doubt is None:
                return Found(gpus=found, source=name)
            doubts.append(f"{name}={text}: {doubt}")
    if not gpus:
        return Found(gpus=(), source="none shown", reason="; ".join(doubts) or None)
    everything = [part for gpu in gpus for part in gpu.instances or (gpu,)]
    if expected and len(everything) == expected:
        return Found(gpus=everything, source="all shown", reason="; ".join(doubts) or None)
    if not doubts and not any(environ.get(name) for name in _JOBS):
        return Found(gpus=everything, source="no job: all shown")
    doubts.append(f"{len(everything)} GPUs are shown, and the job asked for {expected or 'an unknown number'}")
    return Found(gpus=everything, source=SHARED, reason="; ".join(doubts))


def _read_as_cuda(gpus: Sequence[Gpu], text: str, order: str | None) -> tuple[list[Gpu], str | None]:
    """Return what CUDA would take, and what is doubtful about it."""
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
