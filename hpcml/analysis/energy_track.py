"""The energy that a run's GPUs had drawn at any moment, out of its timelines: pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from hpcml.answers import Timeline
from hpcml.records import Point

_HOST = "host"


def energy_at(points: Sequence[Point], timelines: Sequence[Timeline]) -> list[float] | None:
    """Return the kJ that all GPUs together had drawn at each of *points*, or None where that is not known.

    It is not known unless every GPU has the energy of each of its spans. Within a span it is taken to be drawn evenly;
    before the first and after the last nothing is added, so that nothing is invented where nothing was sampled.
    """
    gpus = [line for line in timelines if line.device != _HOST and line.spans]
    if not gpus or not points:
        return None
    at = [point.t_s for point in points]
    total = np.zeros(len(points))
    for gpu in gpus:
        drawn = [span.energy_j for span in gpu.spans if span.energy_j is not None]
        if len(drawn) < len(gpu.spans):
            return None
        last = gpu.spans[-1]
        moments = [*(span.t_s for span in gpu.spans), last.t_s + last.covered_s]
        total += np.interp(at, moments, [0.0, *accumulate(drawn)])
    return [float(joules) / 1000 for joules in total]
