"""Submissions whose process died: undone where nothing was sent, finished where something may have been.

Nothing is submitted twice: a run's own journals are believed first, then the scheduler, which is asked for the batch
by its token; only what it surely does not have is sent again. Nothing is lost: what cannot be known now stays open.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcml.cluster import Cluster, SchedulerName
from hpcml.errors import ConfigError, HpcmlError, SubmissionError
from hpcml.journal import Event, read_journal
from hpcml.manifest import read_manifest
from hpcml.operations import intent as intents
from hpcml.operations.backends import Backends
from hpcml.operations.collect import opened as opened_store
from hpcml.operations.intent import Intent, OpenIntent, Phase, PlannedBatch
from hpcml.operations.submit import record, tell
from hpcml.places import Places
from hpcml.rundir import RunDir, run_dir_of
from hpcml.schedulers.batches import tickets_of
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.presence import require_programs
from hpcml.schedulers.submitter import Batch, Job, Ticket
from hpcml.states import DECISIVE
from hpcml.store.forgetting import forget_run

_SETTLING_S = 5.0  # the request of a client that was killed may still be on its way to the scheduler
_LONG_AGO_S = 600.0  # no client lives so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """How many submissions were finished, and how many never began and are gone; a line for each that must wait."""

    finished: int
    removed: int
    waiting: list[str]


class _End(Enum):
    FINISHED = "finished"
    REMOVED = "removed"


def interrupted(places: Places) -> int:
    """Return how many submissions wait to be finished; cheap."""
    return len(intents.interrupted(places.open_submissions, now=time.time()))


def refuse_if_interrupted(places: Places) -> None:
    """Raise `ConfigError` while it is open which runs are under way."""
    if interrupted(places):
        raise ConfigError("--missing: a submission was interrupted: hpcml sync finishes it first")


def recover(places: Places, backends: Backends) -> Recovered:
    """Put every interrupted submission right, each by one process; as often, and by as many, as you like."""
    ends: list[_End] = []
    waiting: list[str] = []
    for path in intents.interrupted(places.open_submissions, now=time.time()):
        try:
            end = _put_right(path, places, backends)
        except HpcmlError as error:
            submission = path.name.partition(".")[0]
            waiting.append(f"submission {submission} cannot be finished now: {error}")
        else:
            ends += [end] if end else []
    return Recovered(finished=ends.count(_End.FINISHED), removed=ends.count(_End.REMOVED), waiting=waiting)


def _put_right(path: Path, places: Places, backends: Backends) -> _End | None:
    """Undo or finish what *path* says; None where another process is at it. What fails is left for the next time."""
    taken = intents.take_over(path)
    if taken is None:
        return None
    opened, phase, last_seen = taken
    try:
        if phase is Phase.PLANNING:
            _undo(opened, places)
            return _End.REMOVED
        _finish(opened, backends, last_seen)
    except BaseException:
        opened.leave_to_sync()
        raise
    return _End.FINISHED


def _undo(opened: OpenIntent, places: Places) -> None:
    """Remove run directories that were never submitted, and what the store may have seen of them."""
    gone: list[RunDir] = []
    for run_dir in map(RunDir, map(Path, opened.intent.run_dirs)):
        if _told(run_dir, 0):
            continue  # somebody submitted its job.sh by hand
        shutil.rmtree(run_dir.path, ignore_errors=True)
        gone.append(run_dir)
    with opened_store(places) as store:
        for run_dir in gone:
            forget_run(store, run_dir.uid)
    opened.close()


def _finish(opened: OpenIntent, backends: Backends, last_seen: float) -> None:
    intent = opened.intent
    batches = [batch for planned in intent.batches if (batch := _batch_of(planned)) and not _is_recorded(batch, intent)]
    is_remote = any(_cluster(batch).scheduler is not SchedulerName.local for batch in batches)
    if is_remote and time.time() - last_seen < _LONG_AGO_S:
        time.sleep(_SETTLING_S)
    written: list[Path] = []
    for batch in batches:
        opened.touch()
        written += _settle(batch, intent, backends)
    intents.have_on_disk(written)
    opened.close()


def _settle(batch: Batch, intent: Intent, backends: Backends) -> list[Path]:
    """Submit *batch* if it was not, and record what became of it; return the journals that were written."""
    cluster = _cluster(batch)
    if cluster.scheduler is SchedulerName.local and intent.host != intents.this_host():
        raise HpcmlError(f"its runs belong to the machine {intent.host}: hpcml sync there finishes it")
    require_programs(cluster.scheduler.name, cluster=cluster.name)
    told = {job.run_dir.uid: _told(job.run_dir, intent.attempt) for job in batch.jobs}
    submitter = backends.submitter_for(cluster)
    tickets = _recorded_tickets(batch, told) or submitter.find(batch)
    if tickets is not None:
        return record(batch, tickets, intent, known=frozenset(uid for uid, events in told.items() if _has_job(events)))
    left = [job for job in batch.jobs if not told[job.run_dir.uid]]
    if len(left) < len(batch.jobs):  # it was being recorded that the scheduler refused
        return _tell(left, intent, "submission_failed", "the scheduler refused the others of its job array")
    if all(job.run_dir.cancel_mark.exists() for job in left):
        return _tell(left, intent, "cancelled", "cancelled before it was submitted")
    try:
        tickets = submitter.submit(batch)
    except NoAnswerError:
        raise
    except SubmissionError as error:
        return _tell(left, intent, "submission_failed", str(error))
    return record(batch, tickets, intent)


def _recorded_tickets(batch: Batch, told: Mapping[str, Sequence[Event]]) -> list[Ticket] | None:
    """Return the tickets of the whole batch if the journal of one of its runs has its job; schedulers may forget."""
    cluster = _cluster(batch)
    if cluster.scheduler is SchedulerName.local:
        return None  # the queue's own file tells
    for event in (event for events in told.values() for event in events):
        if event.name in ("submitted", "attempt_started") and event.details.get("job_id"):
            job_id, name = str(event.details["job_id"]), event.details.get("job_name")
            return tickets_of(cluster.scheduler.name, batch, job_id=job_id, job_name=name)
    return None


def _tell(jobs: Sequence[Job], intent: Intent, event: str, reason: str) -> list[Path]:
    return [path for job in jobs if (path := tell(job.run_dir, intent, event, reason=reason)) is not None]


def _is_recorded(batch: Batch, intent: Intent) -> bool:
    return all(_has_job(_told(job.run_dir, intent.attempt)) for job in batch.jobs)


def _has_job(told: Sequence[Event]) -> bool:
    """Tell whether the journals say what job the run is, or that it is none; on this machine an agent cannot tell."""
    return any(event.name not in ("attempt_started", "attempt_ended") or event.details.get("job_id") for event in told)


def _told(run_dir: RunDir, attempt: int) -> list[Event]:
    """Return what the journals say of the run since *attempt*: that it was queued, started, refused or ended."""
    chunks = (read_journal(path) for path in run_dir.journal_files() if int(path.name.partition("-")[0]) >= attempt)
    return [
        record for chunk in chunks for record in chunk.records if isinstance(record, Event) and record.name in DECISIVE
    ]


def _batch_of(planned: PlannedBatch) -> Batch | None:
    """Return the batch as it was planned, without runs that somebody removed; None if that were all."""
    packs = [[_job(Path(source)) for source in pack if Path(source).exists()] for pack in planned.packs]
    packs = [pack for pack in packs if pack]
    return Batch(token=planned.token, packs=packs) if packs else None


def _job(source: Path) -> Job:
    run_dir = run_dir_of(source)
    retry = 0 if source == run_dir.manifest else int(source.stem)
    return Job(run_dir=run_dir, manifest=read_manifest(source), retry=retry)


def _cluster(batch: Batch) -> Cluster:
    return batch.jobs[0].manifest.run.cluster
