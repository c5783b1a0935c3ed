"""Writing the directories of planned runs and submitting them to their schedulers.

A submission survives its process: it is written down before anything else is, so that `recover` can undo one that was
cut off while it wrote run directories, and finish one that was cut off while it submitted.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hpcml.commands.submit import packing, provenance
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.batches import NONE_SUBMITTED, Outgoing, batches_of, submit_all
from hpcml.commands.submit.code import KeptCode, keep_code
from hpcml.commands.submit.containers import put_inside
from hpcml.commands.submit.planned import Planned
from hpcml.commands.submit.submission_log import Intent, OpenIntent, Phase, open_intent, this_host
from hpcml.errors import ConfigError, why_not
from hpcml.model.cluster import SchedulerName
from hpcml.paths import Places
from hpcml.runs.atomic import have_on_disk
from hpcml.runs.layout import RunDir, new_submission_id, new_uid
from hpcml.runs.manifest import Manifest, Provenance, write_manifest
from hpcml.runs.plan import Plan
from hpcml.runs.private import FOLDER, make_folder, open_file, write_file
from hpcml.runs.run_json import FORMAT
from hpcml.schedulers.contract import Job, Preview, Submitter, Ticket
from hpcml.schedulers.registry import require_programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A run that was submitted, with its directory, what it was asked for with, and the ticket of its job."""

    run_dir: RunDir
    manifest: Manifest
    overrides: tuple[str, ...]
    ticket: Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that is completely decided, of which nothing but the copy of its code is on the disk yet."""

    item: Planned
    job: Job
    kept: KeptCode
    code: provenance.Code


def launch(
    planned: Sequence[Planned],
    places: Places,
    backends: Backends,
    command_line: Sequence[str],
) -> list[Launched]:
    """Write every run directory, then submit one job array for each distinct request; return the runs in pack order.

    The steps, each of which `recover` can undo or finish if this process dies: copies of the code are made; the
    submission is written down (phase planning); the run directories are written and synced (phase submitting); the
    batches are sent one after the other. Arrays are split at the site's limit. *command_line* is recorded in each run.

    Raises `ConfigError` if the directories cannot be written (none stays then), and `SubmissionError` if the
    scheduler's programs are not here or a submission failed: what was queued before stays queued and is recorded, the
    rest is recorded as not submitted.
    """
    packs = packing.packs_of(planned)
    require_schedulers(planned)
    now = datetime.now(UTC).astimezone()
    submission = new_submission_id(now)
    everything = [item for pack in packs for item in pack]
    try:
        prepared = iter(prepare(everything, places, command_line, submission, now))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(NONE_SUBMITTED) from error
    return send([[next(prepared) for _ in pack] for pack in packs], submission, places, backends)


def require_schedulers(planned: Sequence[Planned]) -> None:
    """Raise `SubmissionError` where the programs of a scheduler are not here."""
    for cluster in {item.run.cluster.name: item.run.cluster for item in planned}.values():
        require_programs(cluster.scheduler.name, cluster=cluster.name)


def send(packs: Sequence[Sequence[Prepared]], submission: str, places: Places, backends: Backends) -> list[Launched]:
    """Write the run directories of *packs* and submit them, as `launch` does; return the runs in pack order."""
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
    submission = new_submission_id(datetime.now(UTC).astimezone())
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
    """Return the scripts and calls that `launch` would make; nothing is written, and the uids shown are not used."""
    return [item.shown for item in draft(planned, places, backends)]


def draft(planned: Sequence[Planned], places: Places, backends: Backends) -> list[Outgoing]:
    """Return the batches that `launch` would submit, under names that are not used; nothing is written."""
    now = datetime.now(UTC).astimezone()
    origin = provenance.describe([], Path.cwd(), provenance.NO_CODE, (), now)
    index, runs = iter(range(len(planned))), places.runs

    def shown(item: Planned) -> Job:
        run_dir = RunDir(runs / item.run.experiment / new_uid(now, next(index)))
        return _job(item, KeptCode(plan=item.plan, code=None, packages=()), run_dir, origin, spec_hash="")

    packs = [[shown(item) for item in pack] for pack in packing.packs_of(planned)]
    return batches_of(packs, backends, new_submission_id(now))


def plan_shown(item: Planned, places: Places) -> Plan:
    """Return the plan of a run as its agent would find it, for the dry run.

    It differs from the real one in two things: the code is used where it lies instead of a copy, and the run directory
    is called RUN. Without an image it is the plan as it is.
    """
    if item.image is None:
        return item.plan
    run_dir = RunDir(places.runs / item.run.experiment / "RUN")
    return put_inside(item.plan, item.run, item.image, run_dir, folder=item.code_folder, code=None, packages=())


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


def _jobs(outgoing: Sequence[Outgoing]) -> list[Job]:
    return [job for item in outgoing for job in item.batch.jobs]


def prepare(
    everything: Sequence[Planned],
    places: Places,
    command_line: Sequence[str],
    submission: str,
    now: datetime,
) -> list[Prepared]:
    """Take the snapshots of the code and decide everything else; nothing but the snapshots is written.

    *submission* is recorded in each run, with how many they are.
    """
    codes: dict[Path, provenance.Code] = {}
    for item in everything:
        if item.code_folder not in codes:
            codes[item.code_folder] = provenance.describe_code(item.code_folder)
    origin = replace(
        provenance.describe(command_line, Path.cwd(), provenance.NO_CODE, everything[0].user_config, now),
        home=str(places.home),
        submission=submission,
        submission_size=len(everything),
    )
    keep = keep_code(places, codes)
    index, runs = iter(range(len(everything))), places.runs

    def prepared(item: Planned) -> Prepared:
        run_dir = RunDir(runs / item.run.experiment / new_uid(now, next(index)))
        code, kept = codes[item.code_folder], keep(item, run_dir)
        its_origin = replace(
            origin,
            git_commit=code.commit,
            git_dirty=code.dirty,
            code=None if kept.code is None else str(kept.code),
            overrides=list(item.overrides),
        )
        job = _job(item, kept, run_dir, its_origin, spec_hash=item.run.spec_hash)
        return Prepared(item=item, job=job, kept=kept, code=code)

    return [prepared(item) for item in everything]


def _job(item: Planned, kept: KeptCode, run_dir: RunDir, origin: Provenance, *, spec_hash: str) -> Job:
    plan = kept.plan
    if item.image is not None:
        plan = put_inside(
            plan, item.run, item.image, run_dir, folder=item.code_folder, code=kept.code, packages=kept.packages
        )
    manifest = Manifest(
        format=FORMAT,
        uid=run_dir.uid,
        spec_hash=spec_hash,
        run=item.run,
        plan=plan,
        provenance=origin,
    )
    return Job(run_dir=run_dir, manifest=manifest)


def _write_run_dirs(everything: Sequence[Prepared], backends: Backends, opened: OpenIntent) -> None:
    """Write them all, have them on the disk, and say so; on any trouble nothing stays."""
    written: list[RunDir] = []
    submitters: dict[tuple[SchedulerName, int | None], Submitter] = {}  # one of them remembers its scripts
    try:
        for prepared in everything:
            run_dir = prepared.job.run_dir
            if run_dir.path.parent not in {other.path.parent for other in written[-1:]}:
                make_folder(run_dir.path.parent, parents=True)
            written.append(run_dir)  # first: Ctrl-C between the two must not leave a directory that nobody knows
            try:
                run_dir.path.mkdir(mode=FOLDER)
            except OSError:  # above all, somebody else's of that name
                written.pop()
                raise
            cluster = prepared.item.run.cluster
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


def _fill(prepared: Prepared, script: str) -> None:
    run_dir, kept = prepared.job.run_dir, prepared.kept
    if prepared.code.diff:
        with open_file(run_dir.git_diff, "xb") as file:
            file.write(prepared.code.diff)
    if kept.code is not None:
        run_dir.code.symlink_to(kept.code)
    _link_packages(run_dir, kept.packages)
    make_folder(run_dir.journals)
    make_folder(run_dir.logs)
    write_file(run_dir.script, script)
    write_manifest(run_dir.manifest, prepared.job.manifest)  # last: a directory without it is no run


def _link_packages(run_dir: RunDir, packages: Sequence[Path]) -> None:
    """Put *packages* where the program finds them; the agent leaves them as they are."""
    folders = {package.parent for package in packages}
    if len(folders) == 1:
        run_dir.client_path.symlink_to(folders.pop())  # what is made for each run of ten thousand costs most
        return
    if packages:
        make_folder(run_dir.client_path)
    for package in packages:
        (run_dir.client_path / package.name).symlink_to(package)
