"""Tables that others published, beside a comparison of one's own runs, for ``hpcml published``."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.commands.compare import compare_runs
from hpcml.commands.selection import Selection
from hpcml.errors import ComparisonError, ConfigError
from hpcml.model.comparison import Comparison, ComparisonRequest
from hpcml.model.published_tables import PublishedTable
from hpcml.paths import Places


def compare_beside(places: Places, tables: Sequence[PublishedTable], selection: Selection) -> Comparison | None:
    """Return what the selected runs say of precisions, or None where no runs were asked for.

    Raises `ConfigError` where one of *tables* is of something else, and `ComparisonError` where the runs cannot be
    compared.
    """
    if selection.is_empty:
        return None
    other = next((table.key for table in tables if not table.stands_beside_comparisons), None)
    if not tables or other is not None:
        raise ConfigError(
            f"{other or 'the list of tables'}: no runs can stand beside it, as it is of no comparison of precisions: "
            "leave out which runs are meant"
        )
    try:
        return compare_runs(places, selection, ComparisonRequest())
    except ComparisonError as error:
        why, *below = error.lines
        raise ComparisonError(
            f"runs stand beside tables by their precision alone, hpcml compare has --by: {why}", *below
        ) from error
