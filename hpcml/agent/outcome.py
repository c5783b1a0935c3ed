"""How a workload ended, by the exit codes of its ranks and why they were stopped, and what is journalled of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hpcml.model.state import State

LEFT_AT_CHECKPOINT = 75  # EX_TEMPFAIL of sysexits.h: "run me again", which hpcml_client's checkpoints exit with
GOOD = (0, LEFT_AT_CHECKPOINT)  # exit codes of a rank that did not fail
OBEYED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # of one that SIGTERM ended, by itself or through a shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a workload ended.

    `exit_code` is None where a signal ended it, `signal` is None otherwise. `reason` is None for COMPLETED, unless what
    the program reported is incomplete (`history.cut_short`); `wall_s` is from the start of the first rank to the end of
    the last.
    """

    state: State
    exit_code: int | None
    signal: int | None
    reason: str | None
    wall_s: float
    checkpointed: bool = False  # every rank left at a checkpoint, or had nothing left to do
    interrupted: bool = False  # by a signal from outside, whose cause this process cannot know
    was_refused: bool = False  # the machine could start nothing at that moment, whatever it was
    codes: Sequence[int] = ()  # of the ranks; below zero: ended by that signal
    stood_still_s: float = 0.0  # of `wall_s`, in which the agent did nothing either: suspended, say
    most_held_mb: float | None = None  # memory that one process of the ranks held at most; None: none was started

    @property
    def exit_status(self) -> int:
        """The exit status of the agent, as a shell's: 128 + n for signal n; 0 only for COMPLETED.

        It is never 75, the status of a program that stopped at a checkpoint: the agent exits with that only for a run
        that was put back into the queue.
        """
        if self.signal is not None:
            return 128 + self.signal
        if self.exit_code in (None, *GOOD):
            return 0 if self.state is State.COMPLETED else 1
        return self.exit_code

    @property
    def failed_ranks(self) -> list[int]:
        """The ranks that failed by themselves, or, where there are none, those that SIGTERM ended."""
        failed = [rank for rank, code in enumerate(self.codes) if code not in GOOD]
        return [rank for rank in failed if self.codes[rank] not in OBEYED] or failed


@dataclass(slots=True)
class Stop:
    """Why the workload is being ended, and when it is killed (time of the monotonic clock)."""

    state: State
    reason: str
    kill_at: float
    from_outside: bool = False
    is_elsewhere: bool = False  # the failure of which it is the consequence, and the better word


def first_failure(codes: Sequence[int | None]) -> tuple[int, int] | None:
    """Return the first failed rank and its exit code; None where all ended well, at a checkpoint, or not yet (None)."""
    return next(((rank, code) for rank, code in enumerate(codes) if code is not None and code not in GOOD), None)


def judge(codes: Sequence[int], stop: Stop | None, *, warned: bool, wall_s: float) -> Outcome:
    """Return the outcome for the exit *codes* of all ranks and the *stop* that ended them, if any.

    A negative code is a signal, as in `subprocess`. *warned* tells whether the program was told to leave a checkpoint.
    The first rank that failed by itself gives code and reason; ranks that SIGTERM ended are taken only where there is
    no other. A stop for the walltime, a cancellation or a failure elsewhere goes before failures.

    >>> judge([0, 1], None, warned=False, wall_s=9.0).reason
    'rank 1: exit status 1'
    """
    checkpointed = LEFT_AT_CHECKPOINT in codes and all(code in GOOD for code in codes)
    # The rank that failed first is the one that made us stop the others; it is found by its code, not by SIGTERM's.
    failed = [(rank, code) for rank, code in enumerate(codes) if code not in GOOD]
    rank, code = next((pair for pair in failed if pair[1] != -signal.SIGTERM), failed[0] if failed else (0, 0))
    state, reason = State.COMPLETED, None
    if failed:
        state, reason = State.FAILED, (f"rank {rank}: " if len(codes) > 1 else "") + how(code)
    if checkpointed:
        code = LEFT_AT_CHECKPOINT
        state, reason = State.TIMEOUT, "left at a checkpoint" + (" before the walltime" if warned else "")
    if stop is not None and (stop.state is not State.FAILED or stop.from_outside or stop.is_elsewhere):
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
    """Return an exit code of `subprocess` in words.

    >>> how(1), how(-9)
    ('exit status 1', 'killed by SIGKILL')
    """
    if code > 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # most of the real-time signals have no name
        return f"killed by signal {-code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an attempt ended, as far as the agent's process must know to go on with the next run, or to exit."""

    status: int  # what it exits with, if this was its only run
    waits: bool = False  # it has been put back into the queue
    interrupted: bool = False  # by a signal that was meant for the whole job


def tell_end(tell: Callable[..., None], event: str, outcome: Outcome, **more: object) -> None:
    """Journal *event* with the outcome as its details; *more* is added to them."""
    tell(
        event,
        state=outcome.state.value,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        wall_s=outcome.wall_s,
        checkpointed=outcome.checkpointed,
        **({"stood_still_s": outcome.stood_still_s} if outcome.stood_still_s else {}),
        **more,
    )


class Unharmed:
    """Keeps our own trouble away from the workload: it is journalled, once for each kind, and life goes on."""

    def __init__(self, event: Callable[[str, Mapping[str, object]], None]) -> None:
        self._event = event
        self._told: set[str] = set()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Do the block, and journal its error, of which *what* is the kind."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the workload must not die of it
            if what not in self._told:
                self._told.add(what)
                self._event("agent_trouble", {"what": what, "error": repr(error)})
