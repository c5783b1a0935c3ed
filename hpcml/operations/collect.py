"""What happened to the runs, brought into the store: journals read on, and runs that nobody tends any more found out.

The run directories are the truth: a verdict reached here is journalled in them first, then read from there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from hpcml.schedulers.submitter import Known
from hpcml.states import State
from hpcml.store.engine import Engine, open_store
from hpcml.store.ingest import IngestReport, ingest_all, ingest_run
from hpcml.store.queries import find_runs
from hpcml_client.journal import JournalWriter

# For each run that was asked about: what its scheduler knows, or None if it has forgotten it. A run whose scheduler
# gave no answer is left out.
Ask = Callable[[Sequence[RunRecord]], Mapping[str, Known | None]]
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


def collect(engine: Engine, places: Places, ask: Ask | None = None) -> IngestReport:
    """Bring every run directory below ``places.runs`` into the store; as often as you like.

    With *ask* the schedulers are asked for the runs that have not ended; without it only this machine is looked at.
    """
    report = ingest_all(engine, places.runs)
    unfinished = find_runs(engine, states=(State.PENDING, State.RUNNING))
    known = ask(unfinished) if ask is not None else {}
    for record in unfinished:
        run_dir = RunDir(Path(record.path))
        verdict = judge(record, run_dir, datetime.now().astimezone())
        if record.uid in known:
            verdict = verdict_of_scheduler(record, known[record.uid], run_dir)
        if verdict is not None:
            with JournalWriter.open(
                str(run_dir.journals), run=record.uid, attempt=record.attempt, writer="collect"
            ) as journal:
                journal.event(verdict.name, verdict.details)
            run_dir.cancel_mark.unlink(missing_ok=True)  # it has ended: whoever submits job.sh again wants it to run
            ingest_run(engine, run_dir)
    return report


def verdict_of_scheduler(record: RunRecord, known: Known | None, run_dir: RunDir) -> Event | None:
    """Return the event that a scheduler's word means for a run that had not ended; None while it may go on.

    The run's own words go first: they are ingested before this is asked. *known* None: the job is forgotten.
    """
    if known is None:
        if run_dir.cancel_mark.exists():
            return _event("cancelled", "cancelled")
        return _event("lost", f"{record.scheduler} has forgotten job {record.job_id} and it recorded no outcome")
    if not known.state.is_final:
        return None
    state = State.FAILED if known.state is State.COMPLETED else known.state
    if run_dir.cancel_mark.exists() and state is State.FAILED:
        state = State.CANCELLED
    said = f"{record.scheduler} says {known.raw}" + (f" ({known.reason})" if known.reason else "")
    never = "" if record.state is State.RUNNING else "; it never started: does the node see the run directory?"
    never = never if state is State.FAILED else ""
    code = "" if known.exit_code is None else f", exit code {known.exit_code}"
    details = {"state": state.value, "raw": known.raw, "reason": f"{said}{code}{never}"}
    return Event(seq=0, t_s=0.0, name="ended_by_scheduler", details=details)


def judge(record: RunRecord, run_dir: RunDir, now: datetime) -> Event | None:
    """Return the event that ends a run that nobody tends any more; None while somebody does, or might.

    Of runs on this machine alone: what another host's processes do cannot be seen from here.
    """
    if record.job_id is None or record.scheduler != "local" or not run_dir.journals.is_dir():
        return _never_submitted(record, now) if record.job_id is None else None
    chunks = [read_journal(path) for path in run_dir.journal_files()]
    started = _last_start(chunks)
    if started is not None:
        if not is_here(started) or is_alive(started):
            return None
        return _event("lost", "its agent ended without recording an outcome (killed, or the machine restarted)")
    hosts = {chunk.header.host for chunk in chunks if chunk.header and chunk.header.writer == "launch"}
    if socket.gethostname() not in hosts or is_queue_alive(record.job_id):
        return None
    is_cancelled = run_dir.cancel_mark.exists()
    name, reason = ("cancelled", "cancelled") if is_cancelled else ("lost", "its queue ended")
    return _event(name, f"{reason} before it started")


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


def _event(name: str, reason: str) -> Event:
    return Event(seq=0, t_s=0.0, name=name, details={"reason": reason})
