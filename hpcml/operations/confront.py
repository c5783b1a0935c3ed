"""Runs selected, their curves fetched, and both handed to the statistics."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.analysis.compare import compare
from hpcml.analysis.judging import COMMUNICATION, DATA, STEP
from hpcml.analysis.objective import find_yardstick
from hpcml.analysis.terms import Curves
from hpcml.answers import Timeline
from hpcml.comparison import Comparison
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.records import RunRecord
from hpcml.store import queries
from hpcml.store.engine import Store
from hpcml.store.timelines import timelines


def compare_runs(  # noqa: PLR0913 - what a comparison can be asked
    places: Places,
    selection: Selection,
    *,
    by: str,
    reference: str | None,
    metric: str | None,
    goal: str | None,
    margin: float | None,
    allow_mixed: bool,
    target: float | None = None,
    score: str | None = None,
    allow: Sequence[str] = (),
) -> Comparison:
    """Return the comparison of the selected runs along *by*; raises `ComparisonError` where it would not be fair."""
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection)
        curves = _curves(store, runs, (STEP, DATA, COMMUNICATION))
        sampled: dict[str, Sequence[Timeline]] = {}
        if runs and (target is not None or any(run.params.get("objective.target") is not None for run in runs)):
            curves |= _curves(store, runs, (find_yardstick(runs, metric, goal).metric,))
            sampled = {run.uid: timelines(store, run.uid) for run in runs if run.usage is not None}
    return compare(
        runs,
        curves[STEP],
        by=by,
        reference=reference,
        metric=metric,
        goal=goal,
        margin=margin,
        target=target,
        score=score,
        allow=allow,
        allow_mixed=allow_mixed,
        more_curves=curves,
        timelines=sampled,
    )


def _curves(store: Store, runs: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Curves]:
    """Return the curves by metric; only of the runs that reported it, since most programs report few of them."""
    return {name: queries.curves(store, [run.uid for run in runs if name in run.metrics], name) for name in names}
