"""Runs selected, what they reported of each step fetched, and both set against the peaks of their devices."""

from __future__ import annotations

from hpcml.analysis.attainment import attain
from hpcml.analysis.published import published_figures
from hpcml.analysis.scaling_arms import StepCurves
from hpcml.attainment import Attainment
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.store import queries


def attained_by(places: Places, selection: Selection) -> Attainment:
    """Return what the selected runs attained; raises `ComparisonError` where none has a rate."""
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection)
        uids = [run.uid for run in runs]
        curves = StepCurves(
            step_s=queries.curves(store, uids, "step_time_s"),
            communication_s=queries.curves(store, uids, "communication_time_s"),
            waiting_s=queries.curves(store, uids, "data_time_s"),
        )
    return attain(runs, curves)


def published_alone() -> Attainment:
    """Return all that others published, beside no run."""
    return Attainment(n_runs=0, attained=(), published=published_figures())
