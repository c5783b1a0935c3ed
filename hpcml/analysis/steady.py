"""The steady-state step time of a run: the median over the last half of its steps.

Every speed that hpcml shows (`hpcml compare`, `scaling`, `peak`, `plan --time`) starts from it. A mean over all steps
carries start-up, compilation and checkpoints, and dropping ten steps removes only some of them; the median of the last
half comes within half a percent (docs/statistics.md). Step times count as one number per run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from hpcml.model.records import Point

MIN_STEPS = 8  # fewer in the window say nothing about a steady state
_DIFFERENT = 0.05  # of means and medians of step times
Curves = Mapping[str, Sequence[Point]]  # by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurves:
    """What programs reported of each step, in seconds, as curves by uid."""

    step_s: Curves
    communication_s: Curves
    waiting_s: Curves  # for input


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A range of steps, both ends included."""

    from_step: int
    to_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """One run's step time in a window: median, mean, 5th and 95th percentile, in seconds."""

    median_s: float
    mean_s: float
    p5_s: float
    p95_s: float
    n: int  # steps in the window
    window: Window


def common_window(curves: Iterable[Sequence[Point]]) -> Window | None:
    """Return the steps that lie in the last half of every curve, so that all arms are seen at the same age.

    A curve too short to have a last half is left out of the choice; None: no curve has one, or they have too few steps
    in common to tell a steady state.
    """
    known = [steps for curve in curves if _last_half(steps := [step for step, _ in _durations(curve)]) is not None]
    halves = [half for steps in known if (half := _last_half(steps)) is not None]
    if not halves:
        return None
    common = Window(from_step=max(half.from_step for half in halves), to_step=min(half.to_step for half in halves))
    are_enough = all(sum(common.from_step <= step <= common.to_step for step in steps) >= MIN_STEPS for steps in known)
    return common if are_enough else None


def steady_state(curve: Sequence[Point], window: Window | None = None) -> SteadyState | None:
    """Return the steady state of a ``step_time_s`` curve in *window*, by default its own last half.

    Points that are no duration (not finite, not positive) are ignored; None: fewer than `MIN_STEPS` remain.
    """
    known = _durations(curve)
    window = window or _last_half([step for step, _ in known])
    if window is None:
        return None
    times = [time_s for step, time_s in known if window.from_step <= step <= window.to_step]
    if len(times) < MIN_STEPS:
        return None
    twentieths = quantiles(times, n=20, method="inclusive")
    return SteadyState(
        median_s=twentieths[9],
        mean_s=fmean(times),
        p5_s=twentieths[0],
        p95_s=twentieths[18],
        n=len(times),
        window=window,
    )


def steady_states(curves: Curves, window: Window | None = None) -> dict[str, SteadyState]:
    """Return the `steady_state` of each of *curves*, by uid; those without one are absent."""
    found = {uid: steady_state(curve, window) for uid, curve in curves.items()}
    return {uid: state for uid, state in found.items() if state is not None}


def means_differ(arms: Iterable[Sequence[SteadyState]]) -> bool:
    """Tell whether speeds go by means, the throughput: in some arm the mean of the steps is not their median."""
    return any(abs(_mean_over_median(states) - 1) > _DIFFERENT for states in arms if states)


def share_of_time(
    part: Sequence[Point], steps: Sequence[Point], steady: SteadyState, *, is_inside: bool
) -> float | None:
    """Return the sum of *part* over the summed time of the steady steps that have both; None where there is none.

    *is_inside*: the part is contained in the step's time (communication); else it comes on top of it (waiting for
    input).
    """
    first, last = steady.window.from_step, steady.window.to_step
    taken, whole = ({p.step: p.value for p in of if first <= p.step <= last and p.value >= 0} for of in (part, steps))
    common = taken.keys() & whole.keys()
    waited, total = sum(taken[step] for step in common), sum(whole[step] for step in common)
    total += 0.0 if is_inside else waited
    return waited / total if total > 0 else None


def _durations(curve: Sequence[Point]) -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in curve if 0 < point.value < math.inf)


def _last_half(steps: Sequence[int]) -> Window | None:
    if len(steps) - len(steps) // 2 < MIN_STEPS:
        return None
    return Window(from_step=steps[len(steps) // 2], to_step=steps[-1])


def _mean_over_median(states: Sequence[SteadyState]) -> float:
    return math.exp(fmean(math.log(state.mean_s / state.median_s) for state in states))
