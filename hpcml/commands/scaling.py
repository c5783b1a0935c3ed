"""The study of how runs scale with the number of their devices, for ``hpcml scaling``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcml.analysis.scaling.result import Scaling
from hpcml.analysis.scaling.study import ScalingRequest, study_scaling
from hpcml.analysis.steady import StepCurves
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.store import query


def scale_runs(places: Places, selection: Selection, question: ScalingRequest) -> Scaling:
    """Return speed-up and efficiency of the selected runs by their number of devices.

    Raises `ComparisonError` where they say nothing about it: all have the same number of devices, for example.
    """
    with with_steps(places, selection) as (runs, curves):
        return study_scaling(runs, curves, question)


@contextmanager
def with_steps(places: Places, selection: Selection) -> Iterator[tuple[list[RunRecord], StepCurves]]:
    """Yield the selected runs, and by uid the times of their steps in seconds (empty where none were reported)."""
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal="no run matches: nothing to look at")
        uids = [run.uid for run in runs]
        curves = StepCurves(
            step_s=query.curves(store, uids, "step_time_s"),
            communication_s=query.curves(store, uids, "communication_time_s"),
            waiting_s=query.curves(store, uids, "data_time_s"),
        )
        yield runs, curves
