"""Runs selected, their curves fetched, and both handed to the statistics."""

from __future__ import annotations

from hpcml.analysis.compare import compare
from hpcml.comparison import Comparison
from hpcml.operations.consult import Selection, with_step_times
from hpcml.places import Places


def compare_runs(
    places: Places,
    selection: Selection,
    *,
    by: str,
    reference: str | None,
    metric: str | None,
    goal: str | None,
    margin: float | None,
    allow_mixed: bool,
) -> Comparison:
    """Return the comparison of the selected runs along *by*; raises `ComparisonError` where it would not be fair."""
    runs, curves = with_step_times(places, selection)
    return compare(
        runs,
        curves,
        by=by,
        reference=reference,
        metric=metric,
        goal=goal,
        margin=margin,
        allow_mixed=allow_mixed,
    )
