"""Rules for what a scheduler's answer means for a run whose journals leave its state open.

Pure functions; ``hpcml status`` and ``hpcml sync`` apply them and journal the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hpcml.model.failure_causes import Cause
from hpcml.model.records import Known, RunRecord, spell_job
from hpcml.model.state import State
from hpcml.runs.state import EventName

QUIET_S = 120.0  # a job that is not in the queue of *this* scheduler may run under another one: its journals would grow
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
    waits_in_vain: str | None = None  # why what it waits for cannot come true any more
    not_built_by: str | None = None  # the run that was to build its image, and has failed
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
        return _forgotten(record, about)
    if not known.state.is_final:
        return _requeued(record, known, about)
    if known.state is State.LOST:
        return _untold(record, known, about)
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


def _untold(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent | None:
    """Return the end of a run whose job is gone, and of whose end the accounting was not told; None while it may be.

    What was cancelled has its reason. Of any other job that ran the accounting hears minutes later why it ended, or
    never. Of one that waited nothing is known: it has nobody who would give a sign of life.
    """
    if not about.was_final_before:
        return None
    if not (about.is_cancelled and record.is_settled):
        has_begun = record.state is not State.PENDING
        if not has_begun or about.quiet_s < ACCOUNTED_WITHIN_S:
            return None
    return _unknown(record, about, _said(record, known))


def _forgotten(record: RunRecord, about: Circumstances) -> MissingEvent | None:
    """Return the end of a run whose job the scheduler has forgotten; None while its journals may still grow."""
    job = "" if record.job_id is None else f" {spell_job(record.job_id, record.array_index)}"
    return _unknown(record, about, f"{record.scheduler} has forgotten job{job}")


def _unknown(record: RunRecord, about: Circumstances, forgotten: str) -> MissingEvent | None:
    if not record.is_settled:
        details = {"state": State.CANCELLED.value, "raw": None, "reason": f"{record.reason}; {forgotten}"}
        return _missing(record, EventName.ENDED_BY_SCHEDULER, {**details, "cause": Cause.CANCELLED.value})
    if about.is_cancelled:
        return _missing(record, EventName.CANCELLED, {"reason": "cancelled"})
    if about.quiet_s < QUIET_S:
        return None
    return _missing(record, EventName.LOST, {"reason": f"{forgotten} and it recorded no outcome"})


def _settled(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent:
    """Return the end of a run that a signal from outside ended, with the reason that its scheduler gives.

    Where the scheduler knows only that the job failed or ended, somebody else sent the signal: the run counts as
    cancelled, or as failed where its agent was told that another node of the job had failed, or where that of another
    node was killed, for which Slurm's srun ends the others.
    """
    is_others = known.state in (State.FAILED, State.COMPLETED)
    if known.state is State.FAILED and about.untold and not about.is_cancelled:
        nodes = ", ".join(map(str, about.untold))
        reason = f"{_said(record, known)}{_with_code(known)}; the agent of node {nodes} told no end"
        details = {"state": State.FAILED.value, "raw": known.raw, "reason": reason, **_counted(record, known)}
        return replace(_missing(record, EventName.ENDED_BY_SCHEDULER, details), otherwise=Cause.AGENT_KILLED)
    if is_others and record.state is State.FAILED:
        details = {"state": State.FAILED.value, "raw": known.raw, "reason": record.reason, **_counted(record, known)}
        return _missing(record, EventName.ENDED_BY_SCHEDULER, details)
    state = State.CANCELLED if is_others else known.state
    reason = f"{_said(record, known)}; {record.reason or 'ended by a signal'}"
    details = {"state": state.value, "raw": known.raw, "reason": reason, **_counted(record, known)}
    if is_others:
        details["cause"] = Cause.CANCELLED.value
    return _missing(record, EventName.ENDED_BY_SCHEDULER, details)


def _never_began(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent:
    """Return the end of a run that still waited when its job ended.

    Its image was not built, its turn in a shared job did not come, or the job ended before its agent started.
    """
    if about.not_built_by is not None and not about.is_cancelled:
        return _without_image(record, known, about.not_built_by)
    if about.waits_in_vain is not None and not about.is_cancelled:
        return _in_vain(record, known, about.waits_in_vain)
    return _its_turn_never_came(record, known, about) if record.is_shared else _ended(record, known, about)


def _without_image(record: RunRecord, known: Known, builder: str) -> MissingEvent:
    state = State.CANCELLED if known.state in _NOT_ITS_OWN else known.state
    reason = f"{_said(record, known)}; its image was not built: hpcml logs {builder}"
    details = {"state": state.value, "raw": known.raw, "reason": reason, "cause": Cause.CONTAINER.value}
    return _missing(record, EventName.ENDED_BY_SCHEDULER, details)


def _in_vain(record: RunRecord, known: Known, why: str) -> MissingEvent:
    state = State.CANCELLED if known.state in _NOT_ITS_OWN else known.state
    details = {"state": state.value, "raw": known.raw, "reason": f"{_said(record, known)}; never ran: {why}"}
    return _missing(record, EventName.ENDED_BY_SCHEDULER, {**details, "cause": Cause.DEPENDENCY.value})


def _its_turn_never_came(record: RunRecord, known: Known, about: Circumstances) -> MissingEvent:
    state = State.CANCELLED if known.state in _NOT_ITS_OWN else known.state
    reason = f"{_said(record, known)}; the job is shared, and this run's turn had not come"
    details: dict[str, Any] = {"state": state.value, "raw": known.raw, "reason": reason}
    if about.is_cancelled:
        details["cause"] = Cause.CANCELLED.value
    elif known.state in _NOT_ITS_OWN:
        details["cause"] = Cause.SUBMISSION.value  # nobody wanted this run ended: it never got to start
    return _missing(record, EventName.ENDED_BY_SCHEDULER, details)


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
    reason = f"{_said(record, known)}{_with_code(known)}{never}"
    details = {"state": state.value, "raw": known.raw, "reason": reason, **_counted(record, known)}
    # The job's process is the agent, or waits for it: one that ran and was killed has told no end of its program
    was_killed = record.state is State.RUNNING and state is State.FAILED and known.was_killed
    missing = _missing(record, EventName.ENDED_BY_SCHEDULER, details)
    return replace(missing, otherwise=Cause.AGENT_KILLED) if was_killed else missing


def _counted(record: RunRecord, known: Known) -> dict[str, object]:
    """Return what the scheduler counted of the job, as details; nothing of a job that ran others too."""
    if record.is_shared or record.state is State.PENDING:
        return {}
    counted = {} if known.used is None else asdict(known.used)
    return {name: value for name, value in {"exit_status": known.exit_code, **counted}.items() if value is not None}


def _with_code(known: Known) -> str:
    """Return the exit code in words; a 0 of a job that did not end by itself, or never began, is none."""
    is_none = known.exit_code in (None, *_NO_EXIT) and known.state is not State.COMPLETED
    return "" if is_none or known.exit_code is None else f", exit code {known.exit_code}"


def _said(record: RunRecord, known: Known) -> str:
    return f"{record.scheduler} says {known.raw}" + (f" ({known.reason})" if known.reason else "")


def _missing(record: RunRecord, name: str, details: Mapping[str, Any]) -> MissingEvent:
    return MissingEvent(attempt=record.attempt, name=name, details=details)
