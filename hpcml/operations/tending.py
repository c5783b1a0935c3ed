"""Who tends a run on this machine: an agent, a queue, or nobody any more."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import datetime, timedelta

import psutil

from hpcml.journal import Chunk, Event, events, read_journal
from hpcml.operations.verdicts import Verdict
from hpcml.records import RunRecord
from hpcml.rundir import RunDir
from hpcml.schedulers.local import is_queue_alive
from hpcml.states import State

_SUBMISSION_GRACE = timedelta(minutes=10)  # between writing a run down and its ticket


def by_sight(record: RunRecord, run_dir: RunDir, now: datetime, *, is_being_submitted: bool) -> Verdict | None:
    """Return the event that ends a run that nobody tends any more; None while somebody does, or might.

    Of runs on this machine alone: what another host's processes do cannot be seen from here.
    """
    if record.job_id is None:
        return None if is_being_submitted else _never_submitted(record, now)
    if record.scheduler != "local" or not run_dir.journals.is_dir():
        return None
    chunks = [read_journal(path) for path in run_dir.journal_files()]
    return _running_here(record, chunks) if record.state is State.RUNNING else _waiting_here(record, run_dir, chunks)


def _running_here(record: RunRecord, chunks: Sequence[Chunk]) -> Verdict | None:
    started = _last(chunks, "attempt_started")
    if started is None or not is_here(started) or is_alive(started):
        return None
    return _lost(record, "its agent ended without recording an outcome (killed, or the machine restarted)")


def _waiting_here(record: RunRecord, run_dir: RunDir, chunks: Sequence[Chunk]) -> Verdict | None:
    hosts = {chunk.header.host for chunk in chunks if chunk.header and any(events([chunk], "submitted"))}
    if record.job_id is None or socket.gethostname() not in hosts or is_queue_alive(record.job_id):
        return None
    if run_dir.cancel_mark.exists():
        return Verdict(attempt=record.attempt, name="cancelled", details={"reason": "cancelled before it started"})
    return _lost(record, "its queue ended before it started")


def _never_submitted(record: RunRecord, now: datetime) -> Verdict | None:
    written = datetime.fromisoformat(record.submitted_at) if record.submitted_at else now
    if now - written < _SUBMISSION_GRACE:
        return None
    return _lost(record, "written down but never submitted: hpcml run was interrupted")


def _lost(record: RunRecord, reason: str) -> Verdict:
    return Verdict(attempt=record.attempt, name="lost", details={"reason": reason})


def _last(chunks: Sequence[Chunk], name: str) -> Event | None:
    found = [(chunk.header.attempt, event) for chunk in chunks if chunk.header for event in events([chunk], name)]
    return max(found, key=lambda entry: entry[0])[1] if found else None


def last_start(run_dir: RunDir) -> Event | None:
    """Return the start of the last attempt, as its agent told it."""
    return _last([read_journal(path) for path in run_dir.journal_files()], "attempt_started")


def is_here(started: Event) -> bool:
    """Tell whether the agent that journalled *started* was started on this machine."""
    return started.details.get("hostname") == socket.gethostname()


def is_alive(started: Event) -> bool:
    """Tell whether the agent that journalled *started* here still runs; a recycled pid has another start time."""
    try:
        born = psutil.Process(int(started.details["pid"])).create_time()
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
    return abs(born - float(started.details["create_time"])) < 1.0
