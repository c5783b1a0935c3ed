"""Recovering submissions whose process died: undone where nothing was sent, else finished; for ``hpcml sync``.

A run's own journals are believed first, then the scheduler, which is asked for the batch by its token; only what it
does not have is sent again. Nothing is lost: what cannot be known now stays open.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands.collect import opened as opened_store
from hpcml.commands.submit import submission
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.launch import record, tell
from hpcml.commands.submit.submission import OpenSubmission, Phase, RecordedBatch, Submission
from hpcml.errors import ConfigError, HpcmlError, SubmissionError
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.paths import Places
from hpcml.runs.atomic import have_on_disk
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.journal import Event, read_journal
from hpcml.runs.layout import RunDir, run_dir_of
from hpcml.runs.manifest import read_to_execute
from hpcml.runs.state import DECISIVE, EventName
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.contract import Batch, Job, Ticket
from hpcml.schedulers.description import Scheduler
from hpcml.schedulers.driver import tickets_of
from hpcml.schedulers.registry import backend_of, require_programs

_SETTLING_S = 5.0  # the request of a client that was killed may still be on its way to the scheduler
_LONG_AGO_S = 600.0  # no client lives so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What `recover` did.

    `finished` and `removed` count submissions: those that were completed, and those that had sent nothing and were
    undone. `waiting` has a line for each that could not be finished now and stays for the next `hpcml sync`.
    """

    finished: int
    removed: int
    waiting: list[str]


def interrupted(places: Places) -> int:
    """Return how many submissions wait to be finished; this lists one folder and reads no file in it."""
    return len(submission.interrupted(places.open_submissions, now=time.time()))


def refuse_if_interrupted(places: Places) -> None:
    """Raise `ConfigError` while a submission is interrupted: ``--missing`` could not tell which runs are under way."""
    if interrupted(places):
        raise ConfigError("--missing: a submission was interrupted: hpcml sync finishes it first")


def recover(places: Places, backends: Backends) -> Recovered:
    """Undo or finish every interrupted submission; for ``hpcml sync`` and, before new retries, ``hpcml retry``.

    Each is taken over by one process, so that several may call this at once. One that was still writing run directories
    is undone; one that was submitting is finished. An `HpcmlError`, such as a scheduler that does not answer, leaves
    that submission as it is for the next call and is reported in `Recovered.waiting`.
    """
    counts: Counter[Phase] = Counter()
    waiting: list[str] = []
    for path in submission.interrupted(places.open_submissions, now=time.time()):
        try:
            phase = _put_right(path, places, backends)
        except HpcmlError as error:
            waiting.append(f"submission {path.name.partition('.')[0]} cannot be finished now: {error}")
        else:
            counts.update([] if phase is None else [phase])
    return Recovered(finished=counts[Phase.SUBMITTING], removed=counts[Phase.PLANNING], waiting=waiting)


def _put_right(path: Path, places: Places, backends: Backends) -> Phase | None:
    """Undo or finish the submission in the file *path*; return how far it was, None where another process is at it.

    On any error it is given up again, so that the next call can try, and the error is raised.
    """
    taken = submission.take_over(path)
    if taken is None:
        return None
    opened, phase, last_seen = taken
    try:
        if phase is Phase.PLANNING:
            _undo(opened, places)
        else:
            _finish(opened, backends, last_seen)
    except BaseException:
        opened.leave_to_sync()
        raise
    return phase


def _undo(opened: OpenSubmission, places: Places) -> None:
    """Remove run directories that were never submitted, and what the store may have seen of them."""
    gone: list[RunDir] = []
    for run_dir in map(RunDir, map(Path, opened.submission.run_dirs)):
        if run_dir.path.resolve().parent.parent != places.runs.resolve():
            raise HpcmlError(f"{opened.path} is damaged: {run_dir.path} is no run of {places.runs}")
        if _told(run_dir, 0):
            continue  # somebody submitted its job.sh by hand
        shutil.rmtree(run_dir.path, ignore_errors=True)
        gone.append(run_dir)
    from hpcml.store.rows import forget_run  # noqa: PLC0415 - few submissions are interrupted

    with opened_store(places) as store:
        for run_dir in gone:
            forget_run(store, run_dir.uid)
    opened.close()


def _finish(opened: OpenSubmission, backends: Backends, last_seen: float) -> None:
    """Finish what *opened* was about to submit, batch by batch; *last_seen* is unix seconds.

    Where the dead process was at work in the last ten minutes, its last request may still be on the way to the
    scheduler, which is given five seconds first. What comes later still does no harm: of two jobs one carries out the
    run.
    """
    sent = opened.submission
    batches = [batch for recorded in sent.batches if (batch := _batch_of(recorded)) and not _is_recorded(batch, sent)]
    is_remote = any(_cluster(batch).scheduler is not SchedulerName.local for batch in batches)
    if is_remote and time.time() - last_seen < _LONG_AGO_S:
        time.sleep(_SETTLING_S)
    written: list[Path] = []
    for batch in batches:
        opened.touch()
        written += _settle(batch, sent, backends)
    have_on_disk(written)
    opened.close()


def _settle(batch: Batch, sent: Submission, backends: Backends) -> list[Path]:
    """Submit *batch* if it was not, and record what became of it; return the journals that were written.

    Asked are, in this order, the runs' own journals for tickets, the scheduler for the batch's token, and the mark of
    `hpcml cancel`; only what none of them knows is submitted. Raises `HpcmlError` for runs of another machine, and
    `NoAnswerError` where the scheduler may or may not have it.
    """
    cluster = _cluster(batch)
    if cluster.scheduler is SchedulerName.local and sent.host != submission.this_host():
        raise HpcmlError(f"its runs belong to the machine {sent.host}: hpcml sync there finishes it")
    require_programs(cluster.scheduler.name, cluster=cluster.name)
    told = {job.run_dir.uid: _told(job.run_dir, sent.attempt) for job in batch.jobs}
    submitter = backends.submitter_for(cluster)
    tickets = _recorded_tickets(batch, told) or submitter.find(batch)
    if tickets is not None:
        return record(batch, tickets, sent, known=frozenset(uid for uid, events in told.items() if _has_job(events)))
    left = [job for job in batch.jobs if not told[job.run_dir.uid]]
    if len(left) < len(batch.jobs):  # it was being recorded that the scheduler refused
        return _tell(left, sent, EventName.SUBMISSION_FAILED, "the scheduler refused the others of its job array")
    if all(is_cancelled(job.run_dir) for job in left):
        return _tell(left, sent, EventName.CANCELLED, "cancelled before it was submitted")
    try:
        tickets = submitter.submit(batch)
    except NoAnswerError:
        raise
    except SubmissionError as error:
        return _tell(left, sent, EventName.SUBMISSION_FAILED, str(error))
    return record(batch, tickets, sent)


def _recorded_tickets(batch: Batch, told: Mapping[str, Sequence[Event]]) -> list[Ticket] | None:
    """Return the tickets of the whole batch if the journal of one of its runs has its job; schedulers may forget."""
    scheduler = backend_of(_cluster(batch).scheduler.name)
    if not isinstance(scheduler, Scheduler):
        return None  # the file of this machine's queue tells
    if scheduler.first_index is None and len(batch.packs) > 1:
        return None  # each has a job of its own
    for event in (event for events in told.values() for event in events):
        if event.name in (EventName.SUBMITTED, EventName.ATTEMPT_STARTED) and event.details.get("job_id"):
            where = event.details.get("job_cluster")
            job_id = f"{event.details['job_id']};{where}" if where else str(event.details["job_id"])
            return tickets_of(scheduler, batch, [job_id])
    return None


def _tell(jobs: Sequence[Job], sent: Submission, event: str, reason: str) -> list[Path]:
    return [path for job in jobs if (path := tell(job.run_dir, sent, event, reason=reason)) is not None]


def _is_recorded(batch: Batch, sent: Submission) -> bool:
    return all(_has_job(_told(job.run_dir, sent.attempt)) for job in batch.jobs)


def _has_job(told: Sequence[Event]) -> bool:
    """Tell whether the journals say what job the run is, or that it is none; on this machine an agent cannot tell."""
    return any(
        event.name not in (EventName.ATTEMPT_STARTED, EventName.ATTEMPT_ENDED) or event.details.get("job_id")
        for event in told
    )


def _told(run_dir: RunDir, attempt: int) -> list[Event]:
    """Return what the journals say of the run since *attempt*: that it was queued, started, refused or ended."""
    chunks = (read_journal(path) for path in run_dir.journal_files() if int(path.name.partition("-")[0]) >= attempt)
    return [
        record for chunk in chunks for record in chunk.records if isinstance(record, Event) and record.name in DECISIVE
    ]


def _batch_of(recorded: RecordedBatch) -> Batch | None:
    """Return the batch as it was recorded, without runs that somebody removed; None if that were all."""
    packs = [[_job(Path(source)) for source in pack if Path(source).exists()] for pack in recorded.packs]
    packs = [pack for pack in packs if pack]
    return Batch(token=recorded.token, packs=packs, at_once=recorded.at_once) if packs else None


def _job(source: Path) -> Job:
    run_dir = run_dir_of(source)
    retry = 0 if source == run_dir.manifest else int(source.stem)
    return Job(run_dir=run_dir, manifest=read_to_execute(source), retry=retry)


def _cluster(batch: Batch) -> Cluster:
    return batch.jobs[0].manifest.run.cluster
