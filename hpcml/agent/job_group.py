"""The control group that holds nothing but this job: what its processes use of cores and memory, dead ones included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_OURS = Path("/proc/self/cgroup")
_MOUNTS = Path("/sys/fs/cgroup")
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """The folders of the job's group; None: no such controller, or no group of the job's own under it."""

    version: int
    cpu: Path | None
    memory: Path | None

    def cpu_s(self) -> float | None:
        """Return the CPU time of all that ever ran in the group, in seconds."""
        if self.cpu is None:
            return None
        if self.version == 1:
            text = _read(self.cpu / "cpuacct.usage")  # nanoseconds
            return int(text) / 1e9 if text else None
        used_us = _keys(self.cpu / "cpu.stat").get("usage_usec")
        return None if used_us is None else used_us / 1e6

    def memory_mb(self) -> float | None:
        """Return the memory in use, without cached files that the kernel may drop at once, in MiB."""
        if self.memory is None:
            return None
        current, key = ("usage_in_bytes", "total_inactive_file") if self.version == 1 else ("current", "inactive_file")
        text = _read(self.memory / f"memory.{current}")
        return (int(text) - _keys(self.memory / "memory.stat").get(key, 0)) / _MIB if text else None


def find_job_group(job_id: str | None, *, ours: Path = _OURS, mounts: Path = _MOUNTS) -> JobGroup | None:
    """Return the group that Slurm or PBS made for the job *job_id* on this node; None where there is none.

    Both put the job's id into the name of one folder, and what is below is the job's (cgroups(7)).
    """
    number = (job_id or "").partition(".")[0].partition("[")[0]  # PBS adds its server, and for arrays an index
    text = _read(ours)
    if not number or not text:
        return None
    found: dict[str, Path] = {}
    for line in text.splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        inside = _up_to_job(group, number)
        if inside is None:
            continue
        for controller in controllers.split(","):  # "" is version 2
            place = mounts / controller / inside
            if place.is_dir():
                found[controller] = place
    if "cpuacct" in found or "memory" in found:
        return JobGroup(version=1, cpu=found.get("cpuacct"), memory=found.get("memory"))
    if "" not in found:
        return None
    unified = found[""]
    return JobGroup(
        version=2,
        cpu=unified if (unified / "cpu.stat").exists() else None,
        memory=unified if (unified / "memory.current").exists() else None,
    )


def _up_to_job(group: str, number: str) -> str | None:
    parts = group.strip("/").split("/")
    for depth, part in enumerate(parts, start=1):
        if re.search(rf"(?<!\d){re.escape(number)}(?!\d)", part):
            return "/".join(parts[:depth])
    return None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None


def _keys(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in (_read(file) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
