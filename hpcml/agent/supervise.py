"""Processes started, watched, signalled and ended; how that went is an `Outcome`."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcml.states import State

_RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDS_THE_RUN = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_TICK_S = 0.5
_CANNOT_START = 127  # what a shell answers for a command that is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process to start."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    stdout: Path
    stderr: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a workload ended. `exit_code` is None where a signal ended it."""

    state: State
    exit_code: int | None
    signal: int | None
    reason: str | None
    wall_s: float

    @property
    def exit_status(self) -> int:
        """What the agent exits with, as a shell would: 128 + n for signal n; never 0 unless COMPLETED."""
        if self.signal is not None:
            return 128 + self.signal
        return self.exit_code or (0 if self.state is State.COMPLETED else 1)


class Inbox:
    """Signals sent to this process, in the order they came; a socket wakes whoever waits."""

    def __init__(self) -> None:
        self._received: list[signal.Signals] = []
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.settimeout(0)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the relayed signals, and wake up when a child ends, until the block is left."""
        caught = (*_RELAYED, signal.SIGCHLD)
        before = {number: signal.signal(number, self._note) for number in caught}
        wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._reader.close()
            self._writer.close()

    def wait(self, timeout_s: float) -> list[signal.Signals]:
        """Return what arrived within *timeout_s*, as soon as something did."""
        if not self._received:
            select.select([self._reader], [], [], max(0.0, timeout_s))
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass
        arrived, self._received = self._received, []
        return arrived

    def _note(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._received.append(signal.Signals(number))


@dataclass(slots=True)
class _Stop:
    """Why the workload is being ended, and when patience ends."""

    state: State
    reason: str
    kill_at: float


def supervise(
    ranks: Sequence[Rank],
    inbox: Inbox,
    *,
    walltime_s: float | None,
    grace_s: float,
    tell: Callable[..., None],
    on_tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Start *ranks* and return when all have ended.

    Signals that reach this process are passed on; one that asks to end, the walltime, or the failure of one rank
    ends all of them: SIGTERM, then SIGKILL after *grace_s*. *tell* journals an event by name; *on_tick* is called
    about twice a second. Each rank leads its own session, so what it started ends with it.
    """
    started = time.monotonic()
    try:
        processes = _start(ranks)
    except OSError as error:
        reason = f"cannot start {error.filename or ranks[0].argv[0]}: {error.strerror}"
        return Outcome(state=State.FAILED, exit_code=_CANNOT_START, signal=None, reason=reason, wall_s=0.0)
    tell("workload_started", argv=list(ranks[0].argv), pids=[process.pid for process in processes])
    stop: _Stop | None = None
    while None in [process.poll() for process in processes]:  # a list: every one must be asked
        now = time.monotonic()
        if stop is None:
            stop = _reason_to_stop(processes, now - started, walltime_s, now + grace_s)
            if stop:
                _send(processes, signal.SIGTERM)
        elif now >= stop.kill_at:
            tell("signal", signal="SIGKILL", reason=f"still running {grace_s:g} s after SIGTERM")
            _send(processes, signal.SIGKILL)
            stop.kill_at = float("inf")
        for number in inbox.wait(_wait_s(now, started, walltime_s, stop)):
            tell("signal", signal=number.name, reason="received and passed on")
            _send(processes, number)
            if number in _ENDS_THE_RUN and stop is None:
                stop = _Stop(State.CANCELLED, f"cancelled by {number.name}", time.monotonic() + grace_s)
        on_tick()
    _send(processes, signal.SIGKILL)  # what the ranks left behind
    return _judge(processes, stop, time.monotonic() - started)


def _start(ranks: Sequence[Rank]) -> list[subprocess.Popen[bytes]]:
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
    except OSError:
        _send(processes, signal.SIGKILL)
        for process in processes:
            process.wait()
        raise
    return processes


def _reason_to_stop(
    processes: Sequence[subprocess.Popen[bytes]], elapsed_s: float, walltime_s: float | None, kill_at: float
) -> _Stop | None:
    if walltime_s is not None and elapsed_s >= walltime_s:
        return _Stop(State.TIMEOUT, f"walltime of {walltime_s:g} s reached", kill_at)
    for rank, process in enumerate(processes):
        if process.returncode:
            return _Stop(State.FAILED, f"rank {rank}: {_how(process.returncode)}", kill_at)
    return None


def _wait_s(now: float, started: float, walltime_s: float | None, stop: _Stop | None) -> float:
    due = [now + _TICK_S]
    if stop is not None:
        due.append(stop.kill_at)
    elif walltime_s is not None:
        due.append(started + walltime_s)
    return min(due) - now


def _send(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):  # nobody is left in that session's group
            continue


def _judge(processes: Sequence[subprocess.Popen[bytes]], stop: _Stop | None, wall_s: float) -> Outcome:
    codes = [process.returncode for process in processes]
    failed = [(rank, code) for rank, code in enumerate(codes) if code]
    # The rank that failed first is the one that made us stop the others; it is found by its code, not by SIGTERM's.
    rank, code = next(((r, c) for r, c in failed if c != -signal.SIGTERM), failed[0] if failed else (0, 0))
    where = f"rank {rank}: " if len(codes) > 1 else ""
    state = State.FAILED if failed else State.COMPLETED
    reason = where + _how(code) if failed else None
    if stop is not None and stop.state is not State.FAILED:
        state, reason = stop.state, stop.reason
    return Outcome(
        state=state,
        exit_code=None if code < 0 else code,
        signal=-code if code < 0 else None,
        reason=reason,
        wall_s=wall_s,
    )


def _how(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
