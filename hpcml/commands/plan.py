"""The number of seeds that a verdict needs, from the spread of recorded runs, for ``hpcml plan``."""

from __future__ import annotations

from hpcml.analysis.plan import plan_seeds
from hpcml.analysis.planning import PowerPlan, WantedVerdict
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.paths import Places


def seeds_for(  # noqa: PLR0913 - what can be asked
    places: Places,
    selection: Selection,
    *,
    by: str,
    reference: str | None,
    metric: str | None,
    margin: float | None,
    power: float,
    verdict: WantedVerdict,
    comparisons: int,
) -> PowerPlan:
    """Return how many seeds it takes to show *verdict*, judged by the spread between the selected runs.

    *by* is the compared setting and *reference* its level to compare with; *metric* None: the runs' objective. *margin*
    is the difference that matters, *power* the wanted probability (0 to 1) to find it, and *comparisons* by how many
    tests the error is shared. Raises `ComparisonError` where the runs do not tell.
    """
    with opened(places) as store:
        collect(store, places)
        return plan_seeds(
            select(store, selection, refusal="no run matches: nothing to plan from"),
            by=by,
            reference=reference,
            metric=metric,
            margin=margin,
            power=power,
            verdict=verdict,
            comparisons=comparisons,
        )
