"""What happened to the runs, brought into the store: journals read on, and runs that nobody tends any more found out.

The run directories are the truth: a verdict reached here is journalled in them first, then read from there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from hpcml.errors import ConfigError
from hpcml.journal import Chunk, Event, events, read_journal
from hpcml.places import Places
from hpcml.records import RunRecord
from hpcml.rundir import RunDir
from hpcml.schedulers.local import is_queue_alive
from hpcml.states import State
from hpcml.store.engine import Engine, open_store
from hpcml.store.ingest import IngestReport, ingest_all, ingest_run
from hpcml.store.queries import find_runs
from hpcml_client.journal import JournalWriter

_SUBMISSION_GRACE = timedelta(minutes=10)  # between writing a run down and its ticket


@contextmanager
def opened(places: Places) -> Iterator[Engine]:
    """Open the store, made at first use, and close it again."""
    if places.store_url == str(places.home / "store.db"):
        try:
            places.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"HPCML_HOME={places.home} cannot be made: {error.strerror} (choose another)") from error
    engine = open_store(places.store_url)
    try:
        yield engine
    finally:
        engine.dispose()


def collect(engine: Engine, places: Places) -> IngestReport:
    """Bring every run directory below ``places.runs`` into the store; as often as you like."""
    report = ingest_all(engine, places.runs)
    for record in find_runs(engine, states=(State.PENDING, State.RUNNING)):
        run_dir = RunDir(Path(record.path))
        verdict = judge(record, run_dir, datetime.now().astimezone())
        if verdict is not None:
            with JournalWriter.open(
                str(run_dir.journals), run=record.uid, attempt=record.attempt, writer="collect"
            ) as journal:
                journal.event(verdict.name, verdict.details)
            ingest_run(engine, run_dir)
    return report


def judge(record: RunRecord, run_dir: RunDir, now: datetime) -> Event | None:
    """Return the event that ends a run that nobody tends any more; None while somebody does, or might."""
    if record.scheduler != "local" or not run_dir.journals.is_dir():
        return _never_submitted(record, now) if record.job_id is None else None
    chunks = [read_journal(path) for path in run_dir.journal_files()]
    started = _last_start(chunks)
    if started is None:
        if record.job_id is not None and is_queue_alive(record.job_id):
            return None
        if run_dir.cancel_mark.exists():
            return _event("cancelled", "cancelled before it started")
        return _event("lost", "its queue ended before starting it") if record.job_id is not None else None
    if started.details.get("hostname") != socket.gethostname() or is_alive(started):
        return None
    return _event("lost", "its agent ended without recording an outcome (killed, or the machine restarted)")


def _never_submitted(record: RunRecord, now: datetime) -> Event | None:
    written = datetime.fromisoformat(record.submitted_at) if record.submitted_at else now
    if now - written < _SUBMISSION_GRACE:
        return None
    return _event("lost", "written down but never submitted: hpcml run was interrupted")


def _last_start(chunks: Sequence[Chunk]) -> Event | None:
    starts = [
        (chunk.header.attempt, event)
        for chunk in chunks
        if chunk.header
        for event in events([chunk], "attempt_started")
    ]
    return max(starts, key=lambda entry: entry[0])[1] if starts else None


def is_alive(started: Event) -> bool:
    """Tell whether the agent that journalled *started* still runs here; a recycled pid has another start time."""
    try:
        born = psutil.Process(int(started.details["pid"])).create_time()
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
    return abs(born - float(started.details["create_time"])) < 1.0


def _event(name: str, reason: str) -> Event:
    return Event(seq=0, t_s=0.0, name=name, details={"reason": reason})
