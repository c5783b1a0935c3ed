"""Planned runs written down and handed to a scheduler; what happened to each is recorded in its directory."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcml.errors import ConfigError, HpcmlError, SubmissionError
from hpcml.manifest import FORMAT, Manifest, Provenance, write_manifest
from hpcml.operations import provenance
from hpcml.operations.backends import Backends
from hpcml.operations.plan import Planned
from hpcml.places import Places
from hpcml.rundir import RunDir, new_uid
from hpcml.schedulers.presence import require_programs
from hpcml.schedulers.request import Request, request_for
from hpcml.schedulers.submitter import Job, Preview, Submitter, Ticket
from hpcml.spec import spec_hash
from hpcml_client.journal import JournalWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A run that a scheduler has."""

    run_dir: RunDir
    manifest: Manifest
    overrides: tuple[str, ...]
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Jobs that go out together."""

    submitter: Submitter
    jobs: list[Job]


def launch(
    planned: Sequence[Planned], places: Places, backends: Backends, command_line: Sequence[str]
) -> list[Launched]:
    """Write every run directory, then submit one job array for each distinct request, split at the site's limit.

    Raises `ConfigError` if the directories cannot be written, and `SubmissionError` if a submission failed: what was
    queued before stays queued and is recorded, the rest is recorded as not submitted.
    """
    for cluster in {item.run.cluster.name: item.run.cluster for item in planned}.values():
        require_programs(cluster.scheduler.name, cluster=cluster.name)
    jobs = _write_run_dirs(planned, places, backends, command_line)
    tickets: dict[str, Ticket] = {}
    try:
        for chunk in _chunks(jobs, backends):
            with _sigint_deferred():
                given = chunk.submitter.submit(chunk.jobs)
                for job, ticket in zip(chunk.jobs, given, strict=True):
                    tickets[job.run_dir.uid] = ticket
                    _tell_submitted(job.run_dir, ticket)
    except (HpcmlError, KeyboardInterrupt) as error:
        left = [job for job in jobs if job.run_dir.uid not in tickets]
        for job in left:
            _tell(job.run_dir, "submission_failed", reason=str(error) or "interrupted before it was submitted")
        if tickets and isinstance(error, HpcmlError):
            done = f"{len(tickets)} of {len(jobs)} runs were submitted before; hpcml run --missing ... submits the rest"
            raise SubmissionError(f"{error} ({done})") from error
        raise
    return [
        Launched(run_dir=job.run_dir, manifest=job.manifest, overrides=item.overrides, ticket=tickets[job.run_dir.uid])
        for job, item in zip(jobs, planned, strict=True)
    ]


def preview(planned: Sequence[Planned], places: Places, backends: Backends) -> list[Preview]:
    """Return what `launch` would send to schedulers; run directories get ids that are not used again."""
    now = datetime.now().astimezone()
    origin = provenance.describe([], Path.cwd(), provenance.NO_CODE, (), now)
    jobs = [_job(item, places, origin, now, index) for index, item in enumerate(planned)]
    return [chunk.submitter.preview(chunk.jobs) for chunk in _chunks(jobs, backends)]


def _chunks(jobs: Sequence[Job], backends: Backends) -> Iterator[_Chunk]:
    groups: list[tuple[Request, list[Job]]] = []
    for job in jobs:
        request = request_for(job.manifest)
        for known, members in groups:
            if known == request:
                members.append(job)
                break
        else:
            groups.append((request, [job]))
    for request, members in groups:
        limit = request.cluster.max_array_size or len(members)
        for first in range(0, len(members), limit):
            yield _Chunk(backends.submitter_for(request.cluster), members[first : first + limit])


def describe(item: Launched) -> dict[str, object]:
    """Return what `hpcml run --json` prints of a submitted run; the keys are stable."""
    return {
        "uid": item.run_dir.uid,
        "path": str(item.run_dir.path),
        "overrides": list(item.overrides),
        "spec_hash": item.manifest.spec_hash,
        "scheduler": item.ticket.scheduler,
        "job_id": item.ticket.job_id,
        "array_index": item.ticket.array_index,
    }


def _write_run_dirs(
    planned: Sequence[Planned], places: Places, backends: Backends, command_line: Sequence[str]
) -> list[Job]:
    now = datetime.now().astimezone()
    folder = Path.cwd()
    code = provenance.describe_code(folder)
    origin = provenance.describe(command_line, folder, code, planned[0].user_config, now)
    jobs: list[Job] = []
    written: list[RunDir] = []
    try:
        for index, item in enumerate(planned):
            job = _job(item, places, origin, now, index)
            if job.run_dir.path.parent not in {run_dir.path.parent for run_dir in written[-1:]}:
                job.run_dir.path.parent.mkdir(parents=True, exist_ok=True)
            job.run_dir.path.mkdir(mode=0o700)
            written.append(job.run_dir)
            _fill(job, code, backends.submitter_for(item.run.cluster).script_for(job))
            jobs.append(job)
    except BaseException as error:  # Ctrl-C too: nothing was submitted and nobody has seen them, so none shall stay
        for run_dir in written:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        if isinstance(error, OSError):
            where = f"{error.filename}: {error.strerror}"
            raise ConfigError(
                f"run directories cannot be written: {where} (set HPCML_HOME to another place)"
            ) from error
        raise
    return jobs


def _job(item: Planned, places: Places, origin: Provenance, now: datetime, index: int) -> Job:
    run_dir = RunDir(places.runs / item.run.experiment / new_uid(now, index))
    manifest = Manifest(
        format=FORMAT,
        uid=run_dir.uid,
        spec_hash=spec_hash(item.run),
        run=item.run,
        plan=item.plan,
        provenance=origin,
    )
    return Job(run_dir=run_dir, manifest=manifest)


def _fill(job: Job, code: provenance.Code, script: str) -> None:
    run_dir = job.run_dir
    if code.diff:
        run_dir.git_diff.write_bytes(code.diff)
    run_dir.journals.mkdir()
    run_dir.script.write_text(script, encoding="utf-8")
    write_manifest(run_dir.manifest, job.manifest)  # last: a directory without it is no run


def _tell_submitted(run_dir: RunDir, ticket: Ticket) -> None:
    _tell(run_dir, "submitted", scheduler=ticket.scheduler, job_id=ticket.job_id, array_index=ticket.array_index)


def _tell(run_dir: RunDir, name: str, **details: object) -> None:
    journal = JournalWriter.open(str(run_dir.journals), run=run_dir.uid, writer="launch")
    journal.event(name, details)
    journal.close(sync=False)  # a sweep has thousands; what a crash of this machine takes, the scheduler still knows


@contextmanager
def _sigint_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect after the block: between queueing and writing the ticket down it would lose jobs."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        raise KeyboardInterrupt
