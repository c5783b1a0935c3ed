"""The statistical comparison of the selected runs, for ``hpcml compare`` and ``hpcml report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcml.analysis.compare.cells import Curves
from hpcml.analysis.compare.comparison import COMMUNICATION, DATA, STEP, compare
from hpcml.analysis.compare.objective import find_yardstick
from hpcml.commands.collect import answering, collect
from hpcml.commands.selection import Selection, select
from hpcml.model.comparison import Comparison, ComparisonRequest
from hpcml.model.query_results import Timeline
from hpcml.model.records import Point, RunRecord
from hpcml.paths import Places
from hpcml.store import query
from hpcml.store.database import Database
from hpcml.store.telemetry import timelines


def compare_runs(places: Places, selection: Selection, request: ComparisonRequest) -> Comparison:
    """Return the comparison of the selected runs, whose levels, metric and tests *request* says.

    Raises `ComparisonError` where it would not be fair: the runs differ in more than the compared setting, for example.
    """
    with answering(places) as store:
        collect(store, places)
        runs = select(store, selection)
        return compare_selected(store, runs, request, step_curves(store, runs))


def compare_selected(
    store: Database,
    runs: Sequence[RunRecord],
    request: ComparisonRequest,
    steps: Mapping[str, Curves],
    sampled: Mapping[str, Sequence[Timeline]] | None = None,
) -> Comparison:
    """Return the comparison of *runs*; *steps* are their `step_curves`, *sampled* their telemetry timelines by uid.

    The compared metric's curves, and timelines that were not given (None), are read from the store only where there is
    a target to reach. `hpcml report` gives both, since it draws them too.
    """
    curves = dict(steps)
    if runs and (request.target is not None or any(run.params.get("objective.target") is not None for run in runs)):
        judged = find_yardstick(runs, request.metric, request.goal).metric
        curves[judged] = curves_of(store, runs, judged)
        if sampled is None:
            sampled = {run.uid: timelines(store, run.uid) for run in runs if run.usage is not None}
    return compare(runs, steps[STEP], request, more_curves=curves, timelines=sampled)


def step_curves(store: Database, runs: Sequence[RunRecord]) -> dict[str, Curves]:
    """Return what *runs* reported of each step: by metric, then by uid.

    The metrics are the time of a step, the wait for input, and the communication, all in seconds.
    """
    return {name: curves_of(store, runs, name) for name in (STEP, DATA, COMMUNICATION)}


def curves_of(store: Database, runs: Sequence[RunRecord], metric: str) -> dict[str, list[Point]]:
    """Return the curves of *metric* by uid; runs that never reported it are left out."""
    return query.curves(store, [run.uid for run in runs if metric in run.metrics], metric)
