"""The runs that did best by a metric, for ``hpcml best``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcml.analysis.ranking import At, rank
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.model.query_results import Ranking
from hpcml.paths import Places
from hpcml.store import query


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
    with opened(places) as store:
        collect(store, places)
        query.check_keys(store, by)
        runs = select(store, selection, refusal="no run matches: none is the best")
        wanted = count or (1 if by else 10)
        return rank(runs, metric=metric, goal=goal, at=at, by=by, count=wanted, now=time.time())
