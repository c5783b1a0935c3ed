from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
from recorded_runs import arm, run, summary, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import Comparison, ComparisonRequest, Row, ToTarget
from hpcml.errors import ComparisonError
from hpcml.model.query_results import TelemetrySpan, Timeline
from hpcml.model.records import Point, RunRecord, Usage
from hpcml.model.state import State

VALUES = [0.90, 0.91, 0.92, 0.93, 0.91]


def climb(reached_at_s: float, *, target: float = 0.9, every_s: float = 1.0, steps: int = 100) -> list[Point]:
    """Return a curve that first shows *target* at the point of *reached_at_s*, and goes below it once more later."""
    points = [Point(s, s * every_s, target if s * every_s >= reached_at_s else target - 0.1) for s in range(steps)]
    return [*points[:-1], points[-1]._replace(value=target - 0.05)]


def compared(runs: Sequence[RunRecord], times: dict[str, list[float]], *, target: float | None = 0.9) -> Comparison:
    """Compare *runs*, which reach 0.9 at *times*, by precision and seed."""
    curves = {r.uid: climb(times[r.precision][r.seed]) for r in runs if r.uid and r.seed < len(times[r.precision])}
    return compare(runs, {}, ComparisonRequest(target=target), more_curves={"val_accuracy": curves})


def race_of(row: Row) -> ToTarget:
    assert row.to_target is not None
    return row.to_target


def test_the_first_point_at_the_target_counts() -> None:
    runs = arm("fp32", VALUES, wall_s=100.0) + arm("tf32", VALUES, wall_s=100.0)

    cell = compared(runs, {"fp32": [40, 42, 44, 40, 42], "tf32": [20, 21, 22, 20, 21]}).cells[0]

    reference, row = (race_of(row) for row in cell.rows)
    assert cell.target_source == "command line"
    assert (reference.reached, reference.n, reference.median_s) == (5, 5, 42.0)
    assert row.median_s == 21.0
    assert row.restricted_mean_s == pytest.approx(20.8)
    assert reference.saved_s is None
    assert row.saved_s == pytest.approx(20.8)


def test_a_run_that_never_reaches_it_is_censored_and_not_dropped() -> None:
    runs = arm("fp32", VALUES, wall_s=100.0) + arm("tf32", VALUES, wall_s=80.0)

    rows = compared(runs, {"fp32": [40, 42, 44, 40, 42], "tf32": [20, 21, 22, 20, math.inf]}).cells[0].rows

    reference, row = race_of(rows[0]), race_of(rows[1])
    assert (row.reached, row.n, row.median_s) == (4, 5, 20.5)
    assert (row.budget_s, reference.budget_s) == (80.0, 80.0)
    assert row.restricted_mean_s == pytest.approx((20 + 21 + 22 + 20 + 80) / 5)


@pytest.mark.parametrize("state", [State.FAILED, State.TIMEOUT])
def test_runs_that_broke_off_or_diverged_never_reach_it(state: State) -> None:
    runs = arm("fp32", VALUES, wall_s=100.0) + arm("tf32", VALUES[:3], wall_s=100.0)
    runs += [run("tf32", 3, math.nan, wall_s=100.0), run("tf32", 4, None, state=state, wall_s=3.0)]

    row = race_of(compared(runs, {"fp32": [40] * 5, "tf32": [20, 21, 22, math.inf, math.inf]}).cells[0].rows[1])

    assert (row.reached, row.n) == (3, 5)
    assert row.budget_s == 100.0  # of the run that ended without it; the one that broke off limits nothing
    assert row.restricted_mean_s == pytest.approx((20 + 21 + 22 + 100 + 100) / 5)


def test_runs_still_under_way_are_not_counted_as_failures() -> None:
    runs = [*arm("fp32", VALUES), *arm("tf32", VALUES), run("tf32", 5, None, state=State.RUNNING)]

    assert race_of(compared(runs, {"fp32": [40] * 5, "tf32": [20] * 5}).cells[0].rows[1]).n == 5


def test_emulated_runs_reach_the_target_in_no_time_that_says_anything() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES, numerics="emulated")

    reference, row = (race_of(row) for row in compared(runs, {"fp32": [40] * 5, "tf32": [90] * 5}).cells[0].rows)

    assert reference.budget_s == 40.0
    assert (row.reached, row.n) == (5, 5)
    assert (row.median_s, row.restricted_mean_s, row.saved_s, row.median_kj) == (None, None, None, None)


def test_a_target_of_a_loss_is_reached_from_above() -> None:
    objective = {"objective.metric": "val_loss", "objective.goal": "min", "objective.target": 0.5}
    runs = [
        run(p, s, params=objective, metrics={"val_loss": summary("val_loss", 0.4)})
        for p in ("fp32", "tf32")
        for s in (0, 1)
    ]
    curve = [Point(0, 0.0, 0.9), Point(1, 7.0, 0.5), Point(2, 9.0, 0.4)]

    cell = compare(runs, {}, more_curves={"val_loss": {r.uid: curve for r in runs}}).cells[0]

    assert cell.target_source == "config"
    assert race_of(cell.rows[1]).median_s == 7.0


def test_without_a_target_nothing_is_said_of_one() -> None:
    cell = compared(arm("fp32", VALUES) + arm("tf32", VALUES), {"fp32": [1] * 5, "tf32": [1] * 5}, target=None).cells[0]

    assert (cell.target_source, [row.to_target for row in cell.rows]) == (None, [None, None])


def test_runs_that_disagree_on_the_target_are_asked_for_one() -> None:
    runs = arm("fp32", VALUES, params={"objective.target": 0.8}) + arm("tf32", VALUES, params={"objective.target": 0.9})

    with pytest.raises(ComparisonError, match=r"disagree on objective.target: .*give one with --target"):
        compare(runs, {})


def spans(*energies_j: float) -> list[Timeline]:
    nothing = dict.fromkeys(
        field.name for field in fields(TelemetrySpan) if field.name not in ("t_s", "samples", "covered_s", "energy_j")
    )
    listed = [
        TelemetrySpan(t_s=10.0 * at, samples=10, covered_s=10.0, energy_j=energy, **nothing)
        for at, energy in enumerate(energies_j)
    ]
    return [Timeline(attempt=1, node=0, host="n1", device="gpu0", uuid=None, spans=listed)]


def test_energy_to_the_target_is_the_sampled_one() -> None:
    usage = Usage(gpus=1, energy_j=10_000.0, energy_scope="gpu")
    runs = arm("fp32", VALUES[:2], wall_s=100.0, usage=usage) + arm("tf32", VALUES[:2], wall_s=100.0, usage=usage)
    curves = {r.uid: climb(20.0) for r in runs}
    timelines = {r.uid: spans(3000.0, 1000.0, 500.0) for r in runs if r.precision == "tf32"}

    cell = compare(
        runs, {}, ComparisonRequest(target=0.9), more_curves={"val_accuracy": curves}, timelines=timelines
    ).cells[0]

    unknown, sampled = (race_of(row) for row in cell.rows)
    assert unknown.median_kj is None
    assert sampled.median_kj == pytest.approx(4.0)


def test_times_of_a_run_that_waited_in_the_queue_again_are_flagged() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    runs[-1] = replace(runs[-1], attempt=1)

    row = compared(runs, {"fp32": [10] * 5, "tf32": [10] * 5}).cells[0].rows[1]

    assert "times to the target of 1 runs that were started again hold the waiting" in texts(row)
