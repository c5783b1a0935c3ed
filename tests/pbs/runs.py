"""Run directories as `hpcml run` leaves them, for tests that hand them to PBS themselves."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path

from hpcml.config.compose import compose_from_cli
from hpcml.manifest import FORMAT, Manifest, Provenance, write_manifest
from hpcml.resources import client_dir, resource_dir
from hpcml.rundir import RunDir, new_uid
from hpcml.schedulers.pbs import PbsSubmitter
from hpcml.schedulers.submitter import Batch, Job, Known, Submitter, Ticket
from hpcml.spec import spec_hash
from hpcml.workload import Software, build_plan

CONF = Path(__file__).parent / "conf"


def write_job(
    submitter: Submitter, folder: Path, words: Sequence[str], *overrides: str, index: int = 0, cluster: str = "testpbs"
) -> Job:
    """Leave a complete run directory in *folder* of a run that executes *words*."""
    workload = f"workload.command={shlex.join(words)}"
    (point,) = compose_from_cli(["--config-dir", str(CONF), f"cluster={cluster}", workload, *overrides], project=folder)
    run, now = point.run, datetime.now().astimezone()
    run_dir = RunDir(folder / "runs" / run.experiment / new_uid(now, index))
    run_dir.path.mkdir(parents=True)
    software = Software(python=sys.executable, recipes=resource_dir("recipes"), cwd=folder)
    manifest = Manifest(
        format=FORMAT,
        uid=run_dir.uid,
        spec_hash=spec_hash(run),
        run=run,
        plan=build_plan(run, run.profile_device(), software, cpus_per_task=run.resources.cpus_per_task),
        provenance=Provenance(
            command_line=[], submitted_at=now.isoformat(), submitted_from="here", user="me", cwd=str(folder),
            hpcml_version="0", python=sys.version,
        ),
    )  # fmt: skip
    run_dir.journals.mkdir()
    run_dir.logs.mkdir()
    run_dir.client_path.mkdir()
    (run_dir.client_path / "hpcml_client").symlink_to(client_dir())
    write_manifest(run_dir.manifest, manifest)
    job = Job(run_dir=run_dir, manifest=manifest)
    run_dir.script.write_text(submitter.script_for(job), encoding="utf-8")
    return job


def batch_of(jobs: Sequence[Job], *, in_packs_of: int = 1) -> Batch:
    """Return the batch of *jobs*; several have a token as a submission gives it."""
    packs = [jobs[first : first + in_packs_of] for first in range(0, len(jobs), in_packs_of)]
    token = jobs[0].run_dir.uid if len(jobs) == 1 else f"{jobs[0].run_dir.uid}-0"
    return Batch(token=token, packs=packs)


def submit(submitter: PbsSubmitter, *jobs: Job) -> list[Ticket]:
    return submitter.submit(batch_of(jobs))


def events(job: Job, name: str) -> list[dict[str, object]]:
    """Return the details of the events called *name* in all journals of the run."""
    found = [json.loads(line) for path in job.run_dir.journal_files() for line in path.read_text().splitlines()]
    return [said["d"] for said in found if said.get("n") == name]


def output(job: Job, attempt: int = 0, rank: int = 0) -> str:
    """Return what the run's program printed."""
    return job.run_dir.stdout(attempt, rank).read_text()


def until_final(submitter: PbsSubmitter, tickets: Collection[Ticket], *, timeout_s: float = 300) -> dict[Ticket, Known]:
    """Ask until every job has ended."""
    until = time.monotonic() + timeout_s
    while True:
        known = submitter.query(tickets).known
        if len(known) == len(tickets) and all(said.state.is_final for said in known.values()):
            return known
        assert time.monotonic() < until, known
        time.sleep(0.2)


def wait_for_start(job: Job, *, agents: int = 1, timeout_s: float = 300) -> None:
    """Wait until so many agents have started the run's program."""
    until = time.monotonic() + timeout_s
    while len(list(job.run_dir.logs.glob("*-rank*.out"))) < agents:
        assert time.monotonic() < until, list(job.run_dir.logs.iterdir())
        time.sleep(0.05)
