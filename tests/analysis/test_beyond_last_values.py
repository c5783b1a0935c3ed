"""Censored times to a target, steps of a metric, and what a conclusion says where a claim cannot be made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Row
from hpcml.analysis.stats import log_rank
from hpcml.model.records import Point, RunRecord
from hpcml.report.finding import sentence
from tests.analysis.recorded_runs import arm, texts

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
    assert (found.reached, found.budget_s) == (5, 10.0)
    saved = [2.0, 2.5, 3.0, 3.5, 4.5]
    assert found.saved_s == pytest.approx(sum(saved) / 5)
    assert found.saved_ci95 is not None
    expected = stats.ttest_1samp(saved, 0).confidence_interval(0.95)
    assert (found.saved_ci95.low, found.saved_ci95.high) == pytest.approx(tuple(expected))
    slow = stats.CensoredData(uncensored=[5.0, 6.0, 7.0, 8.0], right=[10.0])
    assert found.p_log_rank == pytest.approx(stats.logrank(stats.CensoredData(times["tf32"]), slow).pvalue)
    assert log_rank([10.0] * 5, [10.0, 12.0] * 3, 10.0) is None  # nobody was there in time
    assert log_rank([1.0] * 4, [2.0] * 5, 10.0) is None  # chi-square would be off


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

    assert any("does the program take its seed" in flag for flag in texts(found.cells[0].rows[1]))

    moved = [*arm("fp32", [0.91, 0.913, 0.908]), *arm("tf32", [0.9112345, 0.9142345, 0.9092345])]
    found = compare(moved, {}, ComparisonRequest(margin=0.01))
    said = sentence(found, found.cells[0], found.cells[0].rows[1])
    assert "is the same for all seeds" in said
