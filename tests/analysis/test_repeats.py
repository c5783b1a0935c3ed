"""Repeats of one seed: of a time each run is an observation, of what a program learns they are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from recorded_runs import curves, run, summary, texts
from scipy import stats

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Row
from hpcml.model.records import RunRecord

SLOW, FAST = [0.0778, 0.0586, 0.0605, 0.0580, 0.0490, 0.0611], [0.0147, 0.0109, 0.0228, 0.0069, 0.0160]


def repeated(
    level: str, values: Sequence[float], metric: str, seeds: Sequence[int] = (0,), goal: str = "min"
) -> list[RunRecord]:
    objective = {"objective.metric": metric, "objective.goal": goal, "objective.margin": 0.005}
    return [
        replace(
            run(level, seeds[at % len(seeds)], uid=f"20261121-080000-{level}{at}", params=objective),
            metrics={metric: summary(metric, value)},
        )
        for at, value in enumerate(values)
    ]


def judged(metric: str, seeds: Sequence[int] = (0,)) -> Row:
    runs = [*repeated("fp32", SLOW, metric, seeds), *repeated("tf32", FAST, metric, seeds)]
    return compare(runs, {}, ComparisonRequest()).cells[0].rows[1]


@pytest.mark.parametrize("metric", ["elapsed_s", "step_time_ms", "latency", "time/epoch_seconds"])
def test_repeats_of_one_seed_are_observations_of_a_time(metric: str) -> None:
    row = judged(metric)

    told = stats.ttest_ind(FAST, SLOW, equal_var=False).confidence_interval(0.9)
    assert row.difference is not None
    assert row.difference.ci90 is not None
    assert (row.difference.ci90.low, row.difference.ci90.high) == pytest.approx((told.low, told.high))
    assert (row.verdict, row.unit, row.n_units, row.seeds) == ("better", "runs", 5, (0,))
    assert not row.difference.paired
    assert f"runs of one seed are the units, since {metric} is a time or a rate: unpaired (Welch)" in texts(row)
    assert not any("same seeds" in flag for flag in texts(row))


@pytest.mark.parametrize(
    "metric", ["val_loss", "time_to_accuracy_s", "perplexity", "arrival_rmse_s", "mae_seconds", "loss_ms", "error/min"]
)
def test_repeats_of_one_seed_are_one_observation_of_what_a_program_learns(metric: str) -> None:
    row = judged(metric)

    assert (row.verdict, row.unit, row.n_units) == ("inconclusive", "seeds", 1)
    assert "4 more runs of the same seeds: averaged within the seed first" in texts(row)


def test_runs_without_a_step_time_are_not_counted_as_seeds() -> None:
    runs = [*repeated("fp32", SLOW, "elapsed_s"), *repeated("tf32", FAST, "elapsed_s")]
    known = curves(runs, {"fp32": 0.2, "tf32": 0.1})
    known[runs[-1].uid] = []
    known[runs[-2].uid] = known[runs[-2].uid][:5]

    row = compare(runs, known).cells[0].rows[1]

    assert "no steady step time of 2 of 5 runs: step_time_s was not reported" in texts(row)


def test_where_there_are_seeds_they_stay_the_unit_of_a_time_too() -> None:
    row = judged("elapsed_s", seeds=(0, 1, 2))

    assert (row.unit, row.seeds) == ("seeds", (0, 1, 2))


def test_two_repeats_are_as_few_as_two_seeds() -> None:
    runs = [*repeated("fp32", SLOW[:2], "elapsed_s"), *repeated("tf32", FAST, "elapsed_s")]

    row = compare(runs, {}).cells[0].rows[1]

    assert row.verdict == "inconclusive"
    assert "2 runs: too few for a verdict, take 5" in texts(row)


@pytest.mark.parametrize(("metric", "goal", "unit"), [("survival_time", "max", "seeds"), ("GFLOP/s", "max", "runs")])
def test_a_time_that_is_to_be_long_is_an_outcome_and_a_rate_is_none(metric: str, goal: str, unit: str) -> None:
    runs = [*repeated("fp32", SLOW, metric, goal=goal), *repeated("tf32", FAST, metric, goal=goal)]

    assert compare(runs, {}).cells[0].rows[1].unit == unit
