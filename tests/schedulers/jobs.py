"""Run directories as `hpcml run` leaves them, for tests that hand them to a scheduler themselves."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from hpcml.commands.submit.plan import Software, build_plan
from hpcml.config.compose import compose_from_cli
from hpcml.paths import resource_dir
from hpcml.runs.layout import RunDir, new_uid, program_packages
from hpcml.runs.manifest import Manifest, Provenance, write_manifest
from hpcml.runs.run_json import FORMAT
from hpcml.schedulers.contract import Job, Submitter


def write_job(submitter: Submitter, conf: Path, folder: Path, *overrides: str, index: int = 0, user: str = "me") -> Job:
    """Leave a complete run directory of *user* in *folder*, with the script of *submitter*; *conf* has its clusters."""
    (point,) = compose_from_cli(["--config-dir", str(conf), *overrides], project=folder)
    run, now = point.run, datetime.now().astimezone()
    run_dir = RunDir(folder / "runs" / run.experiment / new_uid(now, index))
    run_dir.path.mkdir(parents=True)
    software = Software(python=sys.executable, recipes=resource_dir("recipes"), cwd=folder)
    manifest = Manifest(
        format=FORMAT,
        uid=run_dir.uid,
        spec_hash=run.spec_hash,
        run=run,
        plan=build_plan(run, run.profile_device(), software, cpus_per_task=run.resources.cpus_per_task),
        provenance=Provenance(
            command_line=[], submitted_at=now.isoformat(), submitted_from="here", user=user, cwd=str(folder),
            hpcml_version="0", python=sys.version,
        ),
    )  # fmt: skip
    run_dir.journals.mkdir()
    run_dir.client_path.mkdir()
    for package in program_packages():
        (run_dir.client_path / package.name).symlink_to(package)
    write_manifest(run_dir.manifest, manifest)
    job = Job(run_dir=run_dir, manifest=manifest)
    run_dir.script.write_text(submitter.script_for(job), encoding="utf-8")
    return job
