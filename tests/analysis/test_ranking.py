from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from recorded_runs import run as recorded

from hpcml.analysis.ranking import Ranking, rank
from hpcml.analysis.run_diff import contrast
from hpcml.errors import ComparisonError
from hpcml.model.records import MetricSummary, RunRecord, Usage
from hpcml.model.state import State

NOW = 1_795_000_000.0


def a_run(uid: str = "aaaaaa", **fields: Any) -> RunRecord:  # noqa: ANN401
    return replace(recorded(uid=uid), **{"params": {}, "facts": {}, **fields})


def summary(name: str, last: float | None, low: float = 0.0, high: float = 1.0, n_nonfinite: int = 0) -> MetricSummary:
    ends = {"first": 0.5, "last_step": 9, "min": low, "min_step": 3, "max": high, "max_step": 5, "mean": 0.5}
    return MetricSummary(name=name, n=10, n_nonfinite=n_nonfinite, last=last, **ends)  # type: ignore[arg-type]


def run(letter: str, accuracy: float | None, **changes: Any) -> RunRecord:  # noqa: ANN401
    metrics = {"accuracy": summary("accuracy", accuracy, high=0.9 if accuracy is None else accuracy + 0.01)}
    objective = {"objective.metric": "accuracy", "objective.goal": "max"}
    return a_run(uid=letter * 6, metrics=metrics, params={**objective, **changes.pop("params", {})}, **changes)


def ranked(ranking: Ranking) -> str:
    return "".join(each.run.uid[0] for each in ranking.ranked)


def best(runs: list[RunRecord], **how: Any) -> Ranking:  # noqa: ANN401
    wanted: dict[str, Any] = {"metric": None, "goal": None, "at": "last", "count": 10, "now": NOW}
    return rank(runs, **{**wanted, **how})


def test_the_objective_of_the_runs_decides_and_the_older_of_two_equal_ones_stands_first() -> None:
    ranking = best([run("a", 0.7), run("c", 0.9), run("b", 0.9)])

    assert ranked(ranking) == "bca"
    assert (ranking.metric, ranking.goal, ranking.candidates, ranking.without) == ("accuracy", "max", 3, 0)
    assert [(each.place, each.value, each.step) for each in ranking.ranked] == [(1, 0.9, 9), (2, 0.9, 9), (3, 0.7, 9)]


def test_it_is_told_what_settings_the_best_run_had() -> None:
    runs = [
        run(letter, accuracy, params={"workload.args.lr": rate, "training.steps": 5, "seed": accuracy})
        for letter, accuracy, rate in (("a", 0.7, "0.1"), ("b", 0.9, "1e-3"), ("c", 0.8, "0.001"))
    ]

    ranking, by_rate = best(runs), best(runs, by=["workload.args.lr"])

    assert ranking.differ == ("lr",)
    assert [(each.run.uid[0], each.settings) for each in ranking.ranked] == [
        ("b", (0.001,)),
        ("c", (0.001,)),
        ("a", (0.1,)),
    ]
    assert by_rate.differ == ()


def test_beside_a_run_stands_the_mean_over_seeds_of_the_completed_runs_alike() -> None:
    repeated = [run(letter, accuracy, seed=seed) for letter, accuracy, seed in (("a", 0.9, 0), ("b", 0.7, 0))]
    runs = [*repeated, run("c", 0.6, seed=1), run("d", 0.1, seed=2, state=State.FAILED)]

    by_seeds, of_repeats, of_failed = (best(each).ranked[0] for each in (runs, repeated, runs[-1:]))

    assert (by_seeds.alike_n, by_seeds.alike_seeds, by_seeds.alike_mean) == (3, 2, pytest.approx((0.8 + 0.6) / 2))
    assert (of_repeats.alike_n, of_repeats.alike_seeds, of_repeats.alike_mean) == (2, 1, pytest.approx(0.8))
    assert (of_failed.alike_n, of_failed.alike_mean) == (0, None)


@pytest.mark.parametrize("flag", ["name", "model", "layout", "state"])
def test_a_flag_of_the_program_that_is_called_as_something_of_ours_makes_groups_and_is_told(flag: str) -> None:
    runs = [run(letter, 0.5, params={f"workload.args.{flag}": word}) for letter, word in (("a", "x"), ("b", "y"))]

    assert [each.group for each in best(runs, by=[flag], count=1).ranked] == [("x",), ("y",)]
    assert best(runs).differ == (f"args.{flag}",)
    assert best(runs, by=[flag]).differ == ()


def test_the_goal_can_be_turned_and_the_number_limited() -> None:
    assert ranked(best([run("a", 0.7), run("b", 0.9), run("c", 0.8)], goal="min", count=2)) == "ac"


def test_a_run_that_ended_without_a_finite_value_is_counted_and_not_ranked() -> None:
    lost = replace(run("x", None), metrics={})

    ranking = best([run("a", None), run("b", math.inf), run("c", 0.1), lost])

    assert ranked(ranking) == "c"
    assert (ranking.candidates, ranking.without) == (1, 3)


def test_the_best_value_ever_counts_only_when_asked_for() -> None:
    runs = [
        a_run(uid="aaaaaa", metrics={"loss": summary("loss", 0.5, low=0.1)}),
        a_run(uid="bbbbbb", metrics={"loss": summary("loss", 0.4, low=0.3)}),
    ]

    assert ranked(best(runs, metric="loss")) == "ba"
    by_best = best(runs, metric="loss", at="best")
    assert [(each.run.uid[0], each.value, each.step) for each in by_best.ranked] == [("a", 0.1, 3), ("b", 0.3, 3)]


def test_groups_come_in_the_order_of_their_best_and_are_limited_each() -> None:
    runs = [
        run("a", 0.9, params={"model.name": "small"}, seed=1),
        run("b", 0.8, params={"model.name": "small"}, seed=2),
        run("c", 0.95, params={"model.name": "large"}, seed=1),
        run("d", 0.5, seed=3),
    ]

    ranking = best(runs, by=("model",), count=1)

    assert ranked(ranking) == "cad"
    assert [each.group for each in ranking.ranked] == [("large",), ("small",), (None,)]
    assert ranked(best(runs, by=("model", "seed"), count=1)) == "cabd"


def test_what_was_measured_beside_runs_ranks_them_where_it_is_said_which_way() -> None:
    runs = [
        run(letter, 0.5, usage=Usage(energy_j=joules)) for letter, joules in zip("abc", (3e3, 1e3, None), strict=True)
    ]

    ranking = best(runs, metric="energy_kj", goal="min")

    assert (ranked(ranking), ranking.candidates, ranking.without) == ("ba", 2, 1)
    assert [(each.value, each.step) for each in ranking.ranked] == [(1.0, None), (3.0, None)]
    assert ranked(best(runs, metric="usage.energy_j", goal="max")) == "ab"
    refused = r"usage.energy_j: nothing tells which way it is better: --goal max\|min"
    with pytest.raises(ComparisonError, match=refused):
        best(runs, metric="usage.energy_j")


def test_a_metric_of_which_nothing_tells_the_direction_ranks_no_runs() -> None:
    runs = [replace(run(letter, 0.5), metrics={"depth": summary("depth", 1.0)}) for letter in "ab"]

    with pytest.raises(ComparisonError, match="depth: nothing tells which way it is better"):
        best(runs, metric="depth")
    assert ranked(best(runs, metric="depth", goal="min")) == "ab"


def test_a_metric_that_nobody_recorded_is_refused() -> None:
    with pytest.raises(ComparisonError, match="accuracy"):
        best([run("a", 0.7)], metric="acuracy")


def test_without_a_run_there_is_nothing_to_judge_by() -> None:
    with pytest.raises(ComparisonError, match="no runs to judge: none matches the selection"):
        best([])


def test_two_runs_are_told_apart_by_settings_environment_and_outcome() -> None:
    first = run("a", 0.9, params={"seed": 1, "x": True, "only": 3}, facts={"gpu": "A100", "cores": 8}, git_commit="c1")
    second = run("b", 0.8, params={"seed": 2, "x": 1}, facts={"gpu": "A100"}, git_commit="c1", state=State.FAILED)

    differences = contrast(first, second, codes=("/code/1", "/code/2"))

    assert [(each.section, each.key, each.first, each.second) for each in differences.contrasts] == [
        ("settings", "only", 3, None),
        ("settings", "seed", 1, 2),
        ("settings", "x", True, 1),
        ("environment", "code", "/code/1", "/code/2"),
        ("environment", "cores", 8, None),
        ("outcome", "state", State.COMPLETED, State.FAILED),
        ("outcome", "metrics.accuracy", 0.9, 0.8),
    ]
    everything = contrast(first, second, codes=("/code/1", "/code/2"), everything=True)
    assert len(everything.contrasts) == len(differences.contrasts) + differences.alike
    assert [each for each in everything.contrasts if each.differs] == differences.contrasts


def test_a_run_does_not_differ_from_itself_even_where_it_ended_without_a_number() -> None:
    strange = a_run(metrics={"loss": summary("loss", None, n_nonfinite=1)}, params={"lr": math.nan})

    assert contrast(strange, strange).contrasts == []


def test_the_best_of_many_seeds_stands_beside_the_mean_of_its_settings() -> None:
    told = {"a": ("0.1", 0, 0.90), "b": ("0.1", 1, 0.80), "c": ("0.1", 2, 0.82)}
    told |= {"d": ("0.5", 0, 0.88), "e": ("0.5", 1, 0.86)}
    runs = [
        run(letter, value, seed=seed, params={"workload.command": f"t.py --lr {rate} --seed {seed}", "seed": seed})
        for letter, (rate, seed, value) in told.items()
    ]
    lost = run("z", math.nan, params={"workload.command": "t.py --lr 0.1 --seed 0"})

    first, second, *_ = best([*runs, lost]).ranked
    alone = best([runs[0], runs[3]]).ranked

    assert (first.value, first.alike_n) == (0.90, 3)
    assert first.alike_mean == pytest.approx(0.84)
    assert (second.value, second.alike_n) == (0.88, 2)
    assert second.alike_mean == pytest.approx(0.87)
    assert [(each.alike_n, each.alike_mean) for each in alone] == [(1, 0.90), (1, 0.88)]


@pytest.mark.parametrize("at", ["last", "best"])
def test_the_best_run_is_told_to_have_diverged(at: str) -> None:
    early = run("a", 0.9)
    early = replace(early, metrics={**early.metrics, "train_loss": summary("train_loss", None, n_nonfinite=4)})

    ranking = best([early, run("b", 0.8)], at=at)

    assert [(each.run.uid[0], each.diverged) for each in ranking.ranked] == [("a", ["train_loss"]), ("b", ())]


def test_runs_that_have_not_ended_are_not_said_to_have_reported_nothing() -> None:
    waiting = [
        replace(run("a", 0.7), metrics={}, state=State.RUNNING),
        replace(run("b", 0.7), metrics={}, state=State.PENDING),
    ]

    with pytest.raises(ComparisonError, match=r"a metric yet: 2 of 2 runs have not ended \(1 PENDING, 1 RUNNING\)$"):
        best(waiting)
    with pytest.raises(ComparisonError, match="no run recorded any metric"):
        best([*waiting, replace(run("c", 0.7), metrics={})])
