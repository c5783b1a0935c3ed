"""Runs selected, what they reported of each step fetched, and both handed to the study of scaling."""

from __future__ import annotations

from hpcml.analysis.scaling import Question, study_scaling
from hpcml.analysis.scaling_arms import StepCurves
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.records import RunRecord
from hpcml.scaling import Scaling
from hpcml.store import queries


def scale_runs(places: Places, selection: Selection, question: Question) -> Scaling:
    """Return how the selected runs scale; raises `ComparisonError` where they say nothing about it."""
    runs, curves = with_steps(places, selection)
    return study_scaling(runs, curves, question)


def with_steps(places: Places, selection: Selection) -> tuple[list[RunRecord], StepCurves]:
    """Return the selected runs and what they reported of each step."""
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection)
        uids = [run.uid for run in runs]
        curves = StepCurves(
            step_s=queries.curves(store, uids, "step_time_s"),
            communication_s=queries.curves(store, uids, "communication_time_s"),
            waiting_s=queries.curves(store, uids, "data_time_s"),
        )
    return runs, curves
