"""The steady-state step time of a run: the median over the last half of its steps.

Every speed that hpcml shows (`hpcml compare`, `scaling`, `peak`, `estimate`) starts from it. A mean over all steps
carries start-up, compilation and checkpoints, and dropping ten steps removes only some of them; the median of the last
half comes within half a percent (docs/statistics.md). Step times count as one number per run.

A median says nothing where there is no steady state: `find_drift` looks over the runs of an arm for times that change
within the window.
"""

from __future__ import annotations

import math
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special  # not scipy.stats: it takes a second to import

from hpcml.model.records import Curve, Point

_AT_ONCE = 200_000  # step times
_Rows = npt.NDArray[np.float64]  # a row for each curve; of some functions one number each
T = TypeVar("T")
MIN_STEPS = 8  # fewer in the window say nothing about a steady state
_DRIFT = 0.02  # of the step time, over the window
_DRIFT_P = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A range of steps, both ends included."""

    from_step: int
    to_step: int


@dataclass(slots=True)  # neither frozen nor by keyword alone: that takes most of the time, and there is one a run
class SteadyState:
    """One run's step time in a window: median, mean, 5th and 95th percentile, in seconds.

    `change` is the relative change of the median from the first third of the window to the last.
    """

    median_s: float
    mean_s: float
    change: float
    p5_s: float
    p95_s: float
    n: int  # steps in the window
    window: Window


def _last_half(steps: Sequence[int]) -> Window | None:
    if len(steps) - len(steps) // 2 < MIN_STEPS:
        return None
    return Window(from_step=steps[len(steps) // 2], to_step=steps[-1])


def common_window(curves: Iterable[Sequence[Point]]) -> Window | None:
    """Return the steps that lie in the last half of every curve, so that all arms are seen at the same age.

    A curve too short to have a last half is left out of the choice; None: no curve has one, or they have too few steps
    in common to tell a steady state.
    """
    every = [each.steps for piece in _by_steps(enumerate(curves)) for each in piece if each.uids]
    halves = [(steps, half) for steps in every if (half := _last_half(steps)) is not None]
    if not halves:
        return None
    common = Window(
        from_step=max(half.from_step for _, half in halves), to_step=min(half.to_step for _, half in halves)
    )
    are_enough = all(len(range(*_inside(steps, common))) >= MIN_STEPS for steps, _ in halves)
    return common if are_enough else None


def steady_state(curve: Sequence[Point], window: Window | None = None) -> SteadyState | None:
    """Return the steady state of a ``step_time_s`` curve in *window*, by default its own last half.

    Points that are no duration (not finite, not positive) are ignored; None: fewer than `MIN_STEPS` remain. Percentiles
    are interpolated linearly between two values (`statistics.quantiles`, method "inclusive").
    """
    return steady_states({"": curve}, window).get("")


def steady_states(curves: Mapping[str, Sequence[Point]], window: Window | None = None) -> dict[str, SteadyState]:
    """Return the `steady_state` of each of *curves*, by uid; those without one are absent."""
    found: dict[str, SteadyState] = {}
    for piece in _by_steps(curves.items()):
        by_length: defaultdict[int, list[tuple[Sequence[str], _Rows, Window]]] = defaultdict(list)
        for each in piece:
            own = window or _last_half(each.steps)
            begin, end = (0, 0) if own is None else _inside(each.steps, own)
            if own is not None and end - begin >= MIN_STEPS:
                by_length[end - begin].append((each.uids, each.rows[:, begin:end], own))
        for of in by_length.values():
            uids = [uid for uids, _, _ in of for uid in uids]
            windows = [own for uids, _, own in of for _ in uids]
            found |= zip(uids, _states(np.concatenate([rows for _, rows, _ in of]), windows), strict=True)
    return found


def _states(rows: _Rows, windows: Sequence[Window]) -> Iterator[SteadyState]:
    """Yield the state of each of *rows*, the times of the steps in one of *windows*."""
    n = rows.shape[1]
    ordered: _Rows = np.sort(rows, axis=1)
    with np.errstate(over="ignore"):
        p5, median, p95 = (_twentieth(ordered, at).tolist() for at in (1, 10, 19))
        changes = (_median(rows[:, -(n // 3) :]) / _median(rows[:, : n // 3]) - 1).tolist()
    means = [math.fsum(row) / n for row in rows.tolist()]
    return map(SteadyState, median, means, changes, p5, p95, repeat(n), windows)


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


@dataclass(slots=True, kw_only=True)
class _Alike(Generic[T]):
    """Curves that have the same steps, each of which took some time: a row of times for each."""

    steps: Sequence[int]  # ascending
    uids: Sequence[T]
    rows: _Rows


def _by_steps(curves: Iterable[tuple[T, Sequence[Point]]]) -> Iterator[list[_Alike[T]]]:
    """Yield *curves* with their uids by what steps they have, some at a time: without points that are no duration."""
    alike: dict[bytes, tuple[array[int], list[T], list[array[float]]]] = {}
    before: array[int] | None = None
    n = 0
    for uid, curve in curves:
        steps, values = (curve.steps, curve.values) if isinstance(curve, Curve) else _in_columns(curve)
        if steps is not before:  # curves that were loaded together share them
            _, uids, rows = alike.setdefault(steps.tobytes(), (steps, [], []))
            before = steps
        uids.append(uid)
        rows.append(values)
        n += len(steps)
        if n > _AT_ONCE:
            yield [each for of in alike.values() for each in _without_others(*of)]
            alike, before, n = {}, None, 0
    yield [each for of in alike.values() for each in _without_others(*of)]


def _without_others(steps: array[int], uids: Sequence[T], values: Sequence[array[float]]) -> Iterator[_Alike[T]]:
    """Yield the curves of these *steps*; one with points that are no duration by itself, without them."""
    if not steps:
        return
    rows: _Rows = np.frombuffer(b"".join(values)).reshape(len(values), len(steps))
    are_durations = (rows > 0) & (rows < math.inf)
    are_whole = are_durations.all(axis=1)
    if are_whole.all():
        yield _Alike(steps=steps, uids=uids, rows=rows)
        return
    yield _Alike(steps=steps, uids=[uids[at] for at in np.flatnonzero(are_whole).tolist()], rows=rows[are_whole])
    for at in np.flatnonzero(~are_whole).tolist():
        own = np.flatnonzero(are_durations[at])
        yield _Alike(steps=[steps[of] for of in own.tolist()], uids=[uids[at]], rows=rows[at : at + 1, own])


def _in_columns(points: Sequence[Point]) -> tuple[array[int], array[float]]:
    durations = sorted((point for point in points if 0 < point.value < math.inf), key=lambda point: point.step)
    return array("q", [point.step for point in durations]), array("d", [point.value for point in durations])


def _inside(steps: Sequence[int], window: Window) -> tuple[int, int]:
    """Return where *window* begins in *steps*, and where it has ended."""
    return bisect_left(steps, window.from_step), bisect_right(steps, window.to_step)


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
