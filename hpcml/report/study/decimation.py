"""Fewer points of a curve that look the same: every peak and every dip stays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcml.records import Point


def decimate(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most *most* (8 or more) of *points*, all of them where they are so few.

    The points are cut into stretches of equal number; of each the smallest and the largest value stay, in the order in
    which they came, and one that is not finite, if there is any: a gap must stay a gap. Both ends stay.
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    count = (most - 2) // 3  # stretches; a gap is the third point that one may keep
    kept: list[Point] = []
    for at in range(count):
        stretch = inner[at * len(inner) // count : (at + 1) * len(inner) // count]
        finite = [at for at, point in enumerate(stretch) if math.isfinite(point.value)]
        chosen = {next((at for at, point in enumerate(stretch) if not math.isfinite(point.value)), None)}
        if finite:
            chosen |= {min(finite, key=lambda at: stretch[at].value), max(finite, key=lambda at: stretch[at].value)}
        kept += [stretch[at] for at in sorted(at for at in chosen if at is not None)]
    return [points[0], *kept, points[-1]]
