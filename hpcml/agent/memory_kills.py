"""Whether the kernel killed processes for want of memory while a program ran, as the job's control group counts."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.agent.outcome import Outcome
from hpcml.model.state import State

_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second by a shell or a container, which outlives its program
OURS = Path("/proc/self/cgroup")
MOUNTS = Path("/sys/fs/cgroup")
# What stands before a job's number: of Slurm and LSF (job_4711, job.4711.23), the two hooks of PBS (jobid/4711.server,
# pbspro-4711.server.slice), and Flux (imp-shell-0-f2TJSAQF.service)
_BEFORE_A_JOB = r"(?:^|/)(?:job[._-]|(?:jobid|jobs|pbs_jobs)/|pbs(?:pro)?-|(?:imp-)?shell-\d+-)"
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def out_of_memory(outcome: Outcome, before: MemoryKills, after: MemoryKills) -> Outcome:
    """Return *outcome* with the state OUT_OF_MEMORY if the kernel killed a process for want of memory in between.

    Slurm uses the same state. One that completed keeps its state, with a remark as its reason: it may have lost a
    worker. *before* and *after* are readings around the workload.
    """
    if outcome.state not in (State.FAILED, State.COMPLETED) or not (killed := after.since(before)):
        return outcome
    if outcome.state is State.COMPLETED:
        whose = "" if after.is_of_job else " in its control group, which may be another's"
        them = "1 process was" if killed == 1 else f"{killed} processes were"
        return replace(outcome, reason=f"{them} killed for memory{whose}")
    # A group that is not the job's alone counts what others did as well: there it takes a rank that was killed.
    if not after.is_of_job and not any(code in _KILLED for code in outcome.codes):
        return outcome
    return replace(outcome, state=State.OUT_OF_MEMORY, reason=f"out of memory: {outcome.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKills:
    """One reading of the count of OOM kills; *count* None: no control group counts them here."""

    count: int | None
    is_of_job: bool  # the group holds nothing but this job

    def since(self, before: MemoryKills) -> int:
        """Return how many processes were killed between the two readings; 0 where nobody counts."""
        return 0 if self.count is None or before.count is None else max(0, self.count - before.count)


def job_around(environ: Mapping[str, str]) -> str | None:
    """Return the id of the scheduler's job around this process, by which its control group is called; None: none is.

    Of an array it is the element's own: Slurm gives each an id, and calls its group by that and not by the array's.
    HPCML_JOB_ID comes first, as in `assignment.job_of`: Flux runs in jobs of Slurm, too, whose group has all its jobs.
    """
    return environ.get("HPCML_JOB_ID") or environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID")


def is_called_by(group: str, job_id: str | None) -> bool:
    """Tell whether the path of a control group has a folder that a scheduler called by the number of the job *job_id*.

    A number alone is no sign: sessions, users and containers have some, too.

    >>> is_called_by("pbspro.slice/pbspro-4711.slice", "4711[3].server"), is_called_by("session-4711.scope", "4711")
    (True, False)
    """
    number = (job_id or "").partition(".")[0].partition("[")[0]  # PBS adds its server, and for arrays an index
    return bool(number) and re.search(rf"{_BEFORE_A_JOB}{re.escape(number)}(?![0-9A-Za-z])", group) is not None


def read_kills(job_id: str | None, *, ours: Path = OURS, mounts: Path = MOUNTS) -> MemoryKills:
    """Read the count from the memory control group of this process, version 1 or 2 (cgroups(7)).

    The group belongs to the job alone if its name contains *job_id*, as with Slurm and PBS.
    """
    try:
        lines = ours.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for group, places in _places(lines, mounts):
        is_of_job = is_called_by(group, job_id)
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
