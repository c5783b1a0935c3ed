"""The definition of a study of `hpcml tune`: checked, written down in the home, and its points composed as runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hpcml.analysis.search import Point, check_optuna
from hpcml.codec import decode, encode
from hpcml.commands.submit import budget
from hpcml.commands.submit.check import plan_points
from hpcml.config.compose import Composed, compose_command
from hpcml.config.search_words import SearchWords, read_search
from hpcml.config.sweep import MOST_RUNS
from hpcml.errors import ConfigError, require
from hpcml.model.record_keys import ARGUMENTS
from hpcml.model.search import Search, Value, check_space
from hpcml.paths import Places
from hpcml.runs.atomic import write_text
from hpcml.runs.files import parse_json
from hpcml.runs.private import make_folder, read
from hpcml.spelling import did_you_mean

_RETRIES = "schedule.retry"


def define(search: Search, places: Places, *, environ: Mapping[str, str]) -> tuple[Search, list[str]]:
    """Check *search*, whose study, metric and goal may be open, and write it down; return it whole, with lines to tell.

    A study that is there goes on where it is the same but for its limits, sampler and pruner, and gets these. Points of
    the space are composed and planned first: what is wrong is a `ConfigError`, and nothing has been written.
    """
    words = read_search(search.settings, search.program)
    require(
        search.program is None or any(word.startswith("objective.metric=") for word in search.settings),
        "say what is searched for: --metric NAME, the number that the program prints behind NAME or reports so",
    )
    settings = list(search.settings)
    if not any(word.startswith("experiment=") for word in settings):
        settings.append(f"experiment={datetime.now(UTC).astimezone():tune-%Y%m%d-%H%M%S}")
    if not any(word.startswith(f"{_RETRIES}=") for word in settings):
        settings.append(f"{_RETRIES}=3")  # what the cluster broke says nothing of a point
    words = read_search(settings, search.program)
    points, remarks = compose_points(words, _with_each_choice(words))
    planned, _ = plan_points(points, environ, Path.cwd(), ask=lambda _: None, is_dry=False)
    budget.fit(planned, places, environ=environ, project=Path.cwd())  # refuses a run without a walltime
    run = points[0].run
    objective, goal = run.objective, run.objective.way
    if goal is None:
        raise ConfigError(f"nothing tells which way {objective.metric} is better: objective.goal=min or max")
    whole = replace(search, settings=settings, study=run.experiment, metric=objective.metric, goal=goal)
    check_space(whole, words.axes)
    check_optuna()
    _write(whole, places)
    return whole, remarks


def _write(search: Search, places: Places) -> None:
    path = places.studies / f"{search.study}.json"
    if path.exists():
        known = find_study(places, search.study)
        require(
            known.is_same_as == search.is_same_as,
            f"experiment={search.study} is a study with another command line, folder or metric: choose another name, "
            f"or go on with it by hpcml tune --again {search.study}",
        )
    else:
        folder = places.runs / search.study
        require(
            not folder.is_dir() or not any(folder.iterdir()),
            f"experiment={search.study} has runs already, which are no points of this search: choose another name",
        )
    make_folder(places.studies, parents=True)
    write_text(path, json.dumps(encode(search), indent=1), durable=True)


def find_study(places: Places, name: str) -> Search:
    """Return the definition of the study *name*; raise `ConfigError` where there is none, or it cannot be read."""
    path = places.studies / f"{name}.json"
    if not path.is_file():
        known = sorted(file.stem for file in places.studies.glob("*.json"))
        meant = did_you_mean(name, known) or (f"there are {', '.join(known)}" if known else "hpcml tune begins one")
        raise ConfigError(f"no study is called {name!r}: {meant}")
    try:
        search: Search = decode(Search, parse_json(read(path, top=places.home)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no study that can be read: {error}") from error
    return search


def stop(places: Places, name: str) -> None:
    """Have no look submit anything more for the study *name*; its runs go on. Defining it again takes that back."""
    search = find_study(places, name)
    write_text(places.studies / f"{name}.json", json.dumps(encode(replace(search, is_stopped=True)), indent=1))


def some_point(words: SearchWords) -> Point:
    """Return a point of the space: the first value of each axis."""
    return {
        axis.key: axis.choices[0] if axis.choices else int(axis.low) if axis.is_whole else axis.low
        for axis in words.axes
    }


def _with_each_choice(words: SearchWords) -> list[Point]:
    """Return points of the space among which each choice is."""
    first = some_point(words)
    return [first, *({**first, axis.key: choice} for axis in words.axes for choice in axis.choices[1:])]


def compose_points(
    words: SearchWords, points: Sequence[Mapping[str, Value | None]], *, more: Sequence[str] = ()
) -> tuple[list[Composed], list[str]]:
    """Compose a run for each of *points*, with the words *more*, in the current folder; return what is to be told."""
    composed: list[Composed] = []
    remarks: list[str] = []
    for point in points:
        settings, program = words.at(point)
        found, told = compose_command([*settings, *more], program, project=Path.cwd(), is_literal=False, most=MOST_RUNS)
        require(len(found) == 1, f"{' '.join(settings)} is no single run: hpcml tune chooses each point by itself")
        named = [
            f"args.{key.removeprefix(ARGUMENTS)}={value}" for key, value in point.items() if key.startswith(ARGUMENTS)
        ]
        composed.append(replace(found[0], overrides=(*found[0].overrides, *named)))
        remarks = remarks or told
    return composed, remarks
