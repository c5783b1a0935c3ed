"""The mean of several seeds' curves with its interval, point by point: pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcml.analysis import equivalence
from hpcml.publication import Band

CONFIDENCE = 0.95
_MOST = 120  # points of a band: more than a chart has room for steps in a mean

Track = tuple[Sequence[float], Sequence[float]]  # x, which increases, and y


def band(tracks: Sequence[tuple[int, Track]], *, most: int = _MOST) -> Band | None:
    """Return the mean of *tracks*, which come with their seeds, or None where there is nothing that all have.

    Tracks of one seed are averaged first: the seed is the unit. Nothing is drawn beyond the end of the shortest, since
    a mean over fewer seeds would jump there. Between two points of a track the straight line counts.
    """
    known = [(seed, np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for seed, (x, y) in tracks if len(x)]
    if not known:
        return None
    first, last = max(float(x[0]) for _, x, _ in known), min(float(x[-1]) for _, x, _ in known)
    if first > last:
        return None
    grid = _grid([x for _, x, _ in known], first, last, most)
    by_seed: defaultdict[int, list[NDArray[np.float64]]] = defaultdict(list)
    for seed, x, y in known:
        by_seed[seed].append(np.interp(grid, x, y))
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number any more is left out below
        values = np.array([np.mean(lines, axis=0) for lines in by_seed.values()])
    points = [_point([float(value) for value in column]) for column in values.T]
    return Band(
        x=tuple(float(x) for x in grid),
        mean=tuple(mean for mean, _, _ in points),
        low=tuple(low for _, low, _ in points),
        high=tuple(high for _, _, high in points),
        confidence=CONFIDENCE,
        seeds=len(by_seed),
    )


def _grid(tracks: Sequence[NDArray[np.float64]], first: float, last: float, most: int) -> NDArray[np.float64]:
    """Return the places that the tracks have themselves, where these are few, else places at equal distances."""
    own = np.unique(np.concatenate(tracks))
    own = own[(own >= first) & (own <= last)]
    return own if len(own) <= most else np.linspace(first, last, most)


def _point(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if not all(math.isfinite(value) for value in values):
        return None, None, None
    mean = equivalence.mean(values)
    interval = mean.interval(CONFIDENCE)
    ends = (None, None) if interval is None else (interval.low, interval.high)
    return (mean.value, *ends)
