"""The list of recorded runs that meet some conditions, for ``hpcml runs``."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.commands.collect import answering, collect
from hpcml.commands.selection import Selection, select
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.store import query


def list_runs(places: Places, selection: Selection, *, columns: Sequence[str] = ()) -> list[RunRecord]:
    """Return the selected runs, oldest first unless the selection sorts otherwise.

    *columns* are settings or results to be shown; `StoreError` for one that no run ever had.
    """
    with answering(places) as store:
        collect(store, places)
        query.check_keys(store, columns)
        return select(store, selection)
