"""``schedule.until=verdict`` on a real Slurm: each round is a submission like any other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.schedulers.slurm.user import Hpcml

pytestmark = pytest.mark.slurm

UNDECIDED_AT_FIRST = """
import argparse, random
import hpcml_client

words = argparse.ArgumentParser()
words.add_argument("--lr", type=float)
words.add_argument("--seed", type=int)
chosen = words.parse_args()
shared, own = random.Random(chosen.seed).random(), random.Random(3 * chosen.seed + chosen.lr).gauss(0, 0.012)
with hpcml_client.connect() as run:
    run.metric("val_accuracy", 0.9 + 0.02 * shared + own, step=1)
"""


def test_seeds_are_submitted_in_rounds_until_the_looks_decide(slurm: Account, folder: Path) -> None:
    hpcml = Hpcml(slurm, folder)
    program = str(hpcml.write("program.py", UNDECIDED_AT_FIRST))
    words = ["-m", "experiment=rounds", "seed=range(8)", "schedule.until=verdict", "objective.margin=0.015"]
    words += ["objective.metric=val_accuracy", "--", "python3", program, "--lr", "0.1,0.2", "--seed", "{seed}"]

    hpcml.submit(*words)
    hpcml.runs_once_ended()
    synced = hpcml("sync").stdout.decode()
    runs = hpcml.runs_once_ended()

    assert "rounds: look 1 of 4 with 4 seeds: 0.2 inconclusive, goes on" in synced
    assert Counter(run["seed"] for run in runs) == dict.fromkeys(range(5), 2)
    assert len({run["job_id"] for run in runs}) == 2  # an array for each round
    assert {run["state"] for run in runs} == {"COMPLETED"}
    assert "rounds: look 2 of 4 with 5 seeds" in hpcml("sync").stdout.decode()
