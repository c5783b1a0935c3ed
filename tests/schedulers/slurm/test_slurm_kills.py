"""Anything that takes part in a sweep on Slurm is killed at random: no run is lost, none is in two hands."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from tests.cli.kills import ALONE, assert_alone_and_whole, hunt, until_completed
from tests.cluster.slurm.account import Account
from tests.effort import times
from tests.schedulers.slurm.user import Hpcml

pytestmark = pytest.mark.slurm

log = logging.getLogger(__name__)
KILLS = times(4, 40)  # in each part, which has a home of its own
RUNS = 2


@pytest.mark.parametrize("part", range(times(1, 25)))
def test_whatever_is_killed_every_run_on_slurm_completes_once_at_a_time(
    slurm: Account, folder: Path, part: int
) -> None:
    hpcml = Hpcml(account=slurm, project=folder)
    conf = slurm.sources / "tests" / "schedulers" / "slurm" / "conf"
    program = hpcml.write("alone.py", ALONE)
    command = f"workload.command={slurm.python} {program} 1.5"
    sweep = ["run", "--config-dir", str(conf), "cluster=testslurm", "-m", "--detach", command, f"seed=range({RUNS})"]
    chance = random.Random(20261123 + part)  # noqa: S311 - a repeatable choice

    sweeps, killed = hunt(hpcml, sweep, chance, KILLS)
    log.info("part %s: %s sweeps, killed %s", part, len(sweeps), dict(killed))
    runs = until_completed(hpcml, sweeps, RUNS)

    assert_alone_and_whole(runs)
    (hpcml.home / "store.db").unlink()
    assert hpcml.runs() == runs
