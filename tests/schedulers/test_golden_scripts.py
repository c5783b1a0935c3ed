"""The job script of a profile of each dialect, whole: what changes in one is seen in a diff.

``HPCML_UPDATE_GOLDEN=1 pytest tests/schedulers/test_golden_scripts.py`` writes them anew, to be read before a commit.
"""

import os
import subprocess
import sys
from pathlib import Path

from hpcml.commands.submit.backends import Machine
from hpcml.commands.submit.check import plan_all
from hpcml.config.compose import compose_from_cli
from hpcml.paths import resource_dir
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import Manifest
from hpcml.runs.run_json import FORMAT
from hpcml.schedulers.batches import own_batch
from hpcml.schedulers.contract import Job
from hpcml.schedulers.registry import open_submitter
from tests.conftest import ORIGIN

GOLDEN = Path(__file__).parent / "golden"
HOME = Path("/scratch/me/hpcml")
DIALECTS = {
    "karolina": "Slurm",
    "archer2_gpu": "Slurm of a site that refuses options",
    "anselm": "PBS",
    "gadi": "PBS of a site without select",
    "summit": "LSF",
    "tuolumne": "Flux",
}
PROFILES = sorted(path.stem for path in (resource_dir("conf") / "cluster").glob("*.yaml") if path.stem != "local")


def job_on(profile: str, project: Path, *more: str) -> Job:
    words = [f"cluster={profile}", "resources.account=ACCOUNT", "workload.command=train", "name=golden", *more]
    (item,) = plan_all(compose_from_cli(words, project=project), Machine(cores=8, gpus=[]))
    run_dir = RunDir(HOME / "runs" / "demo" / "20261121-083015-222abcde")
    return Job(
        run_dir=run_dir,
        manifest=Manifest(
            format=FORMAT,
            uid=run_dir.uid,
            spec_hash=item.run.spec_hash,
            run=item.run,
            plan=item.plan,
            provenance=ORIGIN,
        ),
    )


def submission(profile: str, project: Path) -> str:
    job = job_on(profile, project)
    submitter = open_submitter(job.manifest.run.cluster.scheduler.name, submissions=HOME / "submissions")
    preview = submitter.preview(own_batch(job))
    text = f"# $ {' '.join(preview.command)}\n{preview.script}"
    return text.replace(sys.executable, "PYTHON")


def test_the_script_of_each_dialect_is_as_it_was_read_and_approved(tmp_path: Path) -> None:
    for profile, dialect in DIALECTS.items():
        file = GOLDEN / f"{profile}.sh"
        script = submission(profile, tmp_path)
        if os.environ.get("HPCML_UPDATE_GOLDEN"):
            file.write_text(script)

        assert script == file.read_text(), f"{profile}: {dialect}"
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(DIALECTS)


def test_the_script_of_every_profile_is_one_that_bash_reads(tmp_path: Path) -> None:
    for profile in PROFILES:
        read = subprocess.run(
            ["bash", "-n"], input=submission(profile, tmp_path), text=True, check=False, capture_output=True
        )

        assert (read.returncode, read.stderr) == (0, ""), profile
