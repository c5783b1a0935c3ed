"""Censored times to a target, steps of a metric, and what a conclusion says where a claim cannot be made."""

from __future__ import annotations

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


def two_arms() -> list[RunRecord]:
    values = [0.9 + each for each in SPREAD]
    return [
        *arm("fp32", values),
        *arm("tf32", [value + off / 3 for value, off in zip(values, SPREAD[::-1], strict=True)]),
    ]


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


def test_a_recorded_step_of_the_metric_counts_after_the_configured_one() -> None:
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


def test_differences_without_spread_or_step_say_why_there_is_no_verdict() -> None:
    runs = [*arm("fp32", [0.9] * 5), *arm("tf32", [0.9 + 1e-9] * 5)]
    found = compare(runs, {}, ComparisonRequest(margin=0.01))

    assert "see that the program takes its seed" in sentence(found, found.cells[0], found.cells[0].rows[1])

    moved = [*arm("fp32", [0.91, 0.913, 0.908]), *arm("tf32", [0.9112345, 0.9142345, 0.9092345])]
    found = compare(moved, {}, ComparisonRequest(margin=0.01))
    said = sentence(found, found.cells[0], found.cells[0].rows[1])
    assert "is the same for each seed" in said
    assert "takes its seed" not in said  # the arms' own values differ from seed to seed
