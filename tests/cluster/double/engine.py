"""Jobs as any scheduler has them, for doubles: real processes of this machine, and every way in which they can end.

What a scheduler calls all this, and how it writes it down, is said by its dialect (tests/cluster/lsf and flux). The two
nodes, of eight cores and four GPUs, are names of this machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NODES = {"gpu1": (8, 4), "gpu2": (8, 4)}


@dataclass(eq=False)
class Job:
    """A job, or an element of an array."""

    number: int
    name: str
    argv: list[str]
    environ: dict[str, str]
    cwd: str
    output: str
    index: int | None = None  # of an array, as the scheduler counts
    nodes: int = 1
    cores: int = 1  # of each node
    gpus: int = 0  # of each node
    limit_s: float | None = None
    queue: str = "batch"
    waits: list[tuple[str, int, int | None]] = field(default_factory=list)  # afterok and so on, number, element
    at_once: int | None = None  # of its array
    per_node: bool = False  # started on each node, not on the first alone
    held: bool = False
    state: str = "waiting"  # waiting | running | ended
    made_at: float = field(default_factory=time.time)
    began_at: float | None = None
    ended_at: float | None = None
    code: int | None = None  # exit status of the first that failed; negative: a signal
    why: str | None = None  # cancelled | timeout | dependency | unsatisfiable | memory | preempted
    hosts: list[str] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    others: list[int] = field(default_factory=list)  # sessions of tasks on other nodes
    kills: list[tuple[float, int]] = field(default_factory=list)  # when which signal follows
    runs: int = 0
    left_at: float | None = None  # when the first of several nodes ended
    is_doomed: bool = False  # and the others did not follow in time
    again: bool = False  # put back into the queue once it has ended


@dataclass
class Engine:
    """All jobs, and time passing over them."""

    state: Path
    next_number: int = 1
    step: int = 1  # between two numbers
    closed: bool = False  # nothing is started
    kill_delay_s: float = 1.0  # between the signals of a cancellation
    ending: tuple[int, ...] = (signal.SIGTERM, signal.SIGKILL)
    exit_timeout_s: float = 1.0  # within which other nodes go on after one has ended, however that was (Flux)
    keeps_in_vain: bool = False  # what waits in vain waits for ever
    jobs: list[Job] = field(default_factory=list)

    def new_number(self) -> int:
        number = self.next_number
        self.next_number += self.step
        return number

    def meant(self, number: int, index: int | None = None) -> list[Job]:
        """Return a job, an element, or all elements of an array."""
        return [job for job in self.jobs if job.number == number and index in (None, job.index)]

    @property
    def is_busy(self) -> bool:
        return any(job.state != "ended" for job in self.jobs)

    def tick(self, variables: Callable[[Job, int], dict[str, str]]) -> None:
        """Let time pass: reap, kill, end what is out of time, and start what can be."""
        now = time.time()
        for job in self.jobs:
            if job.state == "running":
                self._watch(job, now)
        for job in self.jobs:
            if job.state == "waiting" and not job.held and not self.closed:
                self._consider(job, variables)

    def cancel(self, job: Job, why: str = "cancelled") -> None:
        if job.state == "waiting":
            job.state, job.why, job.ended_at = "ended", why, time.time()
        elif job.state == "running" and not job.kills:
            job.why = why
            self.end(job)

    def end(self, job: Job) -> None:
        """Begin to send the signals by which a job is ended."""
        now = time.time()
        job.kills = [(now + at * self.kill_delay_s, number) for at, number in enumerate(self.ending)]
        self._watch(job, now)

    def requeue(self, job: Job) -> None:
        """Kill the job at once; it waits again under its id."""
        job.again = True
        self.signal(job, signal.SIGKILL)

    def signal(self, job: Job, number: int) -> None:
        """Signal every process of the job's sessions."""
        sessions = {process.pid for process in job.processes} | set(job.others)
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    text = Path(entry.path, "stat").read_text(errors="replace")
                    words = text[text.rindex(")") + 2 :].split()
                    if int(words[3]) in sessions and words[0] != "Z":
                        os.kill(int(entry.name), number)

    def close(self) -> None:
        for job in self.jobs:
            if job.state == "running":
                self.signal(job, signal.SIGKILL)

    def _watch(self, job: Job, now: float) -> None:
        while job.kills and job.kills[0][0] <= now:
            self.signal(job, job.kills.pop(0)[1])
        if job.limit_s is not None and not job.kills and job.why is None and now > (job.began_at or now) + job.limit_s:
            job.why = "timeout"
            self.end(job)
        codes = [process.poll() for process in job.processes]
        failed = [code for code in codes if code]
        if failed and job.code is None:
            job.code = failed[0]
        if any(code is not None for code in codes) and job.left_at is None:
            job.left_at = now
        if None in codes:
            if job.left_at is not None and now > job.left_at + self.exit_timeout_s and not job.kills:
                job.is_doomed = True
                self.end(job)
            return
        self.signal(job, signal.SIGKILL)  # what it left in its sessions
        if job.again:
            job.state, job.again, job.code, job.why = "waiting", False, None, None
            job.kills, job.left_at, job.others = [], None, []
            return
        job.state, job.ended_at = "ended", now
        job.code = job.code or 0

    def _consider(self, job: Job, variables: Callable[[Job, int], dict[str, str]]) -> None:
        if job.nodes > len(NODES) or job.gpus > max(gpus for _, gpus in NODES.values()):
            return
        for word, number, index in job.waits:
            found = self.meant(number, index)
            if any(one.state != "ended" for one in found):
                return
            good = {"afterok": _is_good, "afternotok": lambda one: not _is_good(one)}.get(word, lambda _one: True)
            if not all(map(good, found)):
                if not self.keeps_in_vain:
                    job.state, job.why, job.ended_at = "ended", "dependency", time.time()
                return
        alive = [one for one in self.jobs if one.number == job.number and one.state == "running"]
        if job.at_once is not None and len(alive) >= job.at_once:
            return
        used = {name: [0, 0] for name in NODES}
        for one in self.jobs:
            for host in one.hosts if one.state == "running" else ():
                used[host][0] += one.cores
                used[host][1] += one.gpus
        free = [
            name
            for name, (cores, gpus) in NODES.items()
            if cores - used[name][0] >= min(job.cores, cores) and gpus - used[name][1] >= job.gpus
        ]
        if len(free) >= job.nodes:
            self._start(job, free[: job.nodes], variables)

    def _start(self, job: Job, hosts: list[str], variables: Callable[[Job, int], dict[str, str]]) -> None:
        job.hosts, job.state, job.began_at, job.processes = hosts, "running", time.time(), []
        job.runs += 1
        for rank in range(job.nodes if job.per_node else 1):
            environ = {**job.environ, **variables(job, rank)}
            try:
                with open(job.output, "ab") as out:  # noqa: PTH123
                    process = subprocess.Popen(
                        job.argv, env=environ, cwd=job.cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                        start_new_session=True,
                    )  # fmt: skip
            except OSError:
                process = subprocess.Popen(["/bin/sh", "-c", "exit 127"], start_new_session=True)
            job.processes.append(process)


def _is_good(job: Job) -> bool:
    return job.why is None and job.code == 0
