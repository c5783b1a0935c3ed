"""What is seen of a run whose end nobody recorded: its journals, and its processes on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hpcml.commands.ends.judge import Circumstances, MissingEvent, by_scheduler
from hpcml.commands.follow import Glimpse, Watcher
from hpcml.commands.logs import why_not_started
from hpcml.model.failure_causes import Cause
from hpcml.model.record_keys import begun_at
from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs import dependency
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.dependency import Outlook
from hpcml.runs.layout import RunDir, is_by_user
from hpcml.runs.liveness import FORGOTTEN_SILENCE_S, Liveness, ProcessIdentity, liveness_of
from hpcml.runs.state import EventName, RunEvent, RunFold, read_fold
from hpcml.schedulers.local.jobs import is_queued

_SUBMISSION_GRACE_S = 600.0  # between writing a run down and its ticket


def missing_end(
    record: RunRecord,
    places: Places,
    words: Mapping[str, Known | None],
    *,
    was_final_before: bool,
    is_being_submitted: bool,
) -> MissingEvent | None:
    """Return the event that the run has not told: its end, or that it waits again; None where it goes on.

    *words* are what schedulers said just now, by uid. Raises `HpcmlError` and `OSError` where its journals cannot be
    read, and where the run is being removed.
    """
    run_dir = RunDir(Path(record.path))
    if record.uid not in words:
        missing = _unsupervised(record, run_dir, places, is_being_submitted=is_being_submitted)
    elif _goes_on(record, words[record.uid]):
        return None
    else:
        missing = _by_word(record, run_dir, places, words, was_final_before=was_final_before)
    return missing if missing is not None and _still_stands(record, run_dir) else None


def _goes_on(record: RunRecord, known: Known | None) -> bool:
    """Tell whether its scheduler says that the run goes on: the usual answer, for which no file is opened."""
    return known is not None and (known.state is State.RUNNING or known.state is record.state is State.PENDING)


def _by_word(
    record: RunRecord, run_dir: RunDir, places: Places, words: Mapping[str, Known | None], *, was_final_before: bool
) -> MissingEvent | None:
    known, told = words[record.uid], read_fold(run_dir)
    started = _last_start(told)
    ran_as = None if started is None else started.details.get("job_id")
    if record.state is State.RUNNING and started is not None and ran_as is None:
        # by hand, outside any job: what the scheduler says of the job before it does not concern this attempt
        return _unsupervised(replace(record, scheduler="local"), run_dir, places, is_being_submitted=False)
    waits = record.state is State.PENDING
    may_not_have_started = waits and known is not None and known.state is State.FAILED
    about = Circumstances(
        is_cancelled=is_cancelled(run_dir),
        quiet_s=_quiet_s(run_dir),
        ran_as=None if ran_as is None else str(ran_as),
        was_final_before=was_final_before,
        never=why_never(record, run_dir) if waits else None,
        not_started=why_not_started(record, places.submissions) if may_not_have_started else None,
        untold=_untold(told, record.attempt),
    )
    return by_scheduler(record, known, about)


def _untold(told: RunFold, attempt: int) -> tuple[int, ...]:
    starts = next((one.unheard for one in told if one.number == attempt), [])
    nodes = (start.details.get("node") for start in starts)
    return tuple(sorted({node for node in nodes if isinstance(node, int)}))


def why_never(record: RunRecord, run_dir: RunDir) -> str | None:
    """Return why the waiting run of *record* will never start, by what became of those it waits for; None: it may."""
    text = record.params.get("resources.dependency")
    if not isinstance(text, str):
        return None
    outlook, why = dependency.look(text, run_dir.path.parent.parent)
    return why if outlook is Outlook.NEVER else None


def _still_stands(record: RunRecord, run_dir: RunDir) -> bool:
    """Tell whether the run still stands as *record* says: its own words that came meanwhile go first.

    While an agent puts the run back into the queue, or has just done so, the scheduler's word may be of the job before.
    """
    told = read_fold(run_dir)
    # ranks' journals, and those that the store leaves out, are looked at where these alone say something else
    if not _says(told, record) and not _says(Watcher(run_dir).look(), record):
        return False
    if (job := told.job) is not None and job.job_id != record.job_id:
        return False
    return not _is_being_requeued(told) or _quiet_s(run_dir) >= FORGOTTEN_SILENCE_S


def _says(seen: RunFold | Glimpse, record: RunRecord) -> bool:
    is_alike = (seen.state, seen.is_settled) == (record.state, record.is_settled)
    return is_alike and seen.attempt <= record.attempt


def _quiet_s(run_dir: RunDir) -> float:
    """Return for how long nobody has journalled anything and no agent has given a sign of life, which a log's time is.

    A program may report nothing for hours.
    """
    written = [path.stat().st_mtime for path in run_dir.journal_files() if not is_by_user(path.name)]
    beats = [path.stat().st_mtime for path in run_dir.agent_logs()]
    return time.time() - max(written + beats) if written or beats else float("inf")


# Runs that no scheduler was asked about: the processes of this machine tell.


def _unsupervised(
    record: RunRecord, run_dir: RunDir, places: Places, *, is_being_submitted: bool
) -> MissingEvent | None:
    """Return the event that ends a run that no process supervises any more; None while one does, or might.

    Of runs on this machine alone, and only where their processes can be seen from here: those of another host, or of
    another PID namespace, may live. Such a run stays as it is, and so does one that waits in a queue that was killed:
    that is started again from the files of its submission.
    """
    is_local = record.scheduler == "local"
    if record.state is State.RUNNING and (is_local or record.job_id is None):  # without a ticket: its start is known
        started = _last_start(read_fold(run_dir))
        if started is None or _agent_liveness(started) is not Liveness.DEAD:
            return None
        why = "its agent ended without recording an outcome (killed, or the machine restarted)"
        return _lost(record, why, cause=Cause.AGENT_KILLED)
    if record.job_id is None:
        written = begun_at(record.submitted_at, None)
        if is_being_submitted or written is None or time.time() - written < _SUBMISSION_GRACE_S:
            return None
        return _lost(record, "written down but never submitted: hpcml run was interrupted")
    return _waiting_here(record, run_dir, places) if is_local and run_dir.journals.is_dir() else None


def _waiting_here(record: RunRecord, run_dir: RunDir, places: Places) -> MissingEvent | None:
    """Return the end of a run whose queue on this machine has ended before it started; None while one may start it."""
    if why := why_never(record, run_dir):
        details = {"state": State.CANCELLED.value, "raw": None, "reason": f"never ran: {why}"}
        details["cause"] = Cause.DEPENDENCY.value
        return MissingEvent(attempt=record.attempt, name=EventName.ENDED_BY_SCHEDULER, details=details)
    if is_queued(places.submissions, record.job_id or "", record.array_index or 0):
        return None
    if is_cancelled(run_dir):
        details = {"reason": "cancelled before it started"}
        return MissingEvent(attempt=record.attempt, name=EventName.CANCELLED, details=details)
    return _lost(record, "its queue ended before it started")


def _lost(record: RunRecord, reason: str, *, cause: Cause = Cause.UNKNOWN) -> MissingEvent:
    return MissingEvent(attempt=record.attempt, name=EventName.LOST, details={"reason": reason, "cause": cause.value})


def _last_start(told: RunFold) -> RunEvent | None:
    """Return the event with which the last attempt began, as its agent wrote it; None where no attempt has begun."""
    return next((start for attempt in reversed(list(told)) for start in reversed(attempt.starts)), None)


def _is_being_requeued(told: RunFold) -> bool:
    """Tell whether an agent has begun to put the run back into the queue, names no job yet, and may still be at it."""
    latest = max(told, key=lambda attempt: attempt.number, default=None)
    if latest is None or not latest.is_requeue or latest.jobs:
        return False
    starts = [start for attempt in told if attempt.number < latest.number for start in attempt.starts]
    agents = [ProcessIdentity.from_details(start.details) for start in starts[-1:]]
    return any(agent is not None and liveness_of(agent) is not Liveness.DEAD for agent in agents)


def agent_liveness(run_dir: RunDir) -> Liveness | None:
    """Return whether the agent of the last attempt still runs; None where none has begun.

    UNKNOWN where its process cannot be seen from here.
    """
    started = _last_start(read_fold(run_dir))
    return None if started is None else _agent_liveness(started)


def _agent_liveness(started: RunEvent) -> Liveness:
    agent = ProcessIdentity.from_details(started.details)
    return Liveness.UNKNOWN if agent is None else liveness_of(agent)
