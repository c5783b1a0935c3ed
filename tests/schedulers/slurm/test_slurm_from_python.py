"""Runs that a notebook submits to a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account

pytestmark = pytest.mark.slurm

NOTEBOOK = """
import sys
from concurrent.futures import ThreadPoolExecutor

import hpcml

def composed(code, seeds):
    words = ["--config-dir", sys.argv[1], "cluster=testslurm"]
    return hpcml.compose(*words, program=["python3", "-c", code, "{seed}"], sweep={"seed": seeds})

runs = composed("print(1)", range(3))
print(runs.preview().submissions[0].command[0])
submission = runs.submit()
print(len(submission), len({run.job_id for run in submission.runs()}))
waiting = composed("import time; time.sleep(600)", [7])
with ThreadPoolExecutor(1) as pool:  # of a server, say
    sleeper = pool.submit(waiting.submit).result()
print(sorted(run.seed for run in submission.as_completed(timeout_s=120)))
print({standing.record.state.name for standing in sleeper.status()} <= {"PENDING", "RUNNING"})
print(list(sleeper.cancel().values()))
print([run.state.name for run in sleeper.wait(timeout_s=120)])
"""


def test_a_notebook_submits_waits_and_cancels(slurm: Account, folder: Path) -> None:
    conf = slurm.sources / "tests" / "schedulers" / "slurm" / "conf"

    done = slurm.run(
        [str(slurm.python), "-c", NOTEBOOK, str(conf)],
        cwd=folder,
        environ={"HPCML_HOME": str(folder / "hpcml"), "HPCML_POLL_INTERVAL_S": "0"},
    )

    assert done.stdout.decode().splitlines() == [
        "sbatch",
        "3 1",
        "[0, 1, 2]",
        "True",
        "['cancelling']",
        "['CANCELLED']",
    ], done.stderr.decode()
