"""The time limit that the job really has, as its scheduler tells it: users and operators change it after submission.

Node 0's agent asks by the command that the job script names in HPCML_TIME_LIMIT, beside the work: at the start, every
five minutes, and before it does something because of the limit. It journals an answer that differs from what was
planned or told before. The agents of the other nodes read that there: one question
for each job. A scheduler that is silent changes nothing.

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
from hpcml.runs.orders import RunOrders
from hpcml.runs.plan import stop_and_warn_after_s

TIME_LIMIT = "HPCML_TIME_LIMIT"  # how this job is asked how long it may run: said by the job script
_EVENT = "time_limit"
_PATIENCE_S = 45.0
_EVERY_S, _SPREAD_S = 300.0, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """What follows from a limit, in seconds from the start; the stop is *margin_s* before the walltime is over."""

    stop_after_s: int
    margin_s: int
    warn_after_s: int


class TimeLimit:
    """Who knows how long the job may run."""

    ask_ahead_s: float  # so long before something is done because of the limit, it is asked for again
    ask_every_s: float  # and in between, since it may have been lowered

    def ask(self) -> None:
        """Begin to ask anew; the answer is that of a later `deadlines`."""
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

    def ask(self) -> None:
        """There is nobody to ask."""

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
        orders: RunOrders,
        tell: Callable[..., None],
        *,
        spent_s: float | None,
        ask_every_s: float = _EVERY_S,
    ) -> None:
        self.ask_every_s = ask_every_s
        self._command, self._environ, self._orders, self._tell = shlex.split(command), environ, orders, tell
        self._spent_s = spent_s
        self._known_s: int | None = None
        self._told_s = orders.plan.walltime_s
        self._process: subprocess.Popen[str] | None = None
        self._until = 0.0
        self._is_silent = False

    def ask(self) -> None:
        """Start the question, unless one is under way."""
        if self._process is not None:
            return
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
        self._until = time.monotonic() + _PATIENCE_S

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
        return _within(self._known_s, self._orders, is_alone=self._spent_s is None)

    def _take(self, said: str, complaint: str, status: int) -> None:
        lines = (said if status == 0 else complaint).strip().splitlines()
        if status != 0:
            self._trouble(lines[-1] if lines else f"exit status {status}")
            return
        found_s = json.loads(lines[-1]).get("limit_s") if lines else None
        if isinstance(found_s, int) and found_s > 0:
            if self._spent_s is not None:
                found_s = _of_its_own(found_s - self._spent_s, self._orders)
            self._known_s = found_s
            if found_s != self._told_s:
                self._tell(_EVENT, limit_s=found_s, before_s=self._told_s)
                self._told_s = found_s

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

    def ask(self) -> None:
        """Read node 0's journals."""
        chunks = [read_journal(path) for path in self._turn.run_dir.journals.glob(f"{self._attempt}-*-agent*.jsonl")]
        told = [event.details.get("limit_s") for event in events(chunks, _EVENT)]
        self._known_s = next((limit_s for limit_s in reversed(told) if isinstance(limit_s, int)), self._known_s)

    def deadlines(self) -> Deadlines | None:
        """Return what follows from what was read last."""
        return _within(self._known_s, self._turn.orders, is_alone=self._turn.pack is None)


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
    return AskedLimit(command, environ, turn.orders, tell, spent_s=spent_s, ask_every_s=every_s)


def _of_its_own(left_s: float, orders: RunOrders) -> int:
    """Return the walltime of one run of a job that has *left_s* to live: as planned, if it can be ended within that."""
    walltime_s, grace_s = orders.plan.walltime_s, orders.plan.stop_grace_s
    return max(1, int(left_s)) if walltime_s is None or left_s < walltime_s + grace_s else walltime_s


def _within(limit_s: int | None, orders: RunOrders, *, is_alone: bool) -> Deadlines | None:
    plan = orders.plan
    if limit_s is None:
        return None
    if not is_alone and limit_s == plan.walltime_s and plan.stop_after_s is not None and plan.warn_after_s is not None:
        margin_s = limit_s - plan.stop_after_s
        return Deadlines(stop_after_s=plan.stop_after_s, margin_s=margin_s, warn_after_s=plan.warn_after_s)
    grace_s, notice_s = plan.stop_grace_s, orders.settings.notice_s
    stop_after_s, warn_after_s = stop_and_warn_after_s(limit_s, grace_s=grace_s, notice_s=notice_s)
    return Deadlines(stop_after_s=stop_after_s, margin_s=limit_s - stop_after_s, warn_after_s=warn_after_s)
