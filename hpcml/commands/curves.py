"""The curve of a metric over the steps of each selected run, for ``hpcml curves``."""

from __future__ import annotations

from hpcml.analysis.compare.objective import find_yardstick
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.errors import ConfigError
from hpcml.model.query_results import Curves
from hpcml.paths import Places
from hpcml.store import query


def curves_of(places: Places, selection: Selection, *, metric: str | None, points: int | None = None) -> Curves:
    """Return a metric of the selected runs, by default their objective, with at most *points* points a run.

    None keeps all points. Raises `ConfigError` for an empty selection, and `ComparisonError` where no metric is given
    and the runs' objectives differ.
    """
    if selection.is_empty:
        raise ConfigError("curves of which runs? name them, or choose them with --where or --experiment")
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal="no run matches: nothing to draw")
        name = find_yardstick(runs, metric, None).metric
        found = query.curves(store, [run.uid for run in runs], name)
    curves = Curves(metric=name, runs=runs, points=found)
    return curves if points is None else curves.thinned(points)
