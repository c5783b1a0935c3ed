"""The share of their devices' peak performance that runs reached, for ``hpcml peak``."""

from __future__ import annotations

from hpcml.analysis.attained import Attainment
from hpcml.analysis.peak import attain
from hpcml.analysis.published import published_figures
from hpcml.commands.scaling import with_steps
from hpcml.commands.selection import Selection
from hpcml.paths import Places


def attained_by(places: Places, selection: Selection) -> Attainment:
    """Return the share of their devices' peak that the selected runs attained, beside published figures.

    Raises `ComparisonError` where no run has a rate.
    """
    with with_steps(places, selection) as (runs, curves):
        return attain(runs, curves)


def published_alone() -> Attainment:
    """Return all that others published, beside no run."""
    return Attainment(n_runs=0, attained=(), published=published_figures())
