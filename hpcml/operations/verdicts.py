"""What a scheduler's word means for a run whose own journals leave its state open: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcml.causes import Cause
from hpcml.records import Known, RunRecord
from hpcml.states import State

QUIET_S = 120.0  # a job that is not in the queue of *this* scheduler may run under another one: its journals would grow
_MAY_RUN_AGAIN = frozenset({State.NODE_FAIL, State.PREEMPTED, State.CANCELLED})
_NOT_ITS_OWN = frozenset({State.TIMEOUT, State.OUT_OF_MEMORY, State.FAILED, State.COMPLETED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of a run besides its record and its scheduler's word."""

    is_cancelled: bool = False  # somebody asked for its end
    quiet_s: float = float("inf")  # since anything was written into its journals
    ran_as: str | None = None  # the job that its last attempt says it started in
    was_final_before: bool = False  # the word before this one said that the job had ended, too
    not_built_by: str | None = None  # the run that was to build its image, and has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An event to be journalled, and in which attempt."""

    attempt: int
    name: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_end(self) -> bool:
        """Whether the run has ended by it, rather than waits again."""
        return self.name != "submitted"


def by_scheduler(record: RunRecord, known: Known | None, about: Circumstances) -> Verdict | None:
    """Return what a scheduler's fresh word means for a run that has not ended, or not settled; None: wait.

    The run's own words go first: they are read before this is asked. *known* None: the job is forgotten.
    """
    if known is None:
        return _forgotten(record, about)
    if not known.state.is_final:
        return _requeued(record, known, about)
    if _may_yet_speak(record, known, about):
        return None
    if not record.is_settled:
        return _settled(record, known)
    return _never_began(record, known, about) if record.state is State.PENDING else _ended(record, known, about)


def _requeued(record: RunRecord, known: Known, about: Circumstances) -> Verdict | None:
    """Tell whether a job that had started waits again: only the queue itself is trusted, the accounting is late."""
    had_started = record.state is State.RUNNING or not record.is_settled
    if known.state is not State.PENDING or not known.is_live or not had_started or about.ran_as != record.job_id:
        return None
    details = {"why": f"requeued by {record.scheduler}", "by": "collect"}
    return Verdict(attempt=record.attempt + 1, name="submitted", details=details)


def _may_yet_speak(record: RunRecord, known: Known, about: Circumstances) -> bool:
    """Tell whether one more word is worth waiting for.

    A job that ended well has an agent that said so, which other hosts may see later. And what the accounting says of a
    job that may be queued again can be of its past.
    """
    waits_again = record.attempt > 0 and record.state is State.PENDING
    may_be_past = not known.is_live and (waits_again or known.state in _MAY_RUN_AGAIN)
    is_doubtful = may_be_past or (known.state is State.COMPLETED and record.is_settled)
    return is_doubtful and not about.was_final_before


def _forgotten(record: RunRecord, about: Circumstances) -> Verdict | None:
    forgotten = f"{record.scheduler} has forgotten job {record.job_id}"
    if not record.is_settled:
        details = {"state": State.CANCELLED.value, "raw": None, "reason": f"{record.reason}; {forgotten}"}
        return _verdict(record, "ended_by_scheduler", {**details, "cause": Cause.CANCELLED.value})
    if about.is_cancelled:
        return _verdict(record, "cancelled", {"reason": "cancelled"})
    if about.quiet_s < QUIET_S:
        return None
    return _verdict(record, "lost", {"reason": f"{forgotten} and it recorded no outcome"})


def _settled(record: RunRecord, known: Known) -> Verdict:
    """Say why a signal from outside ended the run: of itself the scheduler knows, of others only that it ended."""
    is_others = known.state in (State.FAILED, State.COMPLETED)
    state = State.CANCELLED if is_others else known.state
    reason = f"{_said(record, known)}; {record.reason or 'ended by a signal'}"
    details: dict[str, Any] = {"state": state.value, "raw": known.raw, "reason": reason}
    if is_others:
        details["cause"] = Cause.CANCELLED.value
    return _verdict(record, "ended_by_scheduler", details)


def _never_began(record: RunRecord, known: Known, about: Circumstances) -> Verdict:
    if about.not_built_by is not None and not about.is_cancelled:
        return _without_image(record, known, about.not_built_by)
    return _its_turn_never_came(record, known, about) if record.is_shared else _ended(record, known, about)


def _without_image(record: RunRecord, known: Known, builder: str) -> Verdict:
    state = State.CANCELLED if known.state in _NOT_ITS_OWN else known.state
    reason = f"{_said(record, known)}; its image was not built: hpcml logs --err {builder}"
    details = {"state": state.value, "raw": known.raw, "reason": reason, "cause": Cause.CONTAINER.value}
    return _verdict(record, "ended_by_scheduler", details)


def _its_turn_never_came(record: RunRecord, known: Known, about: Circumstances) -> Verdict:
    state = State.CANCELLED if known.state in _NOT_ITS_OWN else known.state
    reason = f"{_said(record, known)}; the job is shared, and this run's turn had not come"
    details: dict[str, Any] = {"state": state.value, "raw": known.raw, "reason": reason}
    if about.is_cancelled:
        details["cause"] = Cause.CANCELLED.value
    elif known.state in _NOT_ITS_OWN:
        details["cause"] = Cause.SUBMISSION.value  # nobody wanted this run ended: it never got to start
    return _verdict(record, "ended_by_scheduler", details)


def _ended(record: RunRecord, known: Known, about: Circumstances) -> Verdict:
    state = State.FAILED if known.state is State.COMPLETED else known.state
    if about.is_cancelled and state is State.FAILED:
        state = State.CANCELLED
    never = ""
    if state is State.FAILED and record.state is not State.RUNNING:
        never = "; it never started: does the node see the run directory?"
    code = "" if known.exit_code is None else f", exit code {known.exit_code}"
    details = {"state": state.value, "raw": known.raw, "reason": f"{_said(record, known)}{code}{never}"}
    return _verdict(record, "ended_by_scheduler", details)


def _said(record: RunRecord, known: Known) -> str:
    return f"{record.scheduler} says {known.raw}" + (f" ({known.reason})" if known.reason else "")


def _verdict(record: RunRecord, name: str, details: Mapping[str, Any]) -> Verdict:
    return Verdict(attempt=record.attempt, name=name, details=details)
