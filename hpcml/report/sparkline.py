"""A curve as one line of text: its shape and no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcml.records import Point

_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "!"  # all that the program reported there was nan or infinite
_NOTHING = " "


def sparkline(points: Sequence[Point], *, width: int, steps: tuple[int, int], values: tuple[float, float]) -> str:
    """Return *width* characters, each as high as the mean of the values that it stands for.

    *steps* and *values* are the ends of both axes: with the same ones, several curves can be compared by eye.
    """
    if width < 1:
        return ""
    first, last = steps
    buckets: list[list[float]] = [[] for _ in range(width)]
    for point in points:
        at = (point.step - first) * width // (last - first + 1)
        if 0 <= at < width:
            buckets[at].append(point.value)
    return "".join(_bar(bucket, *values) for bucket in buckets).rstrip()


def axes(curves: Sequence[Sequence[Point]]) -> tuple[tuple[int, int], tuple[float, float]]:
    """Return the smallest and the largest step, and the same of the finite values, of all *curves* together."""
    steps = [point.step for points in curves for point in points] or [0]
    values = [point.value for points in curves for point in points if math.isfinite(point.value)] or [0.0]
    return (min(steps), max(steps)), (min(values), max(values))


def _bar(bucket: Sequence[float], low: float, high: float) -> str:
    if not bucket:
        return _NOTHING
    finite = [value for value in bucket if math.isfinite(value)]
    if not finite:
        return _NOT_FINITE
    # halves, since the difference of two large numbers may be no float any more
    height = high / 2 - low / 2
    mean = sum(value / len(finite) for value in finite)
    share = (mean / 2 - low / 2) / height if height > 0 else 0.5
    return _BARS[max(0, min(len(_BARS) - 1, int(share * len(_BARS))))]
