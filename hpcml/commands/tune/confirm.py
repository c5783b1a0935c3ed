"""Whether the winner of a study is better, or lucky: the best points and the default again, with fresh seeds."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.analysis.compare.result import ComparisonRequest
from hpcml.analysis.search import Point, Tried
from hpcml.codec import encode, flatten
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.check import plan_points
from hpcml.commands.submit.launch import Launched
from hpcml.commands.submit.run import RunReporter, submit_points
from hpcml.commands.tune.look import read_points
from hpcml.commands.tune.study import compose_points, some_point
from hpcml.config.program import settings_in
from hpcml.config.search_words import SearchWords, read_search
from hpcml.errors import ConfigError, require
from hpcml.model.choices import Goal
from hpcml.model.record_keys import ARGUMENTS
from hpcml.model.search import Search, Value
from hpcml.model.told_apart import show
from hpcml.paths import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What `confirm` submitted, and the comparison of the best points with the default, once the runs have ended."""

    launched: Sequence[Launched]
    experiment: str
    request: ComparisonRequest


def confirm(
    places: Places,
    backends: Backends,
    search: Search,
    reporter: RunReporter,
    *,
    count: int,
    seeds: int,
    default: Sequence[str],
    environ: Mapping[str, str],
) -> Confirmation:
    """Submit the best *count* points and the default, each with so many *seeds* that no run of the study has had.

    They are an experiment of their own. The default of a setting is what the configuration has without the word that is
    searched; what a program takes by itself is not known, so that *default* has a word NAME=VALUE for each of its
    settings. What was confirmed before is not submitted again. Raises `ConfigError` where a default is missing or no
    point has a value, and what a submission raises.
    """
    words = read_search(search.settings, search.program)
    with contextlib.chdir(search.project):
        runs, tried, _ = read_points(places, backends, search, words, math.inf)
        best = _best_points(search, tried)[:count]
        require(bool(best), f"no run of study {search.study} has a value of {search.metric}: nothing to confirm")
        again = _with_seeds(search)
        by_default = _default_point(again, default)
        first = max(run.seed for run in runs.values()) + 1
        composed = [
            point
            for seed in range(first, first + seeds)
            for point in compose_points(again, [by_default, *best], more=[f"seed={seed}"])[0]
        ]
        planned, _ = plan_points(composed, environ, Path.cwd(), ask=lambda _: None, is_dry=False)
        launched = submit_points(
            planned,
            places,
            backends,
            reporter,
            environ=environ,
            project=Path.cwd(),
            command_line=search.command_line,
            only_missing=True,
        )
    level = " x ".join(show(by_default[axis.key]) for axis in words.axes)
    by = ",".join(axis.name for axis in words.axes)
    return Confirmation(
        launched=launched, experiment=_confirming(search), request=ComparisonRequest(by=by, reference=level)
    )


def _confirming(search: Search) -> str:
    return f"{search.study}-confirm"


def _best_points(search: Search, tried: Sequence[Tried]) -> list[Point]:
    """Return the points with a value, the best first; one that was tried several times counts with its mean."""
    values: defaultdict[tuple[Value, ...], list[float]] = defaultdict(list)
    points: dict[tuple[Value, ...], Point] = {}
    for run in tried:
        if run.value is not None:
            key = tuple(run.point.values())
            values[key].append(run.value)
            points[key] = run.point
    means = {key: sum(found) / len(found) for key, found in values.items()}
    return [points[key] for key in sorted(means, key=lambda key: means[key], reverse=search.goal is Goal.max)]


def _with_seeds(search: Search) -> SearchWords:
    """Return the words of *search* for the experiment that confirms it, without a seed, which each run gets."""
    settings = [word for word in search.settings if not word.startswith(("experiment=", "seed="))]
    program = None if search.program is None else list(search.program)
    for setting in settings_in(program) if program else ():
        if setting.name == "seed" and program is not None:
            program[setting.at] = f"{setting.in_front}{{seed}}"
    return read_search([*settings, f"experiment={_confirming(search)}"], program)


def _default_point(words: SearchWords, given: Sequence[str]) -> Point:
    """Return the default of each axis: the value *given* as NAME=VALUE, else that of the configuration."""
    named = dict(word.partition("=")[::2] for word in given)
    names = [axis.name for axis in words.axes]
    if unknown := next((name for name in named if name not in names), None):
        raise ConfigError(f"{unknown}={named[unknown]}: the study searches {', '.join(names)}")
    found: dict[str, Value] = {axis.key: named[axis.name] for axis in words.axes if axis.name in named}
    lacking = [axis for axis in words.axes if axis.key not in found]
    if own := next((axis.name for axis in lacking if axis.key.startswith(ARGUMENTS)), None):
        raise ConfigError(
            f"what the program takes for {own} by itself is not known: write {own}=VALUE behind the study's name"
        )
    if lacking:
        (point,), _ = compose_points(words, [{**some_point(words), **dict.fromkeys(axis.key for axis in lacking)}])
        flat = flatten(encode(point.run))
        for axis in lacking:
            found[axis.key] = flat[axis.key if axis.key in flat else f"{axis.key}.name"]
    return {axis.key: found[axis.key] for axis in words.axes}
