"""Runs selected, and how many seeds a verdict needs worked out from their spread."""

from __future__ import annotations

from hpcml.analysis.seed_plan import plan_seeds
from hpcml.operations.consult import Selection, list_runs
from hpcml.places import Places
from hpcml.planning import PowerPlan, WantedVerdict


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
    """Return what it takes to show *verdict*; raises `ComparisonError` where the runs do not tell."""
    return plan_seeds(
        list_runs(places, selection),
        by=by,
        reference=reference,
        metric=metric,
        margin=margin,
        power=power,
        verdict=verdict,
        comparisons=comparisons,
    )
