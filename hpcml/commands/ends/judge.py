"""Rules for what a scheduler's answer means for a run whose journals leave its state open.

Pure functions; ``hpcml status`` and ``hpcml sync`` apply them and journal the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcml.model.failure_causes import Cause
from hpcml.model.records import Known, RunRecord, spell_job
from hpcml.model.state import State
from hpcml.runs.liveness import FORGOTTEN_SILENCE_S
from hpcml.runs.state import EventName

ACCOUNTED_WITHIN_S = 3600.0  # the end of a job, by an accounting that was behind
_MAY_RUN_AGAIN = frozenset({State.NODE_FAIL, State.PREEMPTED, State.CANCELLED})
FORGOTTEN = Known(state=State.LOST, raw="forgotten", is_live=False)  # kept as the word of who was asked in vain
_NO_EXIT = ("0:0", "0")  # Slurm's and PBS's, also of jobs that were cancelled before they began
_LOST_OUTPUT = ("120:0", "120")  # Python's, where what it had printed could not be written at its end
_NOT_ITS_OWN = frozenset({State.TIMEOUT, State.OUT_OF_MEMORY, State.FAILED, State.COMPLETED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of a run besides its record and its scheduler's last answer.

    `quiet_s` is infinite where nothing was ever written into its journals, and no agent gave a sign of life.
    """

    is_cancelled: bool = False  # somebody asked for its end
    quiet_s: float = float("inf")  # since anything was written into its journals, or an agent's last sign of life
    ran_as: str | None = None  # the job that its last attempt says it started in
    was_final_before: bool = False  # the word before this one said that the job had ended, too
    never: str | None = None  # why what a waiting run waits for cannot come true any more
    not_started: str | None = None  # what the job's shell, or the agent, complained of before the agent told anything
    untold: tuple[int, ...] = ()  # nodes of its last attempt whose agents began, and told nothing of an end


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingEvent:
    """An event to be journalled (`name`, `details`), and the attempt that it belongs to.

    *otherwise* is the cause of the end where nothing that was printed tells another.
    """

    attempt: int
    name: str
    details: Mapping[str, Any] = field(default_factory=dict)
    otherwise: Cause = Cause.UNKNOWN

    @property
    def is_end(self) -> bool:
        """Whether the run has ended by it, rather than waits again."""
        return self.name != EventName.SUBMITTED


def by_scheduler(record: RunRecord, known: Known | None, about: Circumstances) -> MissingEvent | None:
    """Return the event that a scheduler's fresh answer means for a run that has not ended, or not settled; None: wait.

    The run's own journals go first: they must have been read before. *known* None means that the scheduler has
    forgotten the job, which counts as lost only once the journals have been quiet for two minutes. A job that ended
    well, or whose state may be of an earlier start, is believed at the second answer, since its agent's last words may
    still be on their way through a network file system.
    """
    has_begun = record.state is not State.PENDING or not record.is_settled
    if known is None or (known.never_began and has_begun):  # the accounting may not have heard of it yet
        job = "" if record.job_id is None else f" {spell_job(record.job_id, record.array_index)}"
        return _unknown(record, about, f"{record.scheduler} has forgotten job{job}")
    if not known.state.is_final:
        return _requeued(record, known, about)
    if known.state is State.LOST:
        return _unaccounted(record, known, about)
    if _may_yet_speak(record, known, about):
        return None
    if not record.is_settled:
        return _settled(record, known, about)
    return _never_began(record, known, about) if record.state is State.PENDING else _ended(record, known, about)


def _requeued(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent | None:
    """Tell whether a job that had started waits again: only the queue itself is trusted, the accounting is late."""
    had_started = record.state is State.RUNNING or not record.is_settled
    if known.state is not State.PENDING or not known.is_live or not had_started or about.ran_as != record.job_id:
        return None
    details = {"why": f"requeued by {record.scheduler}", "by": "collect"}
    return MissingEvent(attempt=record.attempt + 1, name=EventName.SUBMITTED, details=details)


def _may_yet_speak(record: RunRecord, known: Known, about: Circumstances) -> bool:
    """Tell whether one more word is worth waiting for.

    A job that ended well has an agent that said so, which other hosts may see later. And what the accounting says of a
    job that may be queued again can be of its past.
    """
    waits_again = record.attempt > 0 and record.state is State.PENDING
    may_be_past = not known.is_live and (waits_again or known.state in _MAY_RUN_AGAIN)
    is_doubtful = may_be_past or (known.state is State.COMPLETED and record.is_settled)
    return is_doubtful and not about.was_final_before


def _unaccounted(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent | None:
    """Return the end of a run whose job is gone, and of whose end the accounting was not told; None while it may be.

    What was cancelled has its reason. Of any other job that ran the accounting hears minutes later why it ended, or
    never. Of one that waited nothing is known: it has nobody who would give a sign of life.
    """
    has_reason = about.is_cancelled and record.is_settled
    is_overdue = record.state is not State.PENDING and about.quiet_s >= ACCOUNTED_WITHIN_S
    return (
        _unknown(record, about, _said(record, known)) if about.was_final_before and (has_reason or is_overdue) else None
    )


def _unknown(record: RunRecord, about: Circumstances, forgotten: str) -> MissingEvent | None:
    """Return the end of a run whose scheduler does not know it; None while its journals may still grow."""
    if not record.is_settled:
        details = {"state": State.CANCELLED.value, "raw": None, "reason": f"{record.reason}; {forgotten}"}
        return _missing(record, EventName.ENDED_BY_SCHEDULER, {**details, "cause": Cause.CANCELLED.value})
    if about.is_cancelled:
        return _missing(record, EventName.CANCELLED, {"reason": "cancelled"})
    if about.quiet_s < FORGOTTEN_SILENCE_S:
        return None
    return _missing(record, EventName.LOST, {"reason": f"{forgotten} and it recorded no outcome"})


def _settled(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent:
    """Return the end of a run that a signal from outside ended, with the reason that its scheduler gives.

    Where the scheduler knows only that the job failed or ended, somebody else sent the signal: the run counts as
    cancelled, or as failed where its agent was told that another node of the job had failed, or where that of another
    node was killed, for which Slurm's srun ends the others.
    """
    said = _said(record, known)
    if known.state is State.FAILED and about.untold and not about.is_cancelled:
        nodes = ", ".join(map(str, about.untold))
        reason = f"{said}{_with_code(known)}; the agent of node {nodes} told no end"
        return _ended_as(record, known, State.FAILED, reason, otherwise=Cause.AGENT_KILLED)
    reason = f"{said}; {record.reason or 'ended by a signal'}"
    if known.state not in (State.FAILED, State.COMPLETED):
        return _ended_as(record, known, known.state, reason)
    if record.state is State.FAILED:
        return _ended_as(record, known, State.FAILED, record.reason)
    return _ended_as(record, known, State.CANCELLED, reason, cause=Cause.CANCELLED)


def _never_began(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent:
    """Return the end of a run that still waited when its job ended.

    What it needed failed, its turn in a shared job did not come, or the job ended before its agent started.
    """
    state = State.CANCELLED if known.state in _NOT_ITS_OWN else known.state
    if about.never is not None and not about.is_cancelled:
        reason = f"{_said(record, known)}; never ran: {about.never}"
        return _ended_as(record, known, state, reason, cause=Cause.DEPENDENCY)
    if not record.is_shared:
        return _ended(record, known, about)
    # nobody wanted it ended, unless it was cancelled: it never got to start
    cause_of_others = Cause.SUBMISSION if known.state in _NOT_ITS_OWN else None
    reason = f"{_said(record, known)}; the job is shared, and this run's turn had not come"
    return _ended_as(record, known, state, reason, cause=Cause.CANCELLED if about.is_cancelled else cause_of_others)


def _ended(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent:
    """Return the end of a run whose job has ended although its journals tell of none.

    A job that ended well is a failure here, since its agent would have recorded the outcome.
    """
    state = State.FAILED if known.state is State.COMPLETED else known.state
    if about.is_cancelled and state is State.FAILED:
        state = State.CANCELLED
    never = ""
    if state is State.FAILED and record.state is not State.RUNNING:
        full = "its log could not be written: is the disk full, or a quota used up?"
        guess = full if known.exit_code in _LOST_OUTPUT else "does the node see the run directory?"
        never = f"; it never started: {about.not_started or guess}"
    # The job's process is the agent, or waits for it: one that ran and was killed has told no end of its program
    was_killed = record.state is State.RUNNING and state is State.FAILED and known.was_killed
    otherwise = Cause.AGENT_KILLED if was_killed else Cause.UNKNOWN
    return _ended_as(record, known, state, f"{_said(record, known)}{_with_code(known)}{never}", otherwise=otherwise)


def _ended_as(
    record: RunRecord,
    known: Known,
    state: State,
    reason: str | None,
    *,
    cause: Cause | None = None,
    otherwise: Cause = Cause.UNKNOWN,
) -> MissingEvent:
    """Return the end with what the scheduler counted of the job, but for one that ran others too."""
    details: dict[str, Any] = {"state": state.value, "raw": known.raw, "reason": reason}
    if not record.is_shared and record.state is not State.PENDING:
        counted = {"exit_status": known.exit_code, **({} if known.used is None else asdict(known.used))}
        details |= {name: value for name, value in counted.items() if value is not None}
    if cause is not None:
        details["cause"] = cause.value
    return MissingEvent(attempt=record.attempt, name=EventName.ENDED_BY_SCHEDULER, details=details, otherwise=otherwise)


def _with_code(known: Known) -> str:
    """Return the exit code in words; a 0 of a job that did not end by itself, or never began, is none."""
    is_none = known.exit_code in (None, *_NO_EXIT) and known.state is not State.COMPLETED
    return "" if is_none or known.exit_code is None else f", exit code {known.exit_code}"


def _said(record: RunRecord, known: Known) -> str:
    return f"{record.scheduler} says {known.raw}" + (f" ({known.reason})" if known.reason else "")


def _missing(record: RunRecord, name: str, details: Mapping[str, Any]) -> MissingEvent:
    return MissingEvent(attempt=record.attempt, name=name, details=details)
