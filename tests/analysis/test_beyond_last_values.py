"""Whole learning curves, censored times to a target, and the verdict as a function of the margin."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.exact import log_rank
from hpcml.model.comparison import ComparisonRequest, Row
from hpcml.model.records import Point, RunRecord
from hpcml.report.finding import sentence
from tests.analysis.recorded_runs import arm

METRIC = "val_accuracy"
SPREAD = (0.0, 0.004, -0.003, 0.002, 0.001)


def judged(runs: list[RunRecord], curves: dict[str, list[Point]], **asked: float) -> Row:
    return compare(runs, {}, ComparisonRequest(**asked), more_curves={METRIC: curves}).cells[0].rows[1]


def two_arms(*, shift: float = 0.0) -> list[RunRecord]:
    values = [0.9 + each for each in SPREAD]
    return [
        *arm("fp32", values),
        *arm("tf32", [value + shift + off / 3 for value, off in zip(values, SPREAD[::-1], strict=True)]),
    ]


def test_the_area_is_the_mean_difference_and_the_band_holds_where_curves_part() -> None:
    runs = two_arms()
    curves = {
        run.uid: [
            Point(
                step,
                float(step),
                0.5 + SPREAD[run.seed] + (0.1 + SPREAD[run.seed] if run.precision == "tf32" and step >= 50 else 0.0),
            )
            for step in range(101)
        ]
        for run in runs
    }

    found = judged(runs, curves).curve

    assert found is not None
    assert (found.steps[0], found.steps[-1], found.n, found.paired) == (0.0, 100.0, 5, True)
    mean = 0.1 + sum(SPREAD) / 5
    assert found.area == pytest.approx(mean * 0.505)
    apart = [step for step, low in zip(found.steps, found.low, strict=True) if low > 0]
    assert apart == [step for step in found.steps if step > 50]
    t = stats.t.ppf(1 - 0.05 / 20, 4) * stats.tstd(SPREAD) / math.sqrt(5)
    assert found.high[-1] - found.difference[-1] == pytest.approx(t)


def test_curves_of_two_seeds_or_without_common_steps_are_not_compared() -> None:
    runs = two_arms()
    short = {run.uid: [Point(0, 0.0, 0.1), Point(9, 1.0, 0.2)] for run in runs if run.seed < 2}
    apart = {run.uid: [Point(at + 100 * (run.precision == "tf32"), 0.0, 0.1 + at) for at in range(9)] for run in runs}

    assert judged(runs, short).curve is None
    assert judged(runs, apart).curve is None
    assert judged(runs, {}).curve is None


def test_a_censored_run_counts_with_the_budget_and_the_log_rank_test_knows_it() -> None:
    times = {"fp32": (5.0, 6.0, 7.0, 8.0, None), "tf32": (3.0, 3.5, 4.0, 4.5, 5.5)}
    runs = [replace(run, wall_s=10.0, numerics="native") for run in two_arms()]
    curves = {
        run.uid: [Point(0, 0.0, 0.1), *([Point(1, at, 0.95)] if (at := times[run.precision][run.seed]) else [])]
        for run in runs
    }

    found = judged(runs, curves, target=0.9).to_target

    assert found is not None
    assert (found.reached, found.ratio, found.budget_s) == (5, None, 10.0)
    saved = [2.0, 2.5, 3.0, 3.5, 4.5]
    assert found.saved_s == pytest.approx(sum(saved) / 5)
    assert found.saved_ci95 is not None
    expected = stats.ttest_1samp(saved, 0).confidence_interval(0.95)
    assert (found.saved_ci95.low, found.saved_ci95.high) == pytest.approx(tuple(expected))
    # of the 252 ways to deal ten times to two arms, these and their mirror images are as far apart or farther
    assert found.p_log_rank == pytest.approx(2 / 252 * round(found.p_log_rank * 126))
    assert found.p_log_rank < 0.05
    assert log_rank([10.0, 11.0], [10.0, 12.0], 10.0) is None  # nobody was there in time


def test_the_exact_log_rank_p_is_that_of_scipys_statistic_over_all_deals() -> None:
    times, end = [3.0, 4.0, 4.0, 9.0, 2.0, 5.0, 9.5, 9.5], 9.0

    def statistic(chosen: tuple[int, ...]) -> float:
        arms = [[times[at] for at in range(8) if (at in chosen) is is_in] for is_in in (True, False)]
        known = [
            stats.CensoredData(uncensored=[t for t in arm if t < end], right=[end for t in arm if t >= end])
            for arm in arms
        ]
        return float(stats.logrank(*known).statistic)

    # all variances are nearly alike: what is compared is the numerator, up to the sign
    every = [statistic(chosen) for chosen in combinations(range(8), 4)]
    share = sum(abs(each) >= abs(every[0]) - 0.05 for each in every) / len(every)

    assert log_rank(times[:4], times[4:], end) == pytest.approx(share, abs=0.06)
    many = list(np.random.default_rng(0).exponential(size=40))
    mine = stats.logrank(stats.CensoredData(many[:20]), stats.CensoredData(many[20:])).pvalue
    assert log_rank(many[:20], many[20:], 99.0) == pytest.approx(mine)


@pytest.mark.parametrize("shift", [-0.05, -0.004, 0.0, 0.004])
def test_the_verdict_by_margin_is_that_of_a_comparison_with_this_margin(shift: float) -> None:
    runs = two_arms(shift=shift)
    plain = compare(runs, {}, ComparisonRequest(by="precision", margin=0.01, allow_mixed=True))
    told = plain.cells[0].rows[1].difference
    assert told is not None
    assert told.by_margin
    for at, each in enumerate(told.by_margin):
        later = told.by_margin[at + 1].above if at + 1 < len(told.by_margin) else 2 * each.above + 0.01
        for margin in (each.above * 1.01 + 1e-9, later * 0.99):
            row = compare(runs, {}, ComparisonRequest(margin=margin)).cells[0].rows[1]
            assert row.verdict == each.verdict


def test_an_arm_that_lost_runs_is_promised_nothing_at_any_margin() -> None:
    runs = [*two_arms()[:5], *arm("tf32", [0.9, 0.91, 0.905, math.nan, math.nan])]
    row = compare(runs, {}, ComparisonRequest(margin=0.1)).cells[0].rows[1]

    assert row.verdict == "unstable"
    assert row.difference is not None
    assert row.difference.by_margin == ()


def test_a_recorded_step_of_the_metric_counts_before_a_guess_and_after_the_configured_one() -> None:
    runs = [replace(run, facts={**run.facts, f"metric_resolution.{METRIC}": 1 / 355}) for run in two_arms()]
    configured = [replace(run, params={**run.params, "objective.resolution": 0.01}) for run in runs]

    cell, other = (compare(each, {}, ComparisonRequest(margin=0.1)).cells[0] for each in (runs, configured))

    assert (cell.resolution, cell.resolution_source) == (1 / 355, "recorded")
    assert (other.resolution, other.resolution_source) == (0.01, "config")


def test_a_row_that_only_the_other_rows_keep_from_a_claim_says_so() -> None:
    runs = two_arms()
    wide = [0.9 + 3.4 * each for each in (0.001, -0.004, 0.003, -0.002, 0.002)]
    for name in ("bf16", "amp_fp16", "amp_bf16", "fp16"):
        runs += arm(name, wide)
    found = compare(runs, {}, ComparisonRequest(margin=0.019))
    row = found.cells[0].rows[-1]

    assert (row.verdict, row.verdict_alone) == ("inconclusive", "equivalent")
    said = sentence(found, found.cells[0], row)
    assert said.startswith("cannot tell among 5 rows (Holm); alone it would be: no difference that matters: ")


@pytest.mark.parametrize(("scale", "shown"), [(1e300, "e+"), (1e-12, "e-")])
def test_numbers_of_any_size_stay_short(scale: float, shown: str) -> None:
    runs = [
        *arm("fp32", [scale * (1 + each) for each in SPREAD]),
        *arm("tf32", [scale * (1 - each) for each in SPREAD]),
    ]
    found = compare(runs, {}, ComparisonRequest(margin=0.01 * scale))
    said = sentence(found, found.cells[0], found.cells[0].rows[1])

    assert shown in said
    assert len(said) < 160


def test_curves_that_begin_with_the_largest_number_are_compared() -> None:
    runs = two_arms()
    curves = {run.uid: [Point(1, 1.0, 1.79769e308), Point(2, 2.0, 1.79769e308), Point(3, 3.0, 0.5)] for run in runs}

    row = judged(runs, curves, margin=0.05)

    assert row.curve is not None
    assert row.curve.area == 0.0


def test_differences_without_spread_or_step_say_why_there_is_no_verdict() -> None:
    runs = [*arm("fp32", [0.9] * 5), *arm("tf32", [0.9 + 1e-9] * 5)]
    found = compare(runs, {}, ComparisonRequest(margin=0.01))

    assert "see that the program takes its seed" in sentence(found, found.cells[0], found.cells[0].rows[1])

    moved = [*arm("fp32", [0.91, 0.913, 0.908]), *arm("tf32", [0.9112345, 0.9142345, 0.9092345])]
    found = compare(moved, {}, ComparisonRequest(margin=0.01))
    said = sentence(found, found.cells[0], found.cells[0].rows[1])
    assert "is the same for each seed" in said
    assert "takes its seed" not in said  # the arms' own values differ from seed to seed
