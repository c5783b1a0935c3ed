"""Writing the directories of planned runs, and sending them to their schedulers in batches.

A submission survives its process: it is written down before anything else is, so that `recover` can undo one that was
cut off while it wrote run directories, and finish one that was cut off while it submitted.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hpcml.commands.submit import packs, provenance
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.containers import put_inside
from hpcml.commands.submit.plan import Planned
from hpcml.commands.submit.snapshot import KeptCode, keep_code
from hpcml.commands.submit.submission import (
    OpenSubmission,
    Phase,
    RecordedBatch,
    Submission,
    TakenOverError,
    open_submission,
    this_host,
)
from hpcml.errors import ConfigError, HpcmlError, SubmissionError, why_not
from hpcml.model.cluster import SchedulerName
from hpcml.paths import Places
from hpcml.runs.atomic import have_on_disk
from hpcml.runs.layout import RunDir, new_submission_id, new_uid
from hpcml.runs.manifest import Manifest, Provenance, write_manifest
from hpcml.runs.plan import Plan
from hpcml.runs.private import FOLDER, make_folder, open_file, write_file
from hpcml.runs.run_json import FORMAT
from hpcml.runs.state import EventName
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.contract import Batch, Job, Preview, Submitter, Ticket
from hpcml.schedulers.registry import require_programs
from hpcml_client.journal import JournalWriter

NONE_SUBMITTED = "none of these runs was submitted"


class UnrecordedError(HpcmlError):
    """A job was queued, but its ticket could not be written into the run's journal.

    The submission stays open, so that `hpcml sync` can find the job at its scheduler and write the ticket then.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A run that was submitted, with its directory and the ticket of its job."""

    run_dir: RunDir
    manifest: Manifest
    ticket: Ticket

    @property
    def overrides(self) -> tuple[str, ...]:
        """The words that tell it from others of its sweep."""
        return tuple(self.manifest.provenance.overrides or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A run that is completely decided, of which nothing but the copies of code are on the disk yet."""

    job: Job
    packages: Path | None  # as in `KeptCode`
    diff: bytes
    call: bytes | None


def launch(
    planned: Sequence[Planned], places: Places, backends: Backends, command_line: Sequence[str]
) -> list[Launched]:
    """Write every run directory, then submit one job array for each distinct request; return the runs in pack order.

    The steps, each of which `recover` can undo or finish if this process dies: copies of the code are made; the
    submission is written down (phase planning); the run directories are written and synced (phase submitting); the
    batches are sent one after the other. Arrays are split at the site's limit. *command_line* is recorded in each run.

    Raises `ConfigError` if the directories cannot be written (none stays then), and `SubmissionError` if the
    scheduler's programs are not here or a submission failed: what was queued before stays queued and is recorded, the
    rest is recorded as not submitted.
    """
    packed = packs.packs_of(planned)
    for cluster in {item.run.cluster.name: item.run.cluster for item in planned}.values():
        require_programs(cluster.scheduler.name, cluster=cluster.name)
    now = datetime.now(UTC).astimezone()
    submission = new_submission_id(now)
    try:
        prepared = _prepare([item for pack in packed for item in pack], places, command_line, submission, now)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(NONE_SUBMITTED) from error
    jobs = iter([each.job for each in prepared])
    batches = packs.batches_of([[next(jobs) for _ in pack] for pack in packed], submission)
    run_dirs = [str(each.job.run_dir.path) for each in prepared]
    to_send = Submission(submission=submission, host=this_host(), batches=_recorded(batches), run_dirs=run_dirs)
    opened = open_submission(places.open_submissions, to_send, Phase.PLANNING)
    _write_run_dirs(prepared, backends, opened)
    tickets = _send(batches, backends, opened)
    return [
        Launched(run_dir=job.run_dir, manifest=job.manifest, ticket=tickets[job.run_dir.uid])
        for job in (each.job for each in prepared)
    ]


def submit_retries(
    jobs: Sequence[Job], places: Places, backends: Backends, *, attempt: int, why: str, by: str = "retry"
) -> list[Ticket]:
    """Submit *jobs* once more, in attempt number *attempt* of each, and return their tickets in the order given.

    Their manifests and scripts, ``retries/<k>.json`` and ``.sh``, must exist: nothing but the journals and the file of
    the open submission is written here. Jobs with equal requests go out as one array. The journals say `submitted`
    with *why* and *by*, or `submission_failed` where the scheduler refused, which raises `SubmissionError`. After
    `NoAnswerError` it is not known whether they were queued: they stay as they are until `recover` has found out.
    """
    submission = new_submission_id(datetime.now(UTC).astimezone())
    batches = packs.batches_of([[job] for job in jobs], submission)
    to_send = Submission(
        submission=submission,
        host=this_host(),
        batches=_recorded(batches),
        attempt=attempt,
        details={"why": why, "by": by},
    )
    tickets = _send(batches, backends, open_submission(places.open_submissions, to_send, Phase.SUBMITTING))
    return [tickets[job.run_dir.uid] for job in jobs]


def draft(planned: Sequence[Planned], places: Places) -> list[Batch]:
    """Return the batches that `launch` would submit, under names that are not used; nothing is written."""
    now = datetime.now(UTC).astimezone()
    index = iter(range(len(planned)))

    def shown(item: Planned) -> Job:
        run_dir = RunDir(places.runs / item.run.experiment / new_uid(now, next(index)))
        code = KeptCode(plan=item.plan, code=None, packages=None)
        return _job(item, code, run_dir, packs.NOWHERE, spec_hash="")  # no script says where it is from

    packed = [[shown(item) for item in pack] for pack in packs.packs_of(planned)]
    return packs.batches_of(packed, new_submission_id(now))


def preview(planned: Sequence[Planned], places: Places, backends: Backends) -> list[Preview]:
    """Return the scripts and calls that `launch` would make; nothing is written, and the uids shown are not used."""
    return [submitter_of(batch, backends).preview(batch) for batch in draft(planned, places)]


def plan_shown(item: Planned, places: Places) -> Plan:
    """Return the plan of a run as its agent would find it, for the dry run.

    It differs from the real one in two things: the code is used where it lies instead of a copy, and the run directory
    is called RUN. Without an image it is the plan as it is.
    """
    if item.image is None:
        return item.plan
    run_dir = RunDir(places.runs / item.run.experiment / "RUN")
    return put_inside(item.plan, item.run, item.image, run_dir, folder=item.code_folder, code=None, packages=None)


def describe(item: Launched) -> dict[str, object]:
    """Return what `hpcml run --json` prints of a submitted run; users rely on the keys, which stay as they are.

    `array_index` is None for a job of its own, `path` is absolute.
    """
    return {
        "uid": item.run_dir.uid,
        "path": str(item.run_dir.path),
        "overrides": list(item.overrides),
        "spec_hash": item.manifest.spec_hash,
        "scheduler": item.ticket.scheduler,
        "job_id": item.ticket.job_id,
        "array_index": item.ticket.array_index,
        "job_name": item.ticket.job_name,
        "job_cluster": item.ticket.job_cluster,
        "submission": item.manifest.provenance.submission,
    }


# The run directories.


def _prepare(
    everything: Sequence[Planned], places: Places, command_line: Sequence[str], submission: str, now: datetime
) -> list[_Prepared]:
    """Take the snapshots of the code and decide everything else; nothing but the snapshots is written."""
    codes = {folder: provenance.describe_code(folder) for folder in {item.code_folder for item in everything}}
    origin = replace(
        provenance.describe(command_line, everything[0].user_config, now),
        home=str(places.home),
        submission=submission,
        submission_size=len(everything),
    )
    keep, prepared = keep_code(places), []
    for index, item in enumerate(everything):
        run_dir = RunDir(places.runs / item.run.experiment / new_uid(now, index))
        code, kept = codes[item.code_folder], keep(item, run_dir)
        own_origin = replace(
            origin,
            git_commit=code.commit,
            git_dirty=code.dirty,
            code=None if kept.code is None else str(kept.code),
            overrides=list(item.overrides),
        )
        job = _job(item, kept, run_dir, own_origin, spec_hash=item.run.spec_hash)
        prepared.append(_Prepared(job=job, packages=kept.packages, diff=code.diff, call=item.call))
    return prepared


def _job(item: Planned, kept: KeptCode, run_dir: RunDir, origin: Provenance, *, spec_hash: str) -> Job:
    plan = kept.plan
    if item.image is not None:
        plan = put_inside(
            plan, item.run, item.image, run_dir, folder=item.code_folder, code=kept.code, packages=kept.packages
        )
    manifest = Manifest(format=FORMAT, uid=run_dir.uid, spec_hash=spec_hash, run=item.run, plan=plan, provenance=origin)
    return Job(run_dir=run_dir, manifest=manifest)


def _write_run_dirs(everything: Sequence[_Prepared], backends: Backends, opened: OpenSubmission) -> None:
    """Write them all, have them on the disk, and say so; on any trouble nothing stays."""
    written: list[RunDir] = []
    submitters: dict[tuple[SchedulerName, int | None], Submitter] = {}
    try:
        for prepared in everything:
            run_dir, cluster = prepared.job.run_dir, prepared.job.manifest.run.cluster
            make_folder(run_dir.path.parent, parents=True)
            written.append(run_dir)  # first: Ctrl-C between the two must not leave a directory that nobody knows
            try:
                run_dir.path.mkdir(mode=FOLDER)
            except OSError:  # above all, somebody else's of that name
                written.pop()
                raise
            kind = (cluster.scheduler, cluster.max_parallel)
            if kind not in submitters:
                submitters[kind] = backends.submitter_for(cluster)
            _fill(prepared, submitters[kind].script_for(prepared.job))
        have_on_disk(path for run_dir in written for path in (run_dir.manifest, run_dir.script, run_dir.path))
        have_on_disk({run_dir.path.parent for run_dir in written})
        opened.begin_submitting()
    except BaseException as error:  # Ctrl-C too: nothing was submitted and nobody has seen them, so none shall stay
        for run_dir in written:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        opened.close()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(NONE_SUBMITTED) from error
        if isinstance(error, OSError):
            where = why_not(error, written[-1].path if written else everything[0].job.run_dir.path)
            raise ConfigError(
                f"run directories cannot be written: {where} (set HPCML_HOME to another place)"
            ) from error
        raise


def _fill(prepared: _Prepared, script: str) -> None:
    run_dir, code = prepared.job.run_dir, prepared.job.manifest.provenance.code
    if prepared.diff:
        with open_file(run_dir.git_diff, "xb") as file:
            file.write(prepared.diff)
    if prepared.call is not None:
        with open_file(run_dir.call, "xb") as file:
            file.write(prepared.call)
    if code is not None:
        run_dir.code.symlink_to(code)
    if prepared.packages is not None:  # the agent leaves it as it is
        run_dir.client_path.symlink_to(prepared.packages)
    make_folder(run_dir.journals)
    make_folder(run_dir.logs)
    write_file(run_dir.script, script)
    write_manifest(run_dir.manifest, prepared.job.manifest)  # last: a directory without it is no run


# The batches.


def submitter_of(batch: Batch, backends: Backends) -> Submitter:
    """Return the submitter that *batch* goes to."""
    return backends.submitter_for(batch.jobs[0].manifest.run.cluster)


def _recorded(batches: Sequence[Batch]) -> list[RecordedBatch]:
    packed = [[[str(job.source) for job in pack] for pack in batch.packs] for batch in batches]
    return [
        RecordedBatch(token=batch.token, packs=sources, at_once=batch.at_once)
        for batch, sources in zip(batches, packed, strict=True)
    ]


def _send(batches: Sequence[Batch], backends: Backends, opened: OpenSubmission) -> dict[str, Ticket]:
    """Submit every batch and record its tickets; return them by the uids of the runs.

    Tickets are journalled right after each batch, and synced to the disk together at the end. What happens on trouble:

    - The scheduler refuses a batch (`SubmissionError`), or Ctrl-C comes: what was queued before stays queued, the rest
      is journalled as `submission_failed`, and *opened* is closed. What is raised says how many these are.
    - It is not known whether a batch was queued (`NoAnswerError`), or a ticket could not be recorded
      (`UnrecordedError`): everything that is left stays open, and `hpcml sync` finishes it.
    - Another process has taken the submission over (`TakenOverError`): nothing more is written.
    """
    jobs = [job for batch in batches for job in batch.jobs]
    tickets: list[Ticket] = []
    written: list[Path] = []
    try:
        for batch in batches:
            opened.touch()
            with _sigint_deferred():
                given = submitter_of(batch, backends).submit(batch)
                tickets += given
                written += record(batch, given, opened.submission)
    except TakenOverError:
        raise
    except (NoAnswerError, UnrecordedError) as error:
        opened.leave_to_sync()
        done = f"{len(tickets)} of {len(jobs)} runs are known to be queued; hpcml sync finishes this submission"
        raise type(error)(f"{error} ({done})") from error
    except (HpcmlError, KeyboardInterrupt) as error:
        with suppress(KeyboardInterrupt), _sigint_deferred():
            for job in jobs[len(tickets) :]:
                why = str(error) or "interrupted before it was submitted"
                tell(job.run_dir, opened.submission, EventName.SUBMISSION_FAILED, reason=why)
            have_on_disk(written)
            opened.close()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(_interrupted(len(tickets), len(jobs), opened.submission)) from error
        if tickets:
            done = f"{len(tickets)} of {len(jobs)} runs were submitted before; hpcml run --missing ... submits the rest"
            raise SubmissionError(f"{error} ({done})") from error
        raise
    try:
        with _sigint_deferred():
            have_on_disk(written)
            opened.close()
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_interrupted(len(jobs), len(jobs), opened.submission)) from error
    return {job.run_dir.uid: ticket for job, ticket in zip(jobs, tickets, strict=True)}


def _interrupted(count: int, total: int, submission: Submission) -> str:
    """Return what Ctrl-C has left of a submission of *total* runs, *count* of which are queued."""
    if not count:
        return NONE_SUBMITTED
    if submission.attempt:
        return f"{count} of {total} runs were queued again: hpcml status shows them"
    ended = f"hpcml cancel --submission {submission.submission} ends {'it' if count == 1 else 'them'}"
    rest = "" if count == total else ", hpcml run --missing ... submits the rest"
    return f"{count} of {total} runs {'was' if count == 1 else 'were'} submitted: {ended}{rest}"


def record(
    batch: Batch, tickets: Sequence[Ticket], submission: Submission, *, known: frozenset[str] = frozenset()
) -> list[Path]:
    """Journal the tickets of *batch*, one per run and in the order of its runs; return the journals that were written.

    Runs whose uid is in *known* are left out, since their journals have the ticket already. The journals are not synced
    yet: `have_on_disk` is for the caller. Raises `UnrecordedError` for the first ticket that cannot be written.
    """
    packed = [(job, index, len(pack)) for index, pack in enumerate(batch.packs) for job in pack]
    return [
        tell_submitted(job.run_dir, submission, ticket, f"{batch.token}/{index}" if size > 1 else None)
        for (job, index, size), ticket in zip(packed, tickets, strict=True)
        if job.run_dir.uid not in known
    ]


def tell_submitted(run_dir: RunDir, submission: Submission, ticket: Ticket, pack: str | None) -> Path:
    """Journal that the run is the job of *ticket*, in *pack* if it shares that job; return the journal.

    Raises `UnrecordedError` where it cannot be written.
    """
    journal = tell(
        run_dir,
        submission,
        EventName.SUBMITTED,
        scheduler=ticket.scheduler,
        job_id=ticket.job_id,
        array_index=ticket.array_index,
        job_name=ticket.job_name,
        pack=pack,
        **({} if ticket.job_cluster is None else {"job_cluster": ticket.job_cluster}),
    )
    if journal is None:
        raise UnrecordedError(
            f"{ticket.scheduler} has run {run_dir.uid} as job {ticket.spelled}, which cannot be recorded"
        )
    return journal


def tell(run_dir: RunDir, submission: Submission, name: str, **details: object) -> Path | None:
    """Append an event of the submission to the run's journal; return that journal, or None where it was not written.

    The event carries *details* and those of the submission (`why`, `by`); it belongs to the submission's attempt.
    """
    writer = JournalWriter.open(str(run_dir.journals), run=run_dir.uid, attempt=submission.attempt, writer="launch")
    writer.event(name, {**details, **submission.details})
    writer.close(sync=False)  # a sweep has thousands: they are synced together
    return Path(writer.path) if writer.path and not writer.dropped else None


@contextmanager
def _sigint_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect after the block: between queueing and writing the ticket down it would lose jobs.

    It only ever interrupts the main thread, so others have nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        raise KeyboardInterrupt
