"""The recorded runs that meet conditions, or did best, and SQL over the store: for ``hpcml runs`` and ``query``."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.model.query_results import SqlRows
from hpcml.model.records import RunRecord
from hpcml.model.told_apart import swept_settings
from hpcml.paths import Places
from hpcml.store import query
from hpcml.store.sql import ask
from hpcml.store.views import VIEWS

if TYPE_CHECKING:
    from hpcml.analysis.ranking import At, Ranking


def list_runs(
    places: Places, selection: Selection, *, columns: Sequence[str] = (), settings: Collection[str] | None = None
) -> list[RunRecord]:
    """Return the selected runs, oldest first unless the selection sorts otherwise.

    *columns* are settings or results to be shown; `StoreError` for one that no run ever had. *settings* are those that
    a list has a use for, which then has only them of each run and what may tell the runs apart, for `what_differs`
    (`hpcml.store.query.find_runs`); None: everything.
    """
    with opened(places) as store:
        collect(store, places)
        query.check_keys(store, columns)
        if settings is not None:
            settings = {*settings, *swept_settings(query.varied_keys(store))}
        return select(store, selection, settings=settings)


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
    """Return the best *count* of the selected runs: by default 10, or 1 of each group where *by* makes groups.

    *metric* and *goal* (min or max) are those of the runs' objective where they are None; *at* says which value of a
    run's curve counts. Raises `StoreError` for a name in *by* that no run has, and `ComparisonError` where the runs'
    objectives differ and no metric is given.
    """
    from hpcml.analysis.ranking import rank  # noqa: PLC0415 - loads the statistics

    with opened(places) as store:
        collect(store, places)
        query.check_keys(store, by)
        runs = select(store, selection, refusal="no run matches: none is the best")
        wanted = count or (1 if by else 10)
        return rank(runs, metric=metric, goal=goal, at=at, by=by, count=wanted, now=time.time())


def ask_in_sql(places: Places, sql: str, *, limit_s: float) -> SqlRows:
    """Return the rows that one reading SQL statement gives over the views, after bringing the store up to date.

    It is stopped after *limit_s* seconds. Raises `StoreError` for a statement that is wrong, writes, or takes too long.
    """
    with opened(places) as store:
        collect(store, places)
        return ask(store, sql, limit_s=limit_s)


def views() -> Mapping[str, tuple[str, Sequence[str]]]:
    """Return, by the name of each view, what it has a row for and the names of its columns."""
    return {name: (what, columns) for name, (what, columns, _) in VIEWS.items()}
