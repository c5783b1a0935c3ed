"""The time limit that the job really has, as its scheduler tells it: users and operators change it after submission.

Node 0's agent asks by the command that the job script names in HPCML_TIME_LIMIT, beside the work: at the start, every
five minutes, and before it does something because of the limit. It journals an answer that differs from what was
planned or told before. The agents of the other nodes read that there: one question
for each job. A scheduler that is silent changes nothing.

An operator, or a job of more weight, may suspend a job: all its processes stand still, and Slurm does not count that
time. The clocks here do. So an agent that finds itself having stood still asks how much is left, too, and what is due
by the limit waits for the answer.

Of a job that several runs share each run has its own walltime, which stays; where the job would end before that, the
run is stopped before the job is.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcml.agent.assignment import Turn
from hpcml.runs.journal import events, read_journal
from hpcml.runs.liveness import ProcessIdentity
from hpcml.runs.manifest import Manifest
from hpcml.runs.plan import stop_and_warn_after_s

TIME_LIMIT = "HPCML_TIME_LIMIT"  # how this job is asked how long it may run: said by the job script
_EVENT = "time_limit"
_PATIENCE_S = 45.0
_EVERY_S, _SPREAD_S = 300.0, 60
_LEFT = "--left"  # behind the command, after a time of standing still
_NOT_ROUNDED_S = 3  # schedulers tell whole seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """What follows from a limit, in seconds from the start; the stop is *margin_s* before the walltime is over."""

    stop_after_s: int
    margin_s: int
    warn_after_s: int
    suspended_s: int = 0  # all three are so much later, since the scheduler has not counted that time


class TimeLimit:
    """Who knows how long the job may run."""

    ask_ahead_s: float  # so long before something is done because of the limit, it is asked for again
    ask_every_s: float  # and in between, since it may have been lowered

    def ask(self, *, stood_still_s: float = 0.0) -> None:
        """Begin to ask anew; the answer is that of a later `deadlines`.

        *stood_still_s* is how long the asking process has not been running since the workload started.
        """
        raise NotImplementedError

    def is_awaited(self) -> bool:
        """Tell whether an answer may still come that says for how long the job was suspended."""
        raise NotImplementedError

    def deadlines(self) -> Deadlines | None:
        """Return when the program is to be stopped and warned, by what was told last; None: as planned.

        It does not wait for an answer.
        """
        raise NotImplementedError


class UnchangedLimit(TimeLimit):
    """The limit is what it was at submission: on this machine."""

    ask_ahead_s = 0.0
    ask_every_s = float("inf")

    def ask(self, *, stood_still_s: float = 0.0) -> None:
        """There is nobody to ask."""

    def is_awaited(self) -> bool:
        """No answer comes."""
        return False

    def deadlines(self) -> None:
        """Nobody has told."""


class AskedLimit(TimeLimit):
    """Node 0's: the scheduler is asked by *command*; *tell* journals what it says, or that it says nothing.

    *spent_s* is how long the job has run before this run of it began; None where that is its only run. *ask_every_s*
    is long enough for a scheduler with thousands of such jobs.
    """

    ask_ahead_s = 60.0

    def __init__(
        self,
        command: str,
        environ: Mapping[str, str],
        manifest: Manifest,
        tell: Callable[..., None],
        *,
        spent_s: float | None,
        ask_every_s: float = _EVERY_S,
    ) -> None:
        self.ask_every_s = ask_every_s
        self._command, self._environ, self._manifest, self._tell = shlex.split(command), environ, manifest, tell
        self._spent_s = spent_s
        self._known_s: int | None = None
        self._told_s = manifest.plan.walltime_s
        self._began = self._asked_at = time.monotonic()
        self._stood_still_s = 0.0
        self._suspended_s = 0
        self._process: subprocess.Popen[str] | None = None
        self._until = 0.0
        self._is_silent = False

    def ask(self, *, stood_still_s: float = 0.0) -> None:
        """Start the question, unless one is under way; after a time of standing still, that is done away with."""
        if self._process is not None:
            if stood_still_s <= self._stood_still_s:
                return
            self._process.kill()
            self._process.communicate()
            self._process = None
        self._stood_still_s = stood_still_s
        self._asked_at = time.monotonic()
        try:
            self._process = subprocess.Popen(
                [*self._command, *([_LEFT] if stood_still_s else [])],
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self._trouble(str(error))
        self._until = time.monotonic() + _PATIENCE_S

    def is_awaited(self) -> bool:
        """Tell whether the question is under way."""
        return self._process is not None

    def deadlines(self) -> Deadlines | None:
        """Take the answer if it has come, and end a question that takes too long."""
        if self._process is not None:
            if self._process.poll() is not None:
                self._take(*self._process.communicate(), self._process.returncode)
                self._process = None
            elif time.monotonic() > self._until:
                self._process.kill()
                self._process.communicate()
                self._process = None
                self._trouble(f"no answer within {_PATIENCE_S:g} s")
        return _within(self._known_s, self._manifest, is_alone=self._spent_s is None, suspended_s=self._suspended_s)

    def _take(self, said: str, complaint: str, status: int) -> None:
        lines = (said if status == 0 else complaint).strip().splitlines()
        if status != 0:
            self._trouble(lines[-1] if lines else f"exit status {status}")
            return
        answer = json.loads(lines[-1]) if lines else {}
        found_s, left_s = answer.get("limit_s"), answer.get("left_s")
        if isinstance(found_s, int) and found_s > 0:
            ours_s = found_s - (self._spent_s or 0.0)
            suspended_s = self._suspended_by(ours_s, left_s) if isinstance(left_s, int) else 0
            if self._spent_s is not None:
                found_s = _of_its_own(ours_s, self._manifest)
            self._known_s = found_s
            is_longer = suspended_s > self._suspended_s
            self._suspended_s = max(suspended_s, self._suspended_s)
            if found_s != self._told_s or is_longer:
                more = {"suspended_s": self._suspended_s} if self._suspended_s else {}
                self._tell(_EVENT, limit_s=found_s, before_s=self._told_s, **more)
                self._told_s = found_s

    def _suspended_by(self, limit_s: float, left_s: int) -> int:
        """Return how long the job was suspended, by what is left of its limit: no longer than this process stood still.

        The moment of the question is taken, not that of the answer: too little then, if it took long.
        """
        uncounted_s = self._asked_at - self._began + left_s - limit_s
        if uncounted_s < self._suspended_s + _NOT_ROUNDED_S:
            return self._suspended_s
        return int(min(uncounted_s, self._stood_still_s))

    def _trouble(self, error: str) -> None:
        if not self._is_silent:
            self._tell("agent_trouble", what="time limit", error=error)
        self._is_silent = True


class FollowedLimit(TimeLimit):
    """Another node's: what node 0's agent has journalled in this attempt."""

    ask_ahead_s = 2.0  # long after node 0 has asked, also where that began a little later
    ask_every_s = 30.0  # a file is read

    def __init__(self, turn: Turn, attempt: int) -> None:
        self._turn, self._attempt = turn, attempt
        self._known_s: int | None = None
        self._suspended_s = 0
        self._awaits_until = 0.0
        self._stood_still_s = 0.0

    def ask(self, *, stood_still_s: float = 0.0) -> None:
        """Read node 0's journals; after a time of standing still, until they tell of it or node 0 has had its time."""
        if stood_still_s > self._stood_still_s:
            self._stood_still_s = stood_still_s
            self._awaits_until = time.monotonic() + _PATIENCE_S
        self._read()

    def is_awaited(self) -> bool:
        """Tell whether node 0 has still time to hear of the suspension."""
        return time.monotonic() < self._awaits_until

    def _read(self) -> None:
        chunks = [read_journal(path) for path in self._turn.run_dir.journals.glob(f"{self._attempt}-*-agent*.jsonl")]
        for event in events(chunks, _EVENT):
            limit_s, suspended_s = event.details.get("limit_s"), event.details.get("suspended_s")
            self._known_s = limit_s if isinstance(limit_s, int) else self._known_s
            if isinstance(suspended_s, int) and suspended_s > self._suspended_s:
                self._suspended_s = suspended_s
                self._awaits_until = 0.0

    def deadlines(self) -> Deadlines | None:
        """Return what follows from what was read last."""
        if self.is_awaited():
            self._read()
        is_alone = self._turn.pack is None
        return _within(self._known_s, self._turn.manifest, is_alone=is_alone, suspended_s=self._suspended_s)


def time_limit_of(turn: Turn, attempt: int, environ: Mapping[str, str], tell: Callable[..., None]) -> TimeLimit:
    """Return who knows the limit of this node's job; *tell* journals an event by name."""
    if turn.is_local:
        return UnchangedLimit()
    if turn.node != 0:
        return FollowedLimit(turn, attempt)
    command = environ.get(TIME_LIMIT)
    if not command:
        return UnchangedLimit()
    spent_s = None
    if turn.pack is not None:  # the job began with us
        now = time.time()
        spent_s = now - (ProcessIdentity.of_this_process().created_at or now)
    every_s = _EVERY_S + os.getpid() % _SPREAD_S  # the jobs of an array begin at the same moment
    return AskedLimit(command, environ, turn.manifest, tell, spent_s=spent_s, ask_every_s=every_s)


def _of_its_own(left_s: float, manifest: Manifest) -> int:
    """Return the walltime of one run of a job that has *left_s* to live: as planned, if it can be ended within that."""
    walltime_s, grace_s = manifest.plan.walltime_s, manifest.plan.stop_grace_s
    return max(1, int(left_s)) if walltime_s is None or left_s < walltime_s + grace_s else walltime_s


def _within(limit_s: int | None, manifest: Manifest, *, is_alone: bool, suspended_s: int) -> Deadlines | None:
    plan = manifest.plan
    if limit_s is None:
        return None
    if not is_alone and limit_s == plan.walltime_s and plan.stop_after_s is not None and plan.warn_after_s is not None:
        margin_s = limit_s - plan.stop_after_s
        stop_after_s, warn_after_s = plan.stop_after_s, plan.warn_after_s
    else:
        grace_s, notice_s = plan.stop_grace_s, manifest.run.schedule.notice_s
        stop_after_s, warn_after_s = stop_and_warn_after_s(limit_s, grace_s=grace_s, notice_s=notice_s)
        margin_s = limit_s - stop_after_s
    return Deadlines(stop_after_s=stop_after_s, margin_s=margin_s, warn_after_s=warn_after_s, suspended_s=suspended_s)
