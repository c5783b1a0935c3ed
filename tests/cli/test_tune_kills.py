"""Looks of a search that are killed at any moment: no point is lost, none is submitted twice."""

from __future__ import annotations

import json
import random
import sys

import pytest

from tests.cli.command_line import Hpcml
from tests.cli.kills import changes_of, run_killed
from tests.effort import times

RUNS = 16
KILLS = 10  # in each part
PROGRAM = "import sys; x = float(sys.argv[2]); print('val_loss', (x - 3) ** 2)"


@pytest.mark.parametrize("part", range(times(1, 5)))
def test_a_study_is_whole_however_often_its_looks_are_killed(hpcml: Hpcml, part: int) -> None:
    chance = random.Random(part)  # noqa: S311 - a repeatable choice
    (hpcml.cwd / "t.py").write_text(PROGRAM)
    settings = ("experiment=s", "telemetry.enabled=false")
    limits = ("--metric", "val_loss", "--runs", str(RUNS), "--in-flight", "2")
    begun = hpcml("tune", "--once", *limits, *settings, "--", sys.executable, "t.py", "--x", "0.0..10.0")
    assert begun.returncode == 0, begun.stderr

    hpcml("wait")
    changes = changes_of(hpcml, "tune", "--again", "s")

    for _ in range(KILLS):
        run_killed(hpcml, chance.randrange(changes), "tune", "--again", "s")
    while (found := json.loads(hpcml("tune", "--again", "s", "--json").stdout))["under_way"]:
        hpcml("wait")

    assert [point["state"] for point in found["points"]] == ["COMPLETED"] * RUNS
    assert len({point["point"]["x"] for point in found["points"]}) == RUNS
    assert len(list(hpcml.home.glob("runs/s/*/run.json"))) == RUNS
    assert not list(hpcml.home.glob("submissions/open/[!.]*"))  # a draft of a killed process is nothing yet
