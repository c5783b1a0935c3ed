"""Processes started, watched, warned and ended; how that went is an `Outcome`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.agent import sessions
from hpcml.agent.guard import Guard
from hpcml.agent.inbox import ENDING, Inbox
from hpcml.agent.outcome import LEFT_AT_CHECKPOINT, Outcome, Stop, first_failure, how, judge
from hpcml.states import State

_TICK_S = 0.5
_LOOK_S = 2.0  # between looks at what lies elsewhere: a mark on a shared file system, all processes of a node
_CANNOT_START = 127  # what a shell answers for a command that is not there
_HEAR_OUT_S = 1.0  # a scheduler signals the ranks and this process one after the other
_ENDED_ON_REQUEST = frozenset(code for number in ENDING for code in (-number, 128 + number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process to start."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    stdout: Path
    stderr: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a workload may take; None: as long as it likes."""

    stop_after_s: float | None = None
    warn_after_s: float | None = None  # when it is told to leave a checkpoint; None: only if we are told so
    notice_s: float = 120.0  # what it gets after a warning that came to us as a signal
    grace_s: float  # between SIGTERM and SIGKILL


def supervise(
    ranks: Sequence[Rank],
    inbox: Inbox,
    limits: Limits,
    *,
    tell: Callable[..., None],
    on_tick: Callable[[], None] = lambda: None,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Start *ranks* and return when all have ended.

    A signal to this process that asks to end is passed on; like the walltime, the failure of one rank and
    *is_unwanted*, it ends all of them: SIGTERM, then SIGKILL after the grace. Before the walltime, or when SIGUSR1
    says that the end is near, SIGUSR1 goes to every process of theirs that catches it, and to no other, which would die
    of it. *tell* journals an event by name; *on_tick* is called about twice a second. Each rank leads its own session,
    so what it started ends with it, and all of it ends if this process is killed.
    """
    started = time.monotonic()
    guard = Guard()
    try:
        try:
            processes = _start(ranks, guard)
        except OSError as error:
            reason = f"cannot start {error.filename or ranks[0].argv[0]}: {error.strerror}"
            return Outcome(state=State.FAILED, exit_code=_CANNOT_START, signal=None, reason=reason, wall_s=0.0)
        tell("workload_started", argv=list(ranks[0].argv), pids=[process.pid for process in processes])
        return _Watch(processes, inbox, limits, tell, started).until_the_end(on_tick, is_unwanted)
    finally:
        guard.dismiss()


def _start(ranks: Sequence[Rank], guard: Guard) -> list[subprocess.Popen[bytes]]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in ranks:
            rank.stdout.parent.mkdir(exist_ok=True)
            with rank.stdout.open("ab") as stdout, rank.stderr.open("ab") as stderr:
                processes.append(
                    subprocess.Popen(
                        list(rank.argv),
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        cwd=rank.cwd,
                        env=dict(rank.environ),
                        start_new_session=True,
                    )
                )
            guard.watch(processes[-1].pid)
    except OSError:
        _send(processes, signal.SIGKILL)
        for process in processes:
            process.wait()
        raise
    return processes


def _send(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):  # nobody is left in that session's group
            os.killpg(process.pid, number)


@dataclass(slots=True)
class _Watch:
    """What is known of a workload while it runs; all times are of the monotonic clock."""

    processes: Sequence[subprocess.Popen[bytes]]
    inbox: Inbox
    limits: Limits
    tell: Callable[..., None]
    started: float
    stop: Stop | None = None
    warned: bool = False
    told: set[sessions.Member] = field(default_factory=set)  # who got the warning
    deadline: float = field(init=False)
    late: str = field(init=False)  # what to say at the deadline
    look_at: float = field(init=False)
    follow_by: float = float("inf")  # when the others must have left, too

    def __post_init__(self) -> None:
        limit_s = self.limits.stop_after_s
        self.deadline = float("inf") if limit_s is None else self.started + limit_s
        self.late = f"walltime of {limit_s:g} s reached" if limit_s is not None else ""
        self.look_at = self.started + _LOOK_S

    def until_the_end(self, on_tick: Callable[[], None], is_unwanted: Callable[[], bool]) -> Outcome:
        """Return once every rank has ended, one way or another."""
        while None in (codes := self._codes()):
            now = time.monotonic()
            self._end_if_needed(codes, now)
            self._look(is_unwanted, now)
            for number in self.inbox.wait(self._due() - now):
                self._receive(number)
            on_tick()
        if self.stop is None and (failure := first_failure(codes)):
            self._hear_out(failure[1])
        _send(self.processes, signal.SIGKILL)
        sessions.kill(self._sessions())  # what the ranks left behind
        ended = [code for code in codes if code is not None]
        return judge(ended, self.stop, warned=self.warned, wall_s=time.monotonic() - self.started)

    def _codes(self) -> list[int | None]:
        return [process.poll() for process in self.processes]  # every one must be asked

    def _sessions(self) -> set[int]:
        return {process.pid for process in self.processes}

    def _due(self) -> float:
        """Return when to look again, if nothing happens before."""
        now = time.monotonic()
        if self.stop is not None:
            return min(now + _TICK_S, self.stop.kill_at)
        warn_after_s = None if self.warned else self.limits.warn_after_s
        warn_at = float("inf") if warn_after_s is None else self.started + warn_after_s
        return min(now + _TICK_S, self.deadline, self.follow_by, warn_at)

    def _end_if_needed(self, codes: Sequence[int | None], now: float) -> None:
        if self.stop is None:
            self._judge_the_living(codes, now)
            if self.stop is None:
                self._warn_if_due(now)
        elif now >= self.stop.kill_at:
            self.tell("signal", signal="SIGKILL", reason=f"still running {self.limits.grace_s:g} s after SIGTERM")
            _send(self.processes, signal.SIGKILL)
            sessions.kill(self._sessions())
            self.stop.kill_at = float("inf")

    def _judge_the_living(self, codes: Sequence[int | None], now: float) -> None:
        failure = first_failure(codes)
        if failure is not None:
            self._hear_out(failure[1])
            if self.stop is None:
                self._end(State.FAILED, f"rank {failure[0]}: {how(failure[1])}")
            return
        if LEFT_AT_CHECKPOINT in codes and self.follow_by == float("inf"):
            self.follow_by = now + self.limits.notice_s
        if now >= self.deadline:
            self._end(State.TIMEOUT, self.late)
        elif now >= self.follow_by:
            behind = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
            left = codes.index(LEFT_AT_CHECKPOINT)
            waited = f"within {self.limits.notice_s:g} s"
            self._end(State.TIMEOUT, f"rank {left} left at a checkpoint; rank {behind} did not follow {waited}")

    def _end(self, state: State, reason: str, *, from_outside: bool = False) -> None:
        self.stop = Stop(state, reason, time.monotonic() + self.limits.grace_s, from_outside)
        if not from_outside:
            _send(self.processes, signal.SIGTERM)

    def _warn_if_due(self, now: float) -> None:
        warn_after_s = self.limits.warn_after_s
        if not self.warned and warn_after_s is not None and now >= self.started + warn_after_s:
            self._warn(f"walltime in {self.deadline - now:.0f} s")

    def _warn(self, reason: str) -> None:
        self.warned = True
        self.told = sessions.tell_catchers(self._sessions(), signal.SIGUSR1)
        self.tell("warned", reason=reason, processes=len(self.told))

    def _look(self, is_unwanted: Callable[[], bool], now: float) -> None:
        if self.stop is not None or now < self.look_at:
            return
        self.look_at = now + _LOOK_S
        if is_unwanted():
            self._end(State.CANCELLED, "cancelled")
        elif self.warned:  # a program that was only just starting catches the signal by now
            self.told |= sessions.tell_catchers(self._sessions(), signal.SIGUSR1, self.told)

    def _hear_out(self, code: int) -> None:
        """Take the signals that came with the end of a rank: perhaps it was ended by the same hand as we are."""
        until = time.monotonic() + (_HEAR_OUT_S if code in _ENDED_ON_REQUEST else 0.0)
        while True:
            for number in self.inbox.wait(until - time.monotonic()):
                self._receive(number)
            if self.stop is not None or time.monotonic() >= until:
                return

    def _receive(self, number: signal.Signals) -> None:
        if number in ENDING:
            self.tell("signal", signal=number.name, reason="received and passed on")
            _send(self.processes, number)
            if self.stop is None:
                self._end(State.CANCELLED, f"cancelled by {number.name}", from_outside=True)
        elif number is signal.SIGUSR1 and not self.warned and self.stop is None:
            until = time.monotonic() + self.limits.notice_s
            if until < self.deadline:
                self.deadline = until
                self.late = f"still running {self.limits.notice_s:g} s after SIGUSR1 said that its time is over"
            self._warn("SIGUSR1 received")
        elif number is signal.SIGUSR1:
            self.tell("signal", signal=number.name, reason="received; the workload has been warned before")
        else:
            count = len(sessions.tell_catchers(self._sessions(), number))
            self.tell("signal", signal=number.name, reason=f"received and passed on to {count} that catch it")
