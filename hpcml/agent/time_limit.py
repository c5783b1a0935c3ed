"""The walltime that the job really has, as its scheduler tells it: users and operators change it after submission.

Node 0's agent asks by the command that the job script names in HPCML_TIME_LIMIT, beside the work: at the start, a
minute before it would warn or stop the program, and after the job stood still. It journals an answer that differs from
what was planned or told before. The agents of the other nodes read that there: one question for each job. A scheduler
that is silent changes nothing.

An operator, or a job of more weight, may suspend a job: all its processes stand still, and Slurm does not count that
time. The clocks here do. So the walltime is that much longer, and what is due by it waits for the answer.

Of a job that several runs share each run has its own walltime, which stays; where the job would end before that, the
run is stopped before the job is.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hpcml.agent.assignment import Turn
from hpcml.runs.journal import events, read_journal
from hpcml.runs.liveness import ProcessIdentity
from hpcml.runs.manifest import Manifest
from hpcml.runs.plan import stop_and_warn_after_s

TIME_LIMIT = "HPCML_TIME_LIMIT"  # how this job is asked how long it may run: said by the job script
_EVENT = "time_limit"
_PATIENCE_S = 45.0
_NOT_ROUNDED_S = 3  # schedulers tell whole seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """What follows from a limit, in seconds from the start; the stop is *margin_s* before the walltime is over."""

    stop_after_s: int
    margin_s: int
    warn_after_s: int


class AskedLimit:
    """Node 0's: the scheduler is asked by *command*; *tell* journals what it says, or that it says nothing.

    *spent_s* is how long the job has run before this run of it began; None where that is its only run.
    """

    ask_ahead_s = 60.0  # so long before something is done because of the limit, it is asked for again

    def __init__(
        self,
        command: str,
        environ: Mapping[str, str],
        manifest: Manifest,
        tell: Callable[..., None],
        *,
        spent_s: float | None,
    ) -> None:
        self._command, self._environ, self._manifest, self._tell = shlex.split(command), environ, manifest, tell
        self._spent_s = spent_s
        self._known_s: int | None = None
        self._began = self._asked_at = time.monotonic()
        self._stood_still_s, self._suspended_s = 0.0, 0
        self._process: subprocess.Popen[str] | None = None
        self._is_silent = False

    def ask(self, *, stood_still_s: float = 0.0) -> None:
        """Begin to ask, unless a question is under way; the answer is that of a later `deadlines`.

        *stood_still_s* is how long this process has not been running since the workload started; where that is more
        than before, the question under way is put anew.
        """
        if self._process is not None:
            if stood_still_s <= self._stood_still_s:
                return
            self._give_up(self._process)
        self._stood_still_s, self._asked_at = stood_still_s, time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self._trouble(str(error))

    def is_awaited(self) -> bool:
        """Tell whether an answer may still come."""
        return self._process is not None

    def deadlines(self) -> Deadlines | None:
        """Return when the program is to be stopped and warned, by what was told last; None: as planned.

        It does not wait for an answer, and ends a question that takes too long.
        """
        process = self._process
        if process is not None and process.poll() is not None:
            self._process = None
            self._take(*process.communicate(), process.returncode)
        elif process is not None and time.monotonic() > self._asked_at + _PATIENCE_S:
            self._give_up(process)
            self._trouble(f"no answer within {_PATIENCE_S:g} s")
        return _within(self._known_s, self._manifest, is_alone=self._spent_s is None, suspended_s=self._suspended_s)

    def _give_up(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()
        self._process = None

    def _take(self, said: str, complaint: str, status: int) -> None:
        answer = _answer_in(said)
        if status != 0 or answer is None:
            lines = (complaint.strip() or said.strip()).splitlines()
            self._trouble(lines[-1] if lines else f"exit status {status}")
            return
        limit_s, left_s = answer.get("limit_s"), answer.get("left_s")
        if not isinstance(limit_s, int) or limit_s <= 0:
            return
        ours_s = limit_s - (self._spent_s or 0.0)
        suspended_s, self._suspended_s = self._suspended_s, self._suspended_by(ours_s, left_s)
        found_s = limit_s if self._spent_s is None else _of_its_own(ours_s, self._manifest)
        before_s = self._manifest.plan.walltime_s if self._known_s is None else self._known_s
        self._known_s = found_s
        if (found_s, self._suspended_s) != (before_s, suspended_s):
            more = {"suspended_s": self._suspended_s} if self._suspended_s else {}
            self._tell(_EVENT, limit_s=found_s, before_s=before_s, **more)

    def _suspended_by(self, limit_s: float, left_s: object) -> int:
        """Return how long the job was suspended, by what is left of its limit: no longer than this process stood still.

        The moment of the question is taken, not that of the answer: too little then, if it took long.
        """
        if not isinstance(left_s, int):
            return self._suspended_s
        uncounted_s = min(self._asked_at - self._began + left_s - limit_s, self._stood_still_s)
        return int(uncounted_s) if uncounted_s >= self._suspended_s + _NOT_ROUNDED_S else self._suspended_s

    def _trouble(self, error: str) -> None:
        if not self._is_silent:
            self._tell("agent_trouble", what="time limit", error=error)
        self._is_silent = True


class FollowedLimit:
    """Another node's: what node 0's agent has journalled in this attempt; as `AskedLimit`."""

    ask_ahead_s = 2.0  # long after node 0 has asked, also where that began a little later
    _READ_EVERY_S = 30.0

    def __init__(self, turn: Turn, attempt: int) -> None:
        self._turn, self._attempt = turn, attempt
        self._known_s: int | None = None
        self._read_at, self._awaits_until = 0.0, 0.0
        self._stood_still_s, self._suspended_s = 0.0, 0

    def ask(self, *, stood_still_s: float = 0.0) -> None:
        """Have node 0's journals read; after a time of standing still it has its time to hear of that."""
        self._read_at = 0.0
        if stood_still_s > self._stood_still_s:
            self._stood_still_s = stood_still_s
            self._awaits_until = time.monotonic() + _PATIENCE_S

    def is_awaited(self) -> bool:
        """Tell whether node 0 has still time to hear of the suspension."""
        return time.monotonic() < self._awaits_until

    def deadlines(self) -> Deadlines | None:
        """Return what follows from what was read last."""
        if time.monotonic() >= self._read_at or self.is_awaited():
            self._read()
        is_alone = self._turn.pack is None
        return _within(self._known_s, self._turn.manifest, is_alone=is_alone, suspended_s=self._suspended_s)

    def _read(self) -> None:
        self._read_at = time.monotonic() + self._READ_EVERY_S
        chunks = [read_journal(path) for path in self._turn.run_dir.journals.glob(f"{self._attempt}-*-agent*.jsonl")]
        for event in events(chunks, _EVENT):
            limit_s, suspended_s = event.details.get("limit_s"), event.details.get("suspended_s")
            self._known_s = limit_s if isinstance(limit_s, int) else self._known_s
            if isinstance(suspended_s, int) and suspended_s > self._suspended_s:
                self._suspended_s = suspended_s
                self._awaits_until = 0.0


def time_limit_of(
    turn: Turn, attempt: int, environ: Mapping[str, str], tell: Callable[..., None]
) -> AskedLimit | FollowedLimit | None:
    """Return who knows the limit of this node's job; None: nobody. *tell* journals an event by name."""
    if turn.is_local:
        return None
    if turn.node != 0:
        return FollowedLimit(turn, attempt)
    command = environ.get(TIME_LIMIT)
    if not command:
        return None
    spent_s = None
    if turn.pack is not None:  # the job began with us
        now = time.time()
        spent_s = now - (ProcessIdentity.of_this_process().created_at or now)
    return AskedLimit(command, environ, turn.manifest, tell, spent_s=spent_s)


def _answer_in(said: str) -> Mapping[str, object] | None:
    """Return the last line that is an answer: what starts Python at a site may print lines of its own."""
    for line in reversed(said.splitlines()):
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
    return None


def _of_its_own(left_s: float, manifest: Manifest) -> int:
    """Return the walltime of one run of a job that has *left_s* to live: as planned, if it can be ended within that."""
    walltime_s, grace_s = manifest.plan.walltime_s, manifest.plan.stop_grace_s
    return max(1, int(left_s)) if walltime_s is None or left_s < walltime_s + grace_s else walltime_s


def _within(limit_s: int | None, manifest: Manifest, *, is_alone: bool, suspended_s: int) -> Deadlines | None:
    plan = manifest.plan
    if limit_s is None:
        return None
    if not is_alone and limit_s == plan.walltime_s and plan.stop_after_s is not None and plan.warn_after_s is not None:
        stop_after_s, warn_after_s = plan.stop_after_s, plan.warn_after_s
    else:
        grace_s, notice_s = plan.stop_grace_s, manifest.run.schedule.notice_s
        stop_after_s, warn_after_s = stop_and_warn_after_s(limit_s, grace_s=grace_s, notice_s=notice_s)
    return Deadlines(
        stop_after_s=stop_after_s + suspended_s,
        margin_s=limit_s - stop_after_s,
        warn_after_s=warn_after_s + suspended_s,
    )
