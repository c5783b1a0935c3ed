"""What is tried next, and what is stopped: by what the runs of a study have told."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import pytest

from hpcml.analysis.search import Point, PointState, Tried, importances, next_points, to_prune
from hpcml.model.choices import Goal
from hpcml.model.search import Axis, PrunerName, SamplerName, Search, parse_axis
from tests.effort import times

Objective = Callable[[float, float], float]
FUNCTIONS: dict[str, Objective] = {  # on [-5, 5] x [-5, 5], each with its least value 0
    "sphere": lambda x, y: (x - 1) ** 2 + (y + 2) ** 2,
    "rosenbrock": lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
    "rastrigin": lambda x, y: 20 + x**2 + y**2 - 10 * (math.cos(2 * math.pi * x) + math.cos(2 * math.pi * y)),
}
REALS = ("-5.0..5.0", "-5.0..5.0")


def axes(*texts: str) -> list[Axis]:
    found = [parse_axis("xyz"[at], text, word=text) for at, text in enumerate(texts)]
    return [axis for axis in found if axis is not None]


def search(**options: object) -> Search:
    values: dict[str, object] = {"project": "/", "settings": [], "program": None, "runs": 60, "study": "s"}
    return Search(**{**values, "goal": Goal.min, **options})  # type: ignore[arg-type]


def tried(
    at: int, point: Point, value: float | None = None, outcome: PointState | None = None, **more: object
) -> Tried:
    is_told = PointState.TOLD if value is not None else PointState.UNDER_WAY
    ended = {} if (outcome or is_told) is PointState.UNDER_WAY else {"ended_at": at + 8.5}
    known = Tried(uid=f"{at:04}", point=point, outcome=outcome or is_told, began_at=at, value=value, **ended)
    return replace(known, **more)  # type: ignore[arg-type]


def studied(wanted: Search, space: Sequence[Axis], objective: Objective, in_flight: int = 4) -> list[Tried]:
    """Return the runs of a study, of which *in_flight* are under way at any time and the oldest ends first."""
    known: list[Tried] = []
    while sum(run.outcome is PointState.TOLD for run in known) < wanted.runs:
        open_ = [at for at, run in enumerate(known) if run.outcome is PointState.UNDER_WAY]
        count = min(in_flight - len(open_), wanted.runs - len(known))
        for point in next_points(wanted, space, known, count) if count else ():
            known.append(tried(len(known), point))
        first = next(at for at, run in enumerate(known) if run.outcome is PointState.UNDER_WAY)
        known[first] = tried(first, known[first].point, objective(*map(float, known[first].point.values())))
    return known


@pytest.mark.parametrize("sampler", [SamplerName.tpe, SamplerName.random, SamplerName.cmaes])
def test_the_same_runs_and_the_same_seed_give_the_same_points(sampler: SamplerName) -> None:
    known = studied(search(sampler=sampler, runs=12), axes(*REALS), FUNCTIONS["sphere"])

    first, again, other = (
        next_points(search(sampler=sampler, seed=seed), axes(*REALS), known, 3) for seed in (0, 0, 1)
    )

    assert first == again
    assert first != other
    assert len({tuple(point.values()) for point in [*first, *(run.point for run in known)]}) == 15


def test_no_point_of_a_small_space_is_tried_twice_and_it_ends() -> None:
    space = axes("{a,b,c}", "1..3")
    known: list[Tried] = []

    while points := next_points(search(), space, known, 2):
        known += [tried(len(known) + at, point, 1.0) for at, point in enumerate(points)]

    assert len(known) == 9
    assert len({tuple(run.point.values()) for run in known}) == 9


def test_a_grid_is_tried_in_the_order_of_its_values() -> None:
    space, wanted = axes("{a,b}", "1..2"), search(sampler=SamplerName.grid)
    known = [tried(0, {"x": "a", "y": 1}), tried(1, {"x": "b", "y": 1}, 1.0)]

    assert next_points(wanted, space, known, 8) == [{"x": "a", "y": 2}, {"x": "b", "y": 2}]


def test_failed_runs_tell_nothing_and_are_not_repeated() -> None:
    space = axes("1..4")
    known = [tried(0, {"x": 1}, outcome=PointState.FAILED), tried(1, {"x": 2}, 1.0), tried(2, {"x": 3})]

    assert next_points(search(), space, known, 4) == [{"x": 4}]


def test_a_run_that_falls_behind_is_stopped_and_a_good_one_goes_on() -> None:
    space = axes("0.0..1.0")
    chance = random.Random(1)  # noqa: S311 - a repeatable choice
    ended = [
        tried(at, {"x": chance.random()}, 0.5 + at / 100, reported=dict.fromkeys(range(1, 30), 0.5 + at / 100))
        for at in range(8)
    ]
    bad = tried(8, {"x": 0.31}, reported=dict.fromkeys(range(1, 10), 9.0))
    good = tried(9, {"x": 0.32}, reported=dict.fromkeys(range(1, 10), 0.1))

    for pruner in (PrunerName.median, PrunerName.hyperband):
        assert to_prune(search(pruner=pruner), space, [*ended, bad, good]) in (["0008"], [])
    assert to_prune(search(pruner=PrunerName.median), space, [*ended, bad, good]) == ["0008"]
    assert to_prune(search(pruner=PrunerName.median, goal=Goal.max), space, [*ended, bad, good]) == ["0009"]
    assert to_prune(search(), space, [*ended, bad, good]) == []


def test_the_setting_that_matters_is_the_important_one() -> None:
    known = studied(search(runs=40, sampler=SamplerName.random), axes(*REALS), lambda x, y: x**2 + y / 1000)

    shares = importances(search(), axes(*REALS), known)

    assert shares["x"] > 0.9
    assert importances(search(), axes(*REALS), known[:1]) == {}


@pytest.mark.nightly("statistics")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tpe_finds_better_points_than_chance(name: str) -> None:
    """Median of the best of 60 points, over seeds, 8 of them always under way."""

    def best(sampler: SamplerName, seed: int) -> float:
        known = studied(search(sampler=sampler, seed=seed * 1000), axes(*REALS), FUNCTIONS[name], in_flight=8)
        return min(run.value for run in known if run.value is not None)

    seeds = range(times(5, 15))
    assert median(best(SamplerName.tpe, seed) for seed in seeds) < median(
        best(SamplerName.random, seed) for seed in seeds
    )
