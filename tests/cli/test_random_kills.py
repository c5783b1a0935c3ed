"""Anything that takes part in a sweep is killed at random: no run is lost, none is in two hands, each completes."""

from __future__ import annotations

import logging
import random

import pytest

from tests.cli.command_line import Hpcml
from tests.cli.kills import alone, assert_alone_and_whole, hunt, until_completed
from tests.effort import times

log = logging.getLogger(__name__)
KILLS = times(20, 40)  # in each part, which has a home of its own
RUNS = 3


@pytest.mark.story
@pytest.mark.parametrize("part", range(times(1, 25)))
def test_whatever_is_killed_every_run_completes_once_at_a_time(hpcml: Hpcml, part: int) -> None:
    chance = random.Random(20261122 + part)  # noqa: S311 - a repeatable choice

    sweeps, killed = hunt(hpcml, ["run", "-m", "--detach", alone(1.5), f"seed=range({RUNS})"], chance, KILLS)
    log.info("part %s: %s sweeps, killed %s", part, len(sweeps), dict(killed))
    runs = until_completed(hpcml, sweeps, RUNS)

    assert_alone_and_whole(runs)
    (hpcml.home / "store.db").unlink()
    assert hpcml.runs() == runs
