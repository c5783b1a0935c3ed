"""What runs asked of the scheduler against what they used, run by run and for a run that is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcml.model.asked_used import AskedUsed, asked_and_used, of_run
from hpcml.model.records import RunRecord, Usage
from hpcml.model.state import State
from hpcml.report.asked_used import expected_line, used_line
from tests.report.report_values import run as record

ASKED = {"resources.walltime": "8h", "resources.mem": "4G", "resources.cpus_per_task": 4, "resources.gpus_per_node": 2}


def run(*, wall_s: float | None = 2400.0, params: dict[str, Any] | None = None, **usage: float) -> RunRecord:
    measured = Usage(**usage) if usage else None
    asked = ASKED if params is None else params
    return replace(record(), state=State.COMPLETED, attempt=0, wall_s=wall_s, params=asked, usage=measured)


def test_a_run_is_told_what_it_asked_for_and_used() -> None:
    line = used_line(run(cpu_s=4800.0, max_host_memory_mb=1024.0))

    assert line == "walltime 40m of 8h (8 %), cores 2.0 of 8.0 (25 %), memory 1024 MiB of 4096 MiB (25 %)"


def test_what_is_not_known_or_not_asked_for_is_left_out() -> None:
    assert [each.what for each in of_run(run())] == ["walltime"]
    assert of_run(run(params={}, cpu_s=3.0)) == []
    assert of_run(replace(run(), state=State.RUNNING)) == []
    assert used_line(run(params={"resources.walltime": "of another version"})) is None


def test_of_several_jobs_nobody_knows_what_each_had_of_walltime_and_memory() -> None:
    requeued = replace(run(wall_s=90000.0, cpu_s=180000.0, max_host_memory_mb=6000.0), attempt=3)

    assert used_line(requeued) == "cores 2.0 of 8.0 (25 %)"


def test_for_a_planned_run_the_hungriest_of_those_alike_counts() -> None:
    found = asked_and_used(ASKED, [run(wall_s=600.0), run(wall_s=2400.0), run(wall_s=None)])

    assert found == [AskedUsed(what="walltime", asked=28800.0, used=2400.0, runs=2)]
    assert expected_line(found[0]) == "resources.walltime: asked 8h, 2 such runs took 40m at most"


@pytest.mark.parametrize(("used", "share"), [(14400.0, 0.5), (43200.0, 1.5)])
def test_a_share_may_be_more_than_one(used: float, share: float) -> None:
    assert AskedUsed(what="walltime", asked=28800.0, used=used).share == share
