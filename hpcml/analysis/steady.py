"""The steady-state step time of a run: the median over the last half of its steps.

Every speed that hpcml shows (`hpcml compare`, `scaling`, `peak`, `estimate`) starts from it. A mean over all steps
carries start-up, compilation and checkpoints, and dropping ten steps removes only some of them; the median of the last
half comes within half a percent (docs/statistics.md). Step times count as one number per run.

A median says nothing where there is no steady state: `find_drift` looks over the runs of an arm for times that change
within the window, `has_modes` at one run for recurring slow steps, for which the mean is the honest number.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special  # not scipy.stats: it takes a second to import

from hpcml.model.records import Curve, Point

_AT_ONCE = 1_000_000  # step times
_Rows = npt.NDArray[np.float64]  # a row for each curve; of some functions one number each
_Flags = npt.NDArray[np.bool_]
MIN_STEPS = 8  # fewer in the window say nothing about a steady state
_EXPLAINED = 0.80  # of the variance of the logarithms, by two modes: of a uniform distribution halves explain 75 %
_APART = 1.25  # the means of two modes, at least
_SELDOM = 0.05  # of the steps: a rarer mode is a stall now and then
_DRIFT = 0.02  # of the step time, over the window
_DRIFT_P = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A range of steps, both ends included."""

    from_step: int
    to_step: int


@dataclass(slots=True, kw_only=True)  # not frozen: that takes most of the time, and there is one for each run
class SteadyState:
    """One run's step time in a window: median, mean, 5th and 95th percentile, in seconds.

    `change` is the relative change of the median from the first third of the window to the last.
    """

    median_s: float
    mean_s: float
    change: float
    has_modes: bool
    p5_s: float
    p95_s: float
    n: int  # steps in the window
    window: Window


def find_window(curve: Sequence[Point]) -> Window | None:
    """Return the last half of the steps of a ``step_time_s`` curve, or None below `MIN_STEPS` steps in it."""
    steps, _ = _measured(curve)
    if len(steps) - len(steps) // 2 < MIN_STEPS:
        return None
    return Window(from_step=steps[len(steps) // 2], to_step=steps[-1])


def common_window(curves: Iterable[Sequence[Point]]) -> Window | None:
    """Return the steps that lie in the last half of every curve, so that all arms are seen at the same age.

    A curve too short to have a last half is left out of the choice; None: no curve has one, or they have too few steps
    in common to tell a steady state.
    """
    every = (_measured(curve)[0] for curve in curves)
    found = [steps for steps in every if len(steps) - len(steps) // 2 >= MIN_STEPS]
    if not found:
        return None
    from_step, to_step = max(steps[len(steps) // 2] for steps in found), min(steps[-1] for steps in found)
    are_enough = all(bisect_right(steps, to_step) - bisect_left(steps, from_step) >= MIN_STEPS for steps in found)
    return Window(from_step=from_step, to_step=to_step) if are_enough else None


def steady_state(curve: Sequence[Point], window: Window | None = None) -> SteadyState | None:
    """Return the steady state of a ``step_time_s`` curve in *window*, by default its own last half.

    Points that are no duration (not finite, not positive) are ignored; None: fewer than `MIN_STEPS` remain. Percentiles
    are interpolated linearly between two values (`statistics.quantiles`, method "inclusive").
    """
    return steady_states({"": curve}, window).get("")


def steady_states(curves: Mapping[str, Sequence[Point]], window: Window | None = None) -> dict[str, SteadyState]:
    """Return the `steady_state` of each of *curves*, by uid; those without one are absent."""
    found: dict[str, SteadyState] = {}
    timed: dict[str, tuple[Window, Sequence[float]]] = {}
    n = 0
    for uid, curve in curves.items():
        own = window or find_window(curve)
        values = () if own is None else _inside(curve, own)
        if own is not None and len(values) >= MIN_STEPS:
            timed[uid] = own, values
            n += len(values)
        if n > _AT_ONCE:
            found |= _states(timed)
            timed, n = {}, 0
    return found | _states(timed)


def _states(timed: Mapping[str, tuple[Window, Sequence[float]]]) -> dict[str, SteadyState]:
    by_length: defaultdict[int, list[str]] = defaultdict(list)
    for uid, (_, values) in timed.items():
        by_length[len(values)].append(uid)
    found: dict[str, SteadyState] = {}
    for n, uids in by_length.items():
        rows: _Rows = np.array([timed[uid][1] for uid in uids], dtype=float)
        ordered: _Rows = np.sort(rows, axis=1)
        with np.errstate(over="ignore"):
            p5, median, p95 = (_twentieth(ordered, at).tolist() for at in (1, 10, 19))
            changes = (_median(rows[:, -(n // 3) :]) / _median(rows[:, : n // 3]) - 1).tolist()
        means = [math.fsum(row) / n for row in rows.tolist()]
        states = zip(uids, median, means, changes, _with_modes(ordered).tolist(), p5, p95, strict=True)
        found |= {
            uid: SteadyState(
                median_s=median_s,
                mean_s=mean_s,
                change=change,
                has_modes=is_bimodal,
                p5_s=p5_s,
                p95_s=p95_s,
                n=n,
                window=timed[uid][0],
            )
            for uid, median_s, mean_s, change, is_bimodal, p5_s, p95_s in states
        }
    return found


def _median(rows: _Rows) -> _Rows:
    """Return what `statistics.median` gives of each row, to the bit."""
    ordered: _Rows = np.sort(rows, axis=1)
    half = ordered.shape[1] // 2
    upper: _Rows = ordered[:, half]
    if ordered.shape[1] % 2:
        return upper
    middle: _Rows = (ordered[:, half - 1] + upper) / 2
    return middle


def _twentieth(ordered: _Rows, at: int) -> _Rows:
    """Return ``statistics.quantiles(row, n=20, method="inclusive")[at - 1]`` of each row, to the bit."""
    below, part = divmod(at * (ordered.shape[1] - 1), 20)
    found: _Rows = (ordered[:, below] * (20 - part) + ordered[:, below + 1] * part) / 20
    return found


def has_modes(values: Sequence[float]) -> bool:
    """Tell whether positive *values* are of two kinds: slow and fast steps, as with data that is waited for.

    The best split of the sorted logarithms (N. Otsu, IEEE Trans. Syst. Man Cybern. 9, 1979) must explain 80 % of their
    variance, with means a factor of 1.25 apart and 5 % of the values or more on either side.

    >>> has_modes([1.0, 1.1, 3.0] * 20), has_modes([1.0, 1.1, 1.2] * 20)
    (True, False)
    """
    return bool(_with_modes(np.array([sorted(values)], dtype=float))[0])


def _with_modes(ordered: _Rows) -> _Flags:
    """Tell of each row, sorted values, whether it `has_modes`."""
    has = np.zeros(len(ordered), dtype=bool)
    n = ordered.shape[1]
    if n < MIN_STEPS:
        return has
    wide = np.flatnonzero(ordered[:, -1] > _APART * ordered[:, 0])  # no means are further apart than values
    logs = np.log(ordered[wide])
    variance = np.var(logs, axis=1)
    k = np.arange(1, n)
    sums = np.cumsum(logs, axis=1)
    apart = (sums[:, -1:] - sums[:, :-1]) / (n - k) - sums[:, :-1] / k
    best = np.argmax(k * (n - k) * apart**2, axis=1)
    widest = apart[np.arange(len(wide)), best]
    explained = (best + 1) * (n - best - 1) / n**2 * widest**2
    is_large = np.minimum(best + 1, n - best - 1) / n >= _SELDOM
    has[wide] = (variance >= 1e-18) & (explained > _EXPLAINED * variance) & (widest > math.log(_APART)) & is_large
    return has


def find_drift(changes: Sequence[float]) -> float | None:
    """Return by how much the step times of an arm change within the window, as a share; None where that is not shown.

    *changes* has one number for each seed. It is shown if their mean is beyond 2 % and a two-sided t test on them has p
    below 1 %. A test on one run would be fooled by steps that depend on each other.

    >>> find_drift([0.10, 0.11, 0.12]) is not None, find_drift([0.10, -0.11, 0.12]) is not None
    (True, False)
    """
    if len(changes) < 2:
        return None
    mean, error = statistics.fmean(changes), statistics.stdev(changes) / math.sqrt(len(changes))
    if abs(mean) <= _DRIFT:
        return None
    p = 2 * float(special.stdtr(len(changes) - 1, -abs(mean) / error)) if error else 0.0
    return mean if p < _DRIFT_P else None


def _inside(curve: Sequence[Point], window: Window) -> Sequence[float]:
    steps, values = _measured(curve)
    return values[bisect_left(steps, window.from_step) : bisect_right(steps, window.to_step)]


def _measured(curve: Sequence[Point]) -> tuple[Sequence[int], Sequence[float]]:
    """Return the steps of *curve* that took some time, ascending, and the times."""
    if isinstance(curve, Curve):
        values = curve.values
        if not values or (min(values) > 0 and math.isfinite(sum(values))):  # no sum with nan is
            return curve.steps, values
    points = sorted((point for point in curve if 0 < point.value < math.inf), key=lambda point: point.step)
    return [point.step for point in points], [point.value for point in points]
