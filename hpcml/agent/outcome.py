"""How a workload ended, judged from how its ranks ended and why they were asked to."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from hpcml.states import State

LEFT_AT_CHECKPOINT = 75  # EX_TEMPFAIL of sysexits.h: "run me again", which hpcml_client's checkpoints exit with
_GOOD = (0, LEFT_AT_CHECKPOINT)
_OBEYED = (-signal.SIGTERM, 128 + signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a workload ended. `exit_code` is None where a signal ended it."""

    state: State
    exit_code: int | None
    signal: int | None
    reason: str | None
    wall_s: float
    checkpointed: bool = False  # every rank left at a checkpoint, or had nothing left to do
    interrupted: bool = False  # by a signal from outside, whose cause this process cannot know
    codes: Sequence[int] = ()  # of the ranks; below zero: ended by that signal

    @property
    def exit_status(self) -> int:
        """What the agent exits with, as a shell would: 128 + n for signal n; never 0 unless COMPLETED.

        Nor is it ever the status of a program that left at a checkpoint: that is for a run that was queued again.
        """
        if self.signal is not None:
            return 128 + self.signal
        if self.exit_code in (None, *_GOOD):
            return 0 if self.state is State.COMPLETED else 1
        return self.exit_code

    @property
    def failed_ranks(self) -> list[int]:
        """The ranks that failed by themselves, not because another one had."""
        failed = [rank for rank, code in enumerate(self.codes) if code not in _GOOD]
        return [rank for rank in failed if self.codes[rank] not in _OBEYED] or failed


@dataclass(slots=True)
class Stop:
    """Why the workload is being ended, and when patience ends."""

    state: State
    reason: str
    kill_at: float
    from_outside: bool = False


def first_failure(codes: Sequence[int | None]) -> tuple[int, int] | None:
    """Return the first rank, and its code, that has ended neither well nor at a checkpoint."""
    return next(((rank, code) for rank, code in enumerate(codes) if code is not None and code not in _GOOD), None)


def judge(codes: Sequence[int], stop: Stop | None, *, warned: bool, wall_s: float) -> Outcome:
    """Return what the *codes* of all ranks mean, given why they were stopped, if they were."""
    checkpointed = LEFT_AT_CHECKPOINT in codes and all(code in _GOOD for code in codes)
    # The rank that failed first is the one that made us stop the others; it is found by its code, not by SIGTERM's.
    failed = [(rank, code) for rank, code in enumerate(codes) if code not in _GOOD]
    rank, code = next((pair for pair in failed if pair[1] != -signal.SIGTERM), failed[0] if failed else (0, 0))
    state, reason = State.COMPLETED, None
    if failed:
        state, reason = State.FAILED, (f"rank {rank}: " if len(codes) > 1 else "") + how(code)
    if checkpointed:
        code = LEFT_AT_CHECKPOINT
        state, reason = State.TIMEOUT, "left at a checkpoint" + (" before the walltime" if warned else "")
    if stop is not None and stop.state is not State.FAILED:
        state, reason = stop.state, stop.reason + (", left at a checkpoint" if checkpointed else "")
    return Outcome(
        state=state,
        exit_code=None if code < 0 else code,
        signal=-code if code < 0 else None,
        reason=reason,
        wall_s=wall_s,
        checkpointed=checkpointed,
        interrupted=stop is not None and stop.from_outside,
        codes=tuple(codes),
    )


def how(code: int) -> str:
    """Return the words for an exit code as `subprocess` has it."""
    return f"exit status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
