"""Composed runs checked against the machine, written down, and handed to a scheduler: all of them or none."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcml.agent import gpu, host
from hpcml.cluster import SchedulerName
from hpcml.config.compose import Composed
from hpcml.errors import ConfigError, HpcmlError, SubmissionError
from hpcml.manifest import FORMAT, Manifest, Plan, write_manifest
from hpcml.operations import provenance
from hpcml.places import Places
from hpcml.precision import CPU, Device
from hpcml.resources import client_dir, resource_dir
from hpcml.rundir import RunDir, new_uid
from hpcml.schedulers.local import LocalSubmitter
from hpcml.schedulers.slots import Pool
from hpcml.schedulers.submitter import Job, Ticket
from hpcml.spec import Run, spec_hash
from hpcml.workload import Software, build_plan, processes_per_node
from hpcml_client.journal import JournalWriter

_MOST_DEFAULT_CORES = 8  # a small model gains nothing from more, and leaves room for a second run


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that `hpcml run` was typed on."""

    cores: int
    gpus: Sequence[gpu.Gpu]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run that could start now: checked, and nothing written yet."""

    run: Run
    plan: Plan
    overrides: tuple[str, ...]
    user_config: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A run that a scheduler has."""

    run_dir: RunDir
    manifest: Manifest
    overrides: tuple[str, ...]
    ticket: Ticket


def look_around(environ: Mapping[str, str]) -> Machine:
    """Return the cores and GPUs that this process may use."""
    visible = gpu.visible_gpus(gpu.list_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    return Machine(cores=host.usable_cores(), gpus=visible)


def plan_all(points: Sequence[Composed], machine: Machine) -> list[Planned]:
    """Plan every point, or raise `ConfigError` for the first that cannot run; nothing has happened then.

    The order is by seed first: precisions take turns, so that a machine that warms up or fills up meets them alike.
    """
    software = Software(python=sys.executable, recipes=resource_dir("recipes"), cwd=Path.cwd())
    planned = [_plan(point, machine, software) for point in points]
    return sorted(planned, key=lambda item: item.run.seed)


def _plan(point: Composed, machine: Machine, software: Software) -> Planned:
    run = point.run
    if run.data.path is not None and not Path(run.data.path).exists():
        raise ConfigError(f"data.path={run.data.path} does not exist")
    cwd = Path(run.workload.cwd or software.cwd)
    if not cwd.is_dir():
        raise ConfigError(f"workload.cwd={cwd} is no directory")
    local = run.cluster.scheduler is SchedulerName.local
    device = _local_device(run, machine) if local else run.profile_device()
    cpus = _local_cpus(run, machine, device) if local else run.resources.cpus_per_task
    plan = build_plan(run, device, software, cpus_per_task=cpus)
    if local and run.workload.command and shutil.which(plan.argv[0], path=_search_path(cwd)) is None:
        raise ConfigError(f"workload.command={run.workload.command!r}: there is no program {plan.argv[0]!r} here")
    return Planned(run=run, plan=plan, overrides=point.overrides, user_config=point.user_config)


def _search_path(cwd: Path) -> str:
    return os.pathsep.join([str(cwd), os.environ.get("PATH", os.defpath)])


def _local_device(run: Run, machine: Machine) -> Device:
    wanted = run.resources.gpus_per_node
    if wanted is not None and wanted > len(machine.gpus):
        raise ConfigError(f"resources.gpus_per_node={wanted}: this machine shows {len(machine.gpus)}")
    if wanted == 0 or not machine.gpus:
        return CPU
    first = machine.gpus[0]
    return Device(kind="cuda", name=first.name, compute_capability=first.compute_capability)


def _local_cpus(run: Run, machine: Machine, device: Device) -> int:
    processes = processes_per_node(run, device)
    share = machine.cores // (processes if device.kind == "cpu" else max(len(machine.gpus), processes))
    cpus = run.resources.cpus_per_task or max(1, min(share, _MOST_DEFAULT_CORES))
    if cpus * processes > machine.cores:
        raise ConfigError(
            f"{processes} process(es) with resources.cpus_per_task={cpus}: this machine has {machine.cores} cores"
        )
    return cpus


def launch(planned: Sequence[Planned], places: Places, machine: Machine, command_line: Sequence[str]) -> list[Launched]:
    """Write every run directory, then submit; what was submitted is recorded in them.

    Raises `ConfigError` if the directories cannot be written, and `SubmissionError` if nothing could be queued.
    """
    submitter = _submitter(planned, places, machine)
    jobs = _write_run_dirs(planned, places, command_line)
    try:
        with _sigint_deferred():
            tickets = submitter.submit(jobs)
            for job, ticket in zip(jobs, tickets, strict=True):
                _tell(
                    job.run_dir,
                    "submitted",
                    scheduler=ticket.scheduler,
                    job_id=ticket.job_id,
                    array_index=ticket.array_index,
                )
    except HpcmlError as error:
        for job in jobs:
            _tell(job.run_dir, "submission_failed", reason=str(error))
        raise
    return [
        Launched(run_dir=job.run_dir, manifest=job.manifest, overrides=item.overrides, ticket=ticket)
        for job, item, ticket in zip(jobs, planned, tickets, strict=True)
    ]


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


def _submitter(planned: Sequence[Planned], places: Places, machine: Machine) -> LocalSubmitter:
    clusters = {item.run.cluster.name: item.run.cluster for item in planned}
    for cluster in clusters.values():
        if cluster.scheduler is not SchedulerName.local:
            raise SubmissionError(
                f"cluster={cluster.name} takes jobs by {cluster.scheduler.name}, which this version cannot do yet: "
                "use --dry-run to check the configuration, or cluster=local to run it here"
            )
    limits = [cluster.max_parallel for cluster in clusters.values() if cluster.max_parallel is not None]
    return LocalSubmitter(
        submissions=places.submissions,
        # Locks on cores and GPUs are this machine's: a home directory may be shared with others.
        lock_dir=Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"hpcml-{os.getuid()}",
        pool=Pool(cores=machine.cores, gpus=[device.uuid for device in machine.gpus]),
        max_parallel=min(limits, default=None),
    )


def _write_run_dirs(planned: Sequence[Planned], places: Places, command_line: Sequence[str]) -> list[Job]:
    now = datetime.now().astimezone()
    folder = Path.cwd()
    code = provenance.describe_code(folder)
    origin = provenance.describe(command_line, folder, code, planned[0].user_config, now)
    jobs: list[Job] = []
    written: list[RunDir] = []
    try:
        for index, item in enumerate(planned):
            run_dir = RunDir(places.runs / item.run.experiment / new_uid(now, index))
            run_dir.path.parent.mkdir(parents=True, exist_ok=True)
            run_dir.path.mkdir(mode=0o700)
            written.append(run_dir)
            manifest = Manifest(
                format=FORMAT,
                uid=run_dir.uid,
                spec_hash=spec_hash(item.run),
                run=item.run,
                plan=item.plan,
                provenance=origin,
            )
            _fill(run_dir, manifest, code)
            jobs.append(Job(run_dir=run_dir, manifest=manifest))
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


def _fill(run_dir: RunDir, manifest: Manifest, code: provenance.Code) -> None:
    if code.diff:
        run_dir.git_diff.write_bytes(code.diff)
    run_dir.journals.mkdir()
    run_dir.client_path.mkdir()
    (run_dir.client_path / "hpcml_client").symlink_to(client_dir())
    run_dir.script.write_text(render_script(run_dir), encoding="utf-8")
    write_manifest(run_dir.manifest, manifest)  # last: a directory without it is no run


def render_script(run_dir: RunDir) -> str:
    """Return the script that runs the agent, on this machine."""
    return (
        "#!/bin/bash\n"
        f"# hpcml run {run_dir.uid}; may be started again by hand: bash {shlex.quote(run_dir.script.name)}\n"
        f"exec {shlex.quote(sys.executable)} -m hpcml.agent.main {shlex.quote(str(run_dir.path))}\n"
    )


def _tell(run_dir: RunDir, name: str, **details: object) -> None:
    with JournalWriter.open(str(run_dir.journals), run=run_dir.uid, writer="launch") as journal:
        journal.event(name, details)


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
