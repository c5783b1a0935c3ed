"""The list of recorded runs that meet some conditions, for ``hpcml runs``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.model.records import RunRecord
from hpcml.model.told_apart import swept_settings
from hpcml.paths import Places
from hpcml.store import query


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
