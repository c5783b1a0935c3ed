"""Planned runs written down and handed to a scheduler; what happened to each is recorded in its directory.

A submission survives its process: it is written down before anything else is, so that `recover` can undo one that was
cut off while it wrote run directories, and finish one that was cut off while it submitted.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.manifest import FORMAT, Manifest, Plan, Provenance, write_manifest
from hpcml.operations import packing, provenance
from hpcml.operations.backends import Backends
from hpcml.operations.containers import put_inside
from hpcml.operations.intent import Intent, OpenIntent, Phase, have_on_disk, open_intent, this_host
from hpcml.operations.plan import Planned
from hpcml.operations.snapshot import Kept, keep_code
from hpcml.operations.submit import Outgoing, batches_of, submit_all
from hpcml.places import Places
from hpcml.rundir import RunDir, new_submission_id, new_uid
from hpcml.schedulers.presence import require_programs
from hpcml.schedulers.submitter import Job, Preview, Ticket
from hpcml.spec import spec_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A run that a scheduler has."""

    run_dir: RunDir
    manifest: Manifest
    overrides: tuple[str, ...]
    ticket: Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A run of which nothing is on the disk yet, and all is known."""

    item: Planned
    job: Job
    kept: Kept
    code: provenance.Code


def launch(
    planned: Sequence[Planned], places: Places, backends: Backends, command_line: Sequence[str]
) -> list[Launched]:
    """Write every run directory, then submit one job array for each distinct request, split at the site's limit.

    Raises `ConfigError` if the directories cannot be written, and `SubmissionError` if a submission failed: what was
    queued before stays queued and is recorded, the rest is recorded as not submitted.
    """
    for cluster in {item.run.cluster.name: item.run.cluster for item in planned}.values():
        require_programs(cluster.scheduler.name, cluster=cluster.name)
    now = datetime.now().astimezone()
    submission = new_submission_id(now)
    packs = _prepare(packing.packs_of(planned), places, command_line, submission, now)
    outgoing = batches_of([[prepared.job for prepared in pack] for pack in packs], backends, submission)
    opened = open_intent(
        places.open_submissions,
        Intent(
            submission=submission,
            host=this_host(),
            batches=[item.planned for item in outgoing],
            run_dirs=[str(prepared.job.run_dir.path) for pack in packs for prepared in pack],
        ),
        Phase.PLANNING,
    )
    _write_run_dirs([prepared for pack in packs for prepared in pack], backends, opened)
    tickets = submit_all(outgoing, opened)
    given = {job.run_dir.uid: ticket for job, ticket in zip(_jobs(outgoing), tickets, strict=True)}
    return [
        Launched(
            run_dir=prepared.job.run_dir,
            manifest=prepared.job.manifest,
            overrides=prepared.item.overrides,
            ticket=given[prepared.job.run_dir.uid],
        )
        for pack in packs
        for prepared in pack
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
    submission = new_submission_id(datetime.now().astimezone())
    outgoing = batches_of([[job] for job in jobs], backends, submission)
    intent = Intent(
        submission=submission,
        host=this_host(),
        batches=[item.planned for item in outgoing],
        attempt=attempt,
        said={"why": why, "by": by},
    )
    opened = open_intent(places.open_submissions, intent, Phase.SUBMITTING)
    tickets = submit_all(outgoing, opened)
    given = {job.run_dir.uid: ticket for job, ticket in zip(_jobs(outgoing), tickets, strict=True)}
    return [given[job.run_dir.uid] for job in jobs]


def preview(planned: Sequence[Planned], places: Places, backends: Backends) -> list[Preview]:
    """Return what `launch` would send to schedulers; run directories get ids that are not used again."""
    now = datetime.now().astimezone()
    origin = provenance.describe([], Path.cwd(), provenance.NO_CODE, (), now)
    index = iter(range(len(planned)))
    packs = [
        [_job(item, Kept(plan=item.plan, code=None, client=None), places, origin, now, next(index)) for item in pack]
        for pack in packing.packs_of(planned)
    ]
    return [item.submitter.preview(item.batch) for item in batches_of(packs, backends, new_submission_id(now))]


def plan_shown(item: Planned, places: Places) -> Plan:
    """Return the plan of a run as its agent would find it, but for the code that would be kept, and the run's id."""
    if item.image is None:
        return item.plan
    run_dir = RunDir(places.runs / item.run.experiment / "RUN")
    return put_inside(item.plan, item.run, item.image, run_dir, folder=item.code_folder, code=None, client=None)


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
        "job_name": item.ticket.job_name,
        "submission": item.manifest.provenance.submission,
    }


def _jobs(outgoing: Sequence[Outgoing]) -> list[Job]:
    return [job for item in outgoing for job in item.batch.jobs]


def _prepare(
    packs: Sequence[Sequence[Planned]], places: Places, command_line: Sequence[str], submission: str, now: datetime
) -> list[list[_Prepared]]:
    """Take the snapshots of the code and decide everything else; nothing but the snapshots is written."""
    codes: dict[Path, provenance.Code] = {}
    everything = [item for pack in packs for item in pack]
    for item in everything:
        if item.code_folder not in codes:
            codes[item.code_folder] = provenance.describe_code(item.code_folder)
    origin = replace(
        provenance.describe(command_line, Path.cwd(), provenance.NO_CODE, everything[0].user_config, now),
        submission=submission,
        submission_size=len(everything),
    )
    keep = keep_code(places, codes)
    index = iter(range(len(everything)))

    def prepared(item: Planned) -> _Prepared:
        code, kept = codes[item.code_folder], keep(item)
        its_origin = replace(
            origin, git_commit=code.commit, git_dirty=code.dirty, code=None if kept.code is None else str(kept.code)
        )
        job = _job(item, kept, places, its_origin, now, next(index))
        return _Prepared(item=item, job=job, kept=kept, code=code)

    return [[prepared(item) for item in pack] for pack in packs]


def _job(item: Planned, kept: Kept, places: Places, origin: Provenance, now: datetime, index: int) -> Job:
    run_dir, plan = RunDir(places.runs / item.run.experiment / new_uid(now, index)), kept.plan
    if item.image is not None:
        plan = put_inside(
            plan, item.run, item.image, run_dir, folder=item.code_folder, code=kept.code, client=kept.client
        )
    manifest = Manifest(
        format=FORMAT,
        uid=run_dir.uid,
        spec_hash=spec_hash(item.run),
        run=item.run,
        plan=plan,
        provenance=origin,
    )
    return Job(run_dir=run_dir, manifest=manifest)


def _write_run_dirs(everything: Sequence[_Prepared], backends: Backends, opened: OpenIntent) -> None:
    """Write them all, have them on the disk, and say so; on any trouble nothing stays."""
    written: list[RunDir] = []
    try:
        for prepared in everything:
            run_dir = prepared.job.run_dir
            if run_dir.path.parent not in {other.path.parent for other in written[-1:]}:
                run_dir.path.parent.mkdir(parents=True, exist_ok=True)
            run_dir.path.mkdir(mode=0o700)
            written.append(run_dir)
            _fill(prepared, backends.submitter_for(prepared.item.run.cluster).script_for(prepared.job))
        have_on_disk(path for run_dir in written for path in (run_dir.manifest, run_dir.script, run_dir.path))
        have_on_disk({run_dir.path.parent for run_dir in written})
        opened.begin_submitting()
    except BaseException as error:  # Ctrl-C too: nothing was submitted and nobody has seen them, so none shall stay
        for run_dir in written:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        opened.close()
        if isinstance(error, OSError):
            where = f"{error.filename}: {error.strerror}"
            raise ConfigError(
                f"run directories cannot be written: {where} (set HPCML_HOME to another place)"
            ) from error
        raise


def _fill(prepared: _Prepared, script: str) -> None:
    run_dir, kept = prepared.job.run_dir, prepared.kept
    if prepared.code.diff:
        run_dir.git_diff.write_bytes(prepared.code.diff)
    if kept.code is not None:
        run_dir.code.symlink_to(kept.code)
    if kept.client is not None:  # the agent leaves it as it is
        run_dir.client_path.mkdir()
        (run_dir.client_path / kept.client.name).symlink_to(kept.client)
    run_dir.journals.mkdir()
    run_dir.script.write_text(script, encoding="utf-8")
    write_manifest(run_dir.manifest, prepared.job.manifest)  # last: a directory without it is no run
