"""Speed-ups over nodes: what counts as one observation, and how often the interval holds the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from recorded_runs import arm, curves, run, summary, texts
from scaling_runs import Sweep

from benchmarks.speed_rates import bound_holds, help_claims, node_coverage
from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Row
from hpcml.analysis.scaling.study import ScalingRequest, study_scaling
from hpcml.model.records import Point, RunRecord, Usage
from tests.effort import times

VALUES = [0.90, 0.91, 0.92, 0.93, 0.94, 0.95]


def on(places: str, level: str) -> list[RunRecord]:
    """Return a run of *level* for each seed, on the node of that place."""
    found = []
    for seed, place in enumerate(places):
        record = run(level, seed, VALUES[seed], facts={"hostname": f"n{place}"}, usage=used(level, place, seed))
        steps = {**record.metrics, "step_time_s": summary("step_time_s", 0.01, n=100)}
        found.append(replace(record, metrics=steps, wall_s=100.0))
    return found


def used(level: str, place: str, seed: int) -> Usage:
    of_run = 0.001 * (seed if level == "fp32" else seed**2)
    return Usage(gpus=1, gpu_s=100.0, energy_j=1000.0 * (1 + 0.03 * int(place) + of_run), energy_method="counter")


def node_row(arm_on: str, reference_on: str) -> Row:
    """Return the row of tf32, which is twice as fast and at the target after 50 seconds, not 60."""
    runs = on(reference_on, "fp32") + on(arm_on, "tf32")
    climbs = {r.uid: [Point(0, 0.0, 0.1), Point(9, 60.0 - 10 * (r.precision == "tf32") + r.seed, 0.9)] for r in runs}
    steps = curves(runs, {"fp32": 0.02, "tf32": 0.01})
    question = ComparisonRequest(target=0.9)
    return compare(runs, steps, question, more_curves={"val_accuracy": climbs}).cells[0].rows[1]


@pytest.mark.parametrize(
    ("arm_on", "reference_on", "unit", "flag"),
    [
        ("111111", "111111", "seeds", None),
        ("123456", "123456", "nodes", None),
        ("111222", "222333", "seeds", "speed-up, energy ratio, time to the target: on n2: other nodes may differ"),
        ("111222", "333444", "none", "no node ran both arms"),
        ("112233", "445566", "nodes", None),
        ("112234", "112235", "nodes", None),
    ],
)
def test_the_unit_of_a_speed_up_is_chosen_by_the_nodes_that_arms_share(
    arm_on: str, reference_on: str, unit: str, flag: str | None
) -> None:
    row = node_row(arm_on, reference_on)

    assert row.speed is not None
    assert row.cost is not None
    assert row.to_target is not None
    assert row.cost.energy_ratio_unit == row.to_target.unit == unit
    for interval in (row.cost.energy_ratio_ci95, row.to_target.saved_ci95):
        assert (interval is None) == (unit == "none")
    assert (row.to_target.p_log_rank is None) == (unit == "none" or flag is not None)
    assert row.to_target.saved_s == pytest.approx(10, abs=3)
    assert row.speed.speedup_unit == unit
    assert row.speed.speedup == pytest.approx(2.0, rel=0.02)
    assert (row.speed.speedup_ci95 is None) == (unit == "none")
    found = [each for each in texts(row) if "node" in each]
    assert (found == []) if flag is None else any(flag in each for each in found)


def test_gpus_of_one_node_are_one_node() -> None:
    runs = [
        replace(each, facts={"hostname": "n1", "gpu_uuids": f"GPU-{each.seed + 3 * (each.precision == 'tf32')}"})
        for each in on("111111", "fp32") + on("111111", "tf32")
    ]

    row = compare(runs, curves(runs, {"fp32": 0.02, "tf32": 0.01})).cells[0].rows[1]

    assert row.speed is not None
    assert row.speed.speedup_ci95 is not None
    assert row.speed.speedup_unit == "seeds"
    assert not [flag for flag in texts(row) if "node" in flag or "n1" in flag]


def covers(share: float, trials: int, nominal: float = 0.95) -> bool:
    return abs(share - nominal) <= 0.005 + 3 * math.sqrt(nominal * (1 - nominal) / trials)


@pytest.mark.parametrize(
    ("design", "interaction"),
    [
        ("seed i of both on node i", 0.01),
        ("both on 3 nodes, 2 seeds each", 0.01),
        ("both on one node", 0.0),
        ("A 111222, B 222333", 0.0),
        ("3 nodes each", 0.01),
        ("5 nodes each", 0.01),
    ],
)
def test_intervals_over_nodes_cover_the_truth(design: str, interaction: float) -> None:
    trials = times(800, 10000)

    share, _, without = node_coverage(design, interaction, trials=trials)

    assert without == 0
    assert covers(share, trials)


@pytest.mark.parametrize("design", ["one node each", "2 nodes each", "A 11122, B 13333"])
def test_where_arm_and_node_are_one_there_is_never_an_interval(design: str) -> None:
    assert node_coverage(design, 0.0, trials=50)[2] == 1.0


def kept(runs: Sequence[RunRecord], shapes: dict[str, Any]) -> dict[str, list[Point]]:
    return {
        r.uid: [Point(step=s, t_s=float(s), value=shapes[r.precision](s, r.seed)) for s in range(200)] for r in runs
    }


def test_recurring_slow_steps_count_in_the_speed_up() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    jitter = lambda s, seed: 1 + 0.01 * math.sin(7 * s + seed)  # noqa: E731
    shapes = {
        "fp32": lambda s, seed: 0.02 * jitter(s, seed),
        "tf32": lambda s, seed: 0.01 * jitter(s, seed) * (3 if s % 10 < 3 else 1),  # 30 % of steps are 3 times as long
    }

    cell = compare(runs, kept(runs, shapes)).cells[0]
    speed = cell.rows[1].speed

    assert speed is not None
    assert speed.speedup_of == "means"
    assert speed.speedup == pytest.approx(1.25, rel=0.01)
    assert "speeds are of mean step times: their medians tell others" in texts(cell)


def test_means_are_no_remark_where_only_the_reference_has_a_speed() -> None:
    runs = arm("fp32", VALUES) + [replace(r, numerics="emulated") for r in arm("tf32", VALUES)]
    shapes = dict.fromkeys(("fp32", "tf32"), lambda s, _seed: 0.02 * (3 if s % 3 == 0 else 1))

    cell = compare(runs, kept(runs, shapes)).cells[0]

    assert cell.rows[0].speed is not None
    assert cell.rows[0].speed.speedup_of == "means"
    assert not any("mean step times" in remark for remark in texts(cell))


def test_one_short_run_takes_no_speed_from_the_others() -> None:
    runs = arm("fp32", VALUES[:5]) + arm("tf32", VALUES[:5])
    steps = curves(runs, {"fp32": 0.02, "tf32": 0.01})
    steps[runs[0].uid] = steps[runs[0].uid][:40]

    cell = compare(runs, steps).cells[0]

    assert [row.speed.n for row in cell.rows if row.speed is not None] == [5, 5]
    assert not any("no steady step time" in flag for row in cell.rows for flag in texts(row))
    assert any("each is of its own last half" in remark for remark in texts(cell))


def test_more_gpus_are_not_said_to_help_where_they_are_slower_than_fewer() -> None:
    noise = {1: 0.2, 2: 0.2, 4: 0.01, 8: 0.01}

    assert help_claims({1: 1.0, 2: 2.0, 4: 1.5, 8: 1.2}, noise, seeds=3, trials=times(300, 10000)) <= 0.05
    assert help_claims({1: 1.0, 2: 0.6, 4: 0.4, 8: 0.3}, dict.fromkeys(noise, 0.02), seeds=3, trials=50) > 0.95


@pytest.mark.parametrize(("arms", "n", "rho"), [(1, 3, 0.0), (4, 3, 0.9), (4, 5, 0.5)])
def test_the_upper_bound_of_a_spread_holds_in_eighty_per_cent(arms: int, n: int, rho: float) -> None:
    trials = times(1500, 10000)

    assert min(bound_holds(arms, n, rho, trials=trials)) >= 0.8 - 3 * math.sqrt(0.16 / trials)


@pytest.mark.parametrize(
    ("one_on", "two_on", "unit", "flag"),
    [
        ("111", "111", "seeds", None),
        ("111", "222", "none", "no node ran both arms"),
        ("123", "321", "nodes", None),
    ],
)
def test_more_gpus_on_other_nodes_are_no_speed_up(one_on: str, two_on: str, unit: str, flag: str | None) -> None:
    sweep = Sweep()
    for gpus, places in ((1, one_on), (2, two_on)):
        for seed, place in enumerate(places):
            sweep.add(gpus, 0.1 / gpus, seed=seed, facts={"hostname": f"n{place}", "gpu_uuids": f"GPU-{gpus}"})

    cell = study_scaling(sweep.runs, sweep.curves, ScalingRequest()).cells[0]

    point = cell.points[1]
    assert point.speedup_unit == unit
    assert (point.speedup_ci95 is None) == (point.efficiency_ci95 is None) == (unit == "none")
    assert (flag is None) or any(flag in each for each in texts(point))
    assert any("help up to 2" in each for each in cell.sentences) == (unit != "none")
