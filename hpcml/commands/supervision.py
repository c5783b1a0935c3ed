"""Which process supervises a run on this machine: its agent, its queue, or none any more, so that the run is lost."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpcml.commands.reconcile import MissingEvent
from hpcml.model.failure_causes import Cause
from hpcml.model.record_keys import begun_at
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.runs import dependency
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.dependency import Outlook
from hpcml.runs.journal import Chunk, Event, events
from hpcml.runs.layout import RunDir
from hpcml.runs.liveness import Liveness, ProcessIdentity, liveness_of
from hpcml.runs.state import EventName, RunFold, read_journals
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.local.submitter import is_tended, queue_liveness

_SUBMISSION_GRACE_S = 600.0  # between writing a run down and its ticket


def judge_unsupervised(
    record: RunRecord,
    run_dir: RunDir,
    now: datetime,
    *,
    is_being_submitted: bool,
    submissions: Path,
    read: Callable[[], Mapping[str, Chunk]],
    ours: ProcessIdentity,
) -> MissingEvent | None:
    """Return the event that ends a run that no process supervises any more; None while one does, or might.

    *read* returns what its journals say (`read_journals`), and *ours* is the calling process.

    Of runs on this machine alone, and only where their processes can be seen from here: those of another host, or of
    another PID namespace, may live. Such a run stays as it is, and so does one that waits in a queue that was killed:
    that is started again from the files in *submissions*.
    """
    is_local = record.scheduler == "local"
    if record.state is State.RUNNING and (is_local or record.job_id is None):  # without a ticket: its start is known
        return _running_here(record, last_start_in(read()), ours)
    if record.job_id is None:
        return None if is_being_submitted else _never_submitted(record, now)
    if not is_local or not run_dir.journals.is_dir():
        return None
    return _waiting_here(record, run_dir, list(read().values()), submissions, ours)


def has_live_queue(tickets: Sequence[Ticket]) -> bool:
    """Tell whether any queue that the local *tickets* wait in is alive, or may be, to start the runs that wait."""
    queues = {ticket.job_id: ticket.queue for ticket in tickets}
    return any(queue_liveness(job_id, queue) is not Liveness.DEAD for job_id, queue in queues.items())


def _running_here(record: RunRecord, started: Event | None, ours: ProcessIdentity) -> MissingEvent | None:
    if started is None or agent_liveness(started, ours) is not Liveness.DEAD:
        return None
    why = "its agent ended without recording an outcome (killed, or the machine restarted)"
    return _lost(record, why, cause=Cause.AGENT_KILLED)


def _waiting_here(
    record: RunRecord, run_dir: RunDir, chunks: Sequence[Chunk], submissions: Path, ours: ProcessIdentity
) -> MissingEvent | None:
    """Return the end of a run whose queue on this machine has ended before it started; None while one may start it."""
    if why := why_never(record, run_dir):
        return _in_vain(record, why)
    if _queue_liveness(record, chunks, ours) is not Liveness.DEAD:
        return None
    if is_cancelled(run_dir):
        return MissingEvent(
            attempt=record.attempt, name=EventName.CANCELLED, details={"reason": "cancelled before it started"}
        )
    if is_tended(submissions, record.job_id or ""):
        return None
    return _lost(record, "its queue ended before it started")


def why_never(record: RunRecord, run_dir: RunDir) -> str | None:
    """Return why the waiting run of *record* will never start, by what became of those it waits for; None: it may."""
    text = record.params.get("resources.dependency")
    if not isinstance(text, str):
        return None
    outlook, why = dependency.look(text, run_dir.path.parent.parent)
    return why if outlook is Outlook.NEVER else None


def _in_vain(record: RunRecord, why: str) -> MissingEvent:
    details = {"state": State.CANCELLED.value, "raw": None, "reason": f"never ran: {why}"}
    return MissingEvent(
        attempt=record.attempt,
        name=EventName.ENDED_BY_SCHEDULER,
        details={**details, "cause": Cause.DEPENDENCY.value},
    )


def _never_submitted(record: RunRecord, now: datetime) -> MissingEvent | None:
    """Return the end of a run that has no ticket ten minutes after it was written down; None before."""
    written = begun_at(record.submitted_at, None)
    if written is None or now.timestamp() - written < _SUBMISSION_GRACE_S:
        return None
    return _lost(record, "written down but never submitted: hpcml run was interrupted")


def _lost(record: RunRecord, reason: str, *, cause: Cause = Cause.UNKNOWN) -> MissingEvent:
    return MissingEvent(attempt=record.attempt, name=EventName.LOST, details={"reason": reason, "cause": cause.value})


def _last(chunks: Sequence[Chunk], name: str) -> Event | None:
    """Return the event called *name* of the latest attempt that has one; None without any."""
    found = [(chunk.header.attempt, event) for chunk in chunks if chunk.header for event in events([chunk], name)]
    return max(found, key=lambda entry: entry[0])[1] if found else None


def last_start(run_dir: RunDir) -> Event | None:
    """Return the event with which the last attempt began, as its agent wrote it; None where no attempt has begun."""
    return last_start_in(read_journals(run_dir))


def last_start_in(journals: Mapping[str, Chunk]) -> Event | None:
    """Return the start of the last attempt that *journals* tell of (`read_journals`), as `last_start` does."""
    return _last(list(journals.values()), EventName.ATTEMPT_STARTED)


def is_being_requeued(told: RunFold) -> bool:
    """Tell whether an agent has begun to put the run back into the queue, names no job yet, and may still be at it."""
    latest = max(told, key=lambda attempt: attempt.number, default=None)
    if latest is None or not latest.is_requeue or latest.jobs:
        return False
    starts = [start for attempt in told if attempt.number < latest.number for start in attempt.starts]
    agents = [ProcessIdentity.from_details(start.details) for start in starts[-1:]]
    return any(agent is not None and liveness_of(agent) is not Liveness.DEAD for agent in agents)


def agent_liveness(started: Event, ours: ProcessIdentity | None = None) -> Liveness:
    """Return whether the agent that journalled *started* still runs; *ours* as in `liveness_of`.

    UNKNOWN where its process cannot be seen from here, and for events of older versions that do not name the process.
    """
    agent = ProcessIdentity.from_details(started.details)
    return Liveness.UNKNOWN if agent is None else liveness_of(agent, ours)


def _queue_liveness(record: RunRecord, chunks: Sequence[Chunk], ours: ProcessIdentity) -> Liveness:
    """Return whether the queue lives that the run waits in, as it was told by whoever started the queue."""
    told = [
        (chunk.header.host, event.details)
        for chunk in chunks
        if chunk.header
        for event in events([chunk], EventName.SUBMITTED)
    ]
    for _, details in told:
        process = ProcessIdentity.from_details(details["queue"]) if isinstance(details.get("queue"), dict) else None
        if process is not None and details.get("job_id") == record.job_id:
            return liveness_of(process, ours)
    is_of_here = socket.gethostname() in {host for host, _ in told}  # an older version told the id alone
    return queue_liveness(record.job_id or "") if is_of_here else Liveness.UNKNOWN
