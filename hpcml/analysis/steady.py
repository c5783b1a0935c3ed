"""The steady-state step time of a run: the median over the last half of its steps.

Every speed that hpcml shows (`hpcml compare`, `scaling`, `peak`, `estimate`) starts from it. A mean over all steps
carries start-up, compilation and checkpoints, and dropping ten steps removes only some of them; the median of the last
half comes within half a percent (docs/statistics.md). Step times count as one number per run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcml.model.records import Point

MIN_STEPS = 8  # fewer in the window say nothing about a steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A range of steps, both ends included."""

    from_step: int
    to_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """One run's step time in a window: median, 5th and 95th percentile, in seconds."""

    median_s: float
    p5_s: float
    p95_s: float
    n: int  # steps in the window
    window: Window


def find_window(curve: Sequence[Point]) -> Window | None:
    """Return the last half of the steps of a ``step_time_s`` curve, or None below `MIN_STEPS` steps in it."""
    steps = sorted(point.step for point in _measured(curve))
    if len(steps) - len(steps) // 2 < MIN_STEPS:
        return None
    return Window(from_step=steps[len(steps) // 2], to_step=steps[-1])


def common_window(curves: Iterable[Sequence[Point]]) -> Window | None:
    """Return the steps that lie in the last half of every curve, so that all arms are seen at the same age.

    A curve too short to have a last half is left out of the choice; None: no curve has one, or they do not overlap.
    """
    windows = [window for window in map(find_window, curves) if window is not None]
    if not windows:
        return None
    first, last = max(w.from_step for w in windows), min(w.to_step for w in windows)
    return Window(from_step=first, to_step=last) if first <= last else None


def steady_state(curve: Sequence[Point], window: Window | None = None) -> SteadyState | None:
    """Return the steady state of a ``step_time_s`` curve in *window*, by default its own last half.

    Points that are no duration (not finite, not positive) are ignored; None: fewer than `MIN_STEPS` remain. Percentiles
    are interpolated linearly between two values (`statistics.quantiles`, method "inclusive").
    """
    window = window or find_window(curve)
    if window is None:
        return None
    values = [p.value for p in _measured(curve) if window.from_step <= p.step <= window.to_step]
    if len(values) < MIN_STEPS:
        return None
    twentieths = statistics.quantiles(values, n=20, method="inclusive")  # between two values, in proportion
    return SteadyState(median_s=twentieths[9], p5_s=twentieths[0], p95_s=twentieths[18], n=len(values), window=window)


def _measured(curve: Sequence[Point]) -> list[Point]:
    return [point for point in curve if math.isfinite(point.value) and point.value > 0]
