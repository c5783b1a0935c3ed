"""Questions to the store that have another answer than a list of runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcml.analysis.contrast import contrast
from hpcml.analysis.objective import find_yardstick
from hpcml.analysis.ranking import At, rank
from hpcml.answers import Curves, Differences, Ranking, Rows
from hpcml.errors import ConfigError
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.records import RunRecord, StoredEvent
from hpcml.rundir import RunDir
from hpcml.store import queries
from hpcml.store.asking import ask
from hpcml.store.views import VIEWS


def best_runs(
    places: Places,
    selection: Selection,
    *,
    metric: str | None,
    goal: str | None,
    at: At,
    by: Sequence[str],
    count: int | None,
) -> Ranking:
    """Return the best *count* of the selected runs: by default 10, or 1 of each group where *by* makes groups."""
    with opened(places) as store:
        collect(store, places)
        queries.check_keys(store, by)
        runs = select(store, selection)
    wanted = count or (1 if by else 10)
    return rank(runs, metric=metric, goal=goal, at=at, by=by, count=wanted, now=time.time())


def curves_of(places: Places, selection: Selection, *, metric: str | None, points: int | None = None) -> Curves:
    """Return a metric of the selected runs, by default their objective, with at most so many *points* each."""
    if selection.is_empty:
        raise ConfigError("curves of which runs? name them, or choose them with --where or --experiment")
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection)
        name = find_yardstick(runs, metric, None).metric
        found = queries.curves(store, [run.uid for run in runs], name)
    curves = Curves(metric=name, runs=runs, points=found)
    return curves if points is None else curves.thinned(points)


def diff_runs(places: Places, first: str, second: str, *, everything: bool) -> Differences:
    """Return in what two runs differ."""
    with opened(places) as store:
        collect(store, places)
        left, right = queries.get_run(store, first), queries.get_run(store, second)
    return contrast(left, right, codes=(_code(left), _code(right)), everything=everything)


def events_of(places: Places, reference: str) -> list[StoredEvent]:
    """Return everything that happened in a run, by time."""
    with opened(places) as store:
        collect(store, places)
        return queries.events(store, queries.get_run(store, reference).uid)


def ask_in_sql(places: Places, sql: str, *, limit_s: float) -> Rows:
    """Return what one statement that only reads gives over the views."""
    with opened(places) as store:
        collect(store, places)
        return ask(store, sql, limit_s=limit_s)


def views() -> Mapping[str, tuple[str, Sequence[str]]]:
    """Return what can be asked in SQL: what a view has a row for, and its columns."""
    return {name: (what, columns) for name, (what, columns, _) in VIEWS.items()}


def _code(run: RunRecord) -> str | None:
    code = RunDir(Path(run.path)).code
    return str(code.resolve()) if code.exists() else None
