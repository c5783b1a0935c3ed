"""SQL over the views of the store, read only, for ``hpcml query``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcml.commands.collect import collect, opened
from hpcml.model.query_results import SqlRows
from hpcml.paths import Places
from hpcml.store.sql import ask
from hpcml.store.views import VIEWS


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
