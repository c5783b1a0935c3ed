"""Runs selected, what they reported of each step fetched, and both set against the peaks of their devices."""

from __future__ import annotations

from hpcml.analysis.attainment import attain
from hpcml.analysis.published import published_figures
from hpcml.attainment import Attainment
from hpcml.operations.consult import Selection
from hpcml.operations.scaling import with_steps
from hpcml.places import Places


def attained_by(places: Places, selection: Selection) -> Attainment:
    """Return what the selected runs attained; raises `ComparisonError` where none has a rate."""
    return attain(*with_steps(places, selection))


def published_alone() -> Attainment:
    """Return all that others published, beside no run."""
    return Attainment(n_runs=0, attained=(), published=published_figures())
