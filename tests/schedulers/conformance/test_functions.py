"""A sweep of a function on each scheduler, from the script to the comparison of its runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.schedulers.conformance.kit import Site
from tests.schedulers.conformance.sites import SlurmSite

SCRIPT = """
import sys

import hpcml

def train(lr, seed):
    print(f"lr {lr}")
    return {"val_accuracy": 1 - lr + seed / 100}

executor = hpcml.Executor("--config-dir", sys.argv[1], cluster=sys.argv[2])
executor.update_parameters(timeout_min=5, cpus_per_task=1, **{"telemetry.enabled": False})
jobs = executor.map_array(train, [0.1, 0.1, 0.5, 0.5, "high"], [0, 1, 0, 1, 0])
print([job.result()["val_accuracy"] for job in jobs[:4]], jobs[0].stdout().strip())
print("TypeError" in str(jobs[4].exception()), [job.state for job in jobs])
print(len({run.submission for run in hpcml.open_store().runs()}))
"""


def test_a_sweep_of_a_function_gives_its_results_and_is_compared(site: Site) -> None:
    conf, cluster = place_of(site)

    said = run_on(site, "-c", SCRIPT, str(conf), cluster)

    assert said.splitlines() == [
        "[0.9, 0.91, 0.5, 0.51] lr 0.1",
        "True ['COMPLETED', 'COMPLETED', 'COMPLETED', 'COMPLETED', 'FAILED']",
        "1",
    ]
    lines = run_on(site, "-m", "hpcml", "compare", "--by", "lr", "--where", "lr<1").splitlines()
    assert [line.split()[:3] for line in lines if line.startswith(("0.1 ", "0.5 "))] == [
        ["0.1", "2", "0.9050"],
        ["0.5", "2", "0.5050"],
    ]


def place_of(site: Any) -> tuple[Path, str]:  # noqa: ANN401 - of either kind
    if isinstance(site, SlurmSite):
        return site.account.sources / "tests" / "schedulers" / "slurm" / "conf", "testslurm"
    return site.conf, site.cluster


def run_on(site: Site, *words: str) -> str:
    """Return what the Python of *site* prints in the user's folder."""
    environ = {"HPCML_HOME": str(site.folder / "hpcml"), "HPCML_POLL_INTERVAL_S": "0"}
    argv = [site.python, *words]
    if isinstance(site, SlurmSite):
        done = site.account.run(argv, cwd=site.folder, environ=environ)
    else:
        done = subprocess.run(argv, cwd=site.folder, env={**os.environ, **environ}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    printed: str = done.stdout.decode()
    return printed
