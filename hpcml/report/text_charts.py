"""Charts made of characters: bars, and curves in one line of text.

They use the block elements and box-drawing characters of Unicode, or ASCII alone where a terminal cannot show these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcml.model.records import Point

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_WHOLE = "#"


def bar(share: float | None, *, width: int, is_plain: bool) -> str:
    """Return a bar of *share* (0 to 1) of *width* characters, never longer; "" for None.

    *is_plain* draws with ASCII alone; else the last character is drawn in eighths.

    >>> bar(0.5, width=8, is_plain=True), bar(0.3, width=4, is_plain=False)
    ('####', '█▎')
    """
    if share is None or width < 1:
        return ""
    filled = max(0.0, min(1.0, share)) * width
    if is_plain:
        return _WHOLE * round(filled)
    eighths = round(filled * 8)
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


_HEIGHTS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "!"  # all that the program reported there was nan or infinite
_NOTHING = " "
_BEYOND = ("↓", "↑")
_FAR = 10_000  # times the median size of a value


def sparkline(points: Sequence[Point], *, width: int, steps: tuple[int, int], values: tuple[float, float]) -> str:
    """Return *width* characters, each as high as the mean of the points that it stands for.

    *steps* and *values* are the ends of both axes: with the same ones several curves can be compared by eye. A blank
    stands for no point, "!" for points of which none is finite, an arrow for one beyond *values*; blanks at the end are
    left out.
    """
    if width < 1:
        return ""
    first, last = steps
    buckets: list[list[float]] = [[] for _ in range(width)]
    for point in points:
        at = (point.step - first) * width // (last - first + 1)
        if 0 <= at < width:
            buckets[at].append(point.value)
    return "".join(_height(bucket, *values) for bucket in buckets).rstrip()


def axes(curves: Sequence[Sequence[Point]]) -> tuple[tuple[int, int], tuple[float, float]]:
    """Return the smallest and largest step, and the smallest and largest finite value, over all *curves*.

    Values of ten thousand times the usual size do not count. Without any point they are (0, 0) and (0.0, 0.0).
    """
    steps = [point.step for points in curves for point in points] or [0]
    values = [point.value for points in curves for point in points if math.isfinite(point.value)] or [0.0]
    sizes = sorted(abs(value) for value in values if value) or [0.0]
    values = [value for value in values if abs(value) <= _FAR * sizes[len(sizes) // 2]]
    return (min(steps), max(steps)), (min(values), max(values))


def _height(bucket: Sequence[float], low: float, high: float) -> str:
    """Return the character for the mean of the finite values of *bucket* between *low* and *high*."""
    if not bucket:
        return _NOTHING
    finite = [value for value in bucket if math.isfinite(value)]
    if not finite:
        return _NOT_FINITE
    if max(finite) > high or min(finite) < low:
        return _BEYOND[max(finite) > high]
    # halves, since the difference of two large numbers may be no float any more
    height = high / 2 - low / 2
    mean = sum(value / len(finite) for value in finite)
    share = (mean / 2 - low / 2) / height if height > 0 else 0.5
    return _HEIGHTS[max(0, min(len(_HEIGHTS) - 1, int(share * len(_HEIGHTS))))]
