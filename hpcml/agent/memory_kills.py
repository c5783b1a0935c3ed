"""How often the kernel has killed for want of memory where this process lives: its control group counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_OURS = Path("/proc/self/cgroup")
_MOUNTS = Path("/sys/fs/cgroup")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKills:
    """A reading; *count* None: nobody counts here."""

    count: int | None
    is_of_job: bool  # the group holds nothing but this job

    def rose_since(self, before: MemoryKills) -> bool:
        """Tell whether something was killed between the two readings."""
        return self.count is not None and before.count is not None and self.count > before.count


def read_kills(job_id: str | None, *, ours: Path = _OURS, mounts: Path = _MOUNTS) -> MemoryKills:
    """Read the count. Slurm and PBS name the groups of their jobs by the job's id."""
    try:
        lines = ours.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    number = (job_id or "").partition(".")[0]  # PBS adds its server, and for arrays an index
    for group, places in _places(lines, mounts):
        is_of_job = bool(number) and re.search(rf"(?<!\d){re.escape(number)}(?!\d)", group) is not None
        for place in places:
            count = _count(place)
            if count is not None:
                return MemoryKills(count=count, is_of_job=is_of_job)
    return MemoryKills(count=None, is_of_job=False)


def _places(lines: Sequence[str], mounts: Path) -> list[tuple[str, list[Path]]]:
    """Return the groups of /proc/self/cgroup that may count, with the files to try (cgroups(7))."""
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inside = group.lstrip("/")
        if "memory" in controllers.split(","):  # version 1; the mount itself: a container sees its own group there
            roots = [mounts / "memory" / inside, mounts / "memory"]
            found.append((group, [root / "memory.oom_control" for root in roots]))
        elif not controllers:  # version 2, alone or beside version 1; it counts the groups below too
            roots = [mounts / inside, mounts / "unified" / inside]
            found.append((group, [root / "memory.events" for root in roots]))
    return found


def _count(file: Path) -> int | None:
    try:
        match = _COUNT.search(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if match is None else int(match[1])
