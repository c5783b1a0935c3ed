"""One curve merged from the series of several writers and attempts, and its summary (count, extremes, mean). Pure.

A step is an integer, chosen by the program; the points of a curve are ordered by it, not by time. Times here are
milliseconds since the run's epoch (`hpcml.store.schema`).
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple


class Columns(NamedTuple):
    """The points of a series in columns of one length; steps ascend, each once. Values may be nan or infinite."""

    steps: Sequence[int] = ()
    times_ms: Sequence[int] = ()
    values: Sequence[float] = ()


@dataclass(frozen=True, slots=True, order=True)
class Precedence:
    """The rank of a journal; where several have a value of the same step, that of the greatest counts.

    Precedences are compared field by field, in the order in which they stand here. The file name comes last, so that
    two journals never rank equal and the result does not depend on the order of reading.
    """

    attempt: int  # an attempt that goes on from a checkpoint repeats steps, and its word is the later one
    writer: tuple[int, int]
    t0: float
    file: str

    @classmethod
    def of(cls, *, attempt: int, writer: str, t0: float, file: str) -> Precedence:
        """Return the rank of a journal, which begins at *t0* in unix seconds.

        A later attempt ranks higher; within it rank 0 of the program, then its other ranks, then the agent (which reads
        metrics from the program's output), then others. *writer* is the name in the journal's header: ``rank3``,
        ``agent`` or another.

        >>> rank0 = Precedence.of(attempt=0, writer="rank0", t0=5.0, file="a")
        >>> rank0 > Precedence.of(attempt=0, writer="rank1", t0=9.0, file="b")
        True
        """
        rank = re.fullmatch(r"rank(\d+)", writer)
        if rank is not None:
            return cls(attempt, (2, -int(rank[1])), t0, file)
        return cls(attempt, (int(writer == "agent"), 0), t0, file)


def merge(series: Sequence[tuple[Precedence, Columns]]) -> Columns:
    """Return one point for each step.

    Where several series have a step, the point of the one that ranks highest is taken whole, its time included. An
    attempt goes on from a state before its first step: what attempts before did from there on does not count.

    >>> early = Precedence.of(attempt=0, writer="rank0", t0=0.0, file="a")
    >>> late = Precedence.of(attempt=1, writer="rank0", t0=9.0, file="b")
    >>> merge([(late, Columns([2], [90], [0.5])), (early, Columns([1, 2], [10, 20], [0.7, 0.6]))])
    Columns(steps=(1, 2), times_ms=(10, 90), values=(0.7, 0.5))
    >>> merge([(late, Columns([2], [90], [0.5])), (early, Columns([1, 3], [10, 30], [0.7, 0.4]))]).steps
    (1, 2)
    """
    if len(series) == 1:  # one writer, and one attempt
        return series[0][1]
    ranked = sorted(series, key=operator.itemgetter(0))
    return in_order(zip(*_before(points, _anew_at(ranked, rank.attempt)), strict=True) for rank, points in ranked)


def _anew_at(series: Iterable[tuple[Precedence, Columns]], attempt: int) -> int | None:
    """Return the first step of the attempts after *attempt*; None where they have none."""
    return min((points.steps[0] for rank, points in series if rank.attempt > attempt and points.steps), default=None)


def _before(points: Columns, step: int | None) -> Columns:
    if step is None:
        return points
    n = bisect_left(points.steps, step)
    return Columns(points.steps[:n], points.times_ms[:n], points.values[:n])


def in_order(parts: Iterable[Iterable[tuple[int, int, float]]]) -> Columns:
    """Return the points (step, milliseconds, value) of *parts* by step; of one that is there twice, the last."""
    found: dict[int, tuple[int, int, float]] = {}
    for part in parts:
        found.update((point[0], point) for point in part)
    return Columns(*zip(*(found[step] for step in sorted(found)), strict=True)) if found else Columns()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A summary that can be extended. Adding in pieces gives, to the bit, what adding at once gives.

    Field by field it is a row of table `metric`. `n` counts all points, `n_nonfinite` those that are nan or
    infinite; `first`, `min`, `max` and `total` look at finite values only, and are None (`total`: 0) without one.
    `last` is the value at the greatest step, None where that is not finite. Of equal extremes the first step counts.
    """

    n: int = 0
    n_nonfinite: int = 0
    first: float | None = None
    last: float | None = None
    last_step: int | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    total: float = 0.0


EMPTY = Tally()


def measured(steps: Sequence[int], values: Sequence[float]) -> Columns | None:
    """Return the points without those that are nan only because nothing was measured there; None where none is such.

    A loop that validates in every fifth epoch may say nan in the four between. Then most of its values stand alone, and
    before one as many nan as at the end, or more. A training that diverged has values in a row, and then none.

    >>> nan = math.nan
    >>> measured([0, 1, 2, 3], [0.5, nan, 0.4, nan])
    Columns(steps=[0, 2], times_ms=(), values=[0.5, 0.4])
    >>> [measured(range(5), values) for values in ([0.5, nan, 0.4, nan, nan], [0.5, 0.4, nan, 0.4, 0.3])]
    [None, None]
    """
    stretches = [(is_nan, len(list(of))) for is_nan, of in itertools.groupby(map(math.isnan, values))]
    n_last = stretches.pop()[1] if stretches and stretches[-1][0] else 0
    between = [n for is_nan, n in stretches if is_nan]
    together = [n for is_nan, n in stretches if not is_nan]
    if not between or n_last > max(between) or 2 * sum(together) > 3 * len(together) or any(map(math.isinf, values)):
        return None
    known = [(step, value) for step, value in zip(steps, values, strict=True) if not math.isnan(value)]
    return Columns([step for step, _ in known], (), [value for _, value in known])


def mean_of(total: float, n: int) -> float | None:
    """Return the mean of *n* finite values with this *total*; None of no value, and where the total is none."""
    return total / n if n and math.isfinite(total) else None


def extend(tally: Tally, steps: Sequence[int], values: Sequence[float]) -> Tally:
    """Return *tally* with points whose *steps* increase and all lie behind its last one.

    Of equal extremes the first counts. *values* may hold nan and infinities. Raises `ValueError` where *steps* and
    *values* differ in length. That the steps increase is the caller's promise and not checked.

    >>> tally = extend(EMPTY, [1, 2, 3], [0.5, 0.25, 0.75])
    >>> tally.n, tally.min, tally.min_step, tally.last
    (3, 0.25, 2, 0.75)
    """
    if not steps:
        return tally
    last = values[-1] if math.isfinite(values[-1]) else None
    known, finite = _finite(steps, values)
    n, n_nonfinite = tally.n + len(steps), tally.n_nonfinite + len(steps) - len(finite)
    if not finite:
        return replace(tally, n=n, n_nonfinite=n_nonfinite, last=last, last_step=steps[-1])
    low, high = min(finite), max(finite)
    lower = tally.min is None or low < tally.min
    higher = tally.max is None or high > tally.max
    return Tally(
        n=n,
        n_nonfinite=n_nonfinite,
        first=finite[0] if tally.first is None else tally.first,
        last=last,
        last_step=steps[-1],
        min=low if lower else tally.min,
        min_step=known[finite.index(low)] if lower else tally.min_step,
        max=high if higher else tally.max,
        max_step=known[finite.index(high)] if higher else tally.max_step,
        total=reduce(operator.add, finite, tally.total),  # from left to right: sum() may compensate, and then differs
    )


def _finite(steps: Sequence[int], values: Sequence[float]) -> tuple[Sequence[int], Sequence[float]]:
    """Return the finite ones of *values*, with their steps."""
    if len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps have {len(values)} values")
    if math.isfinite(sum(values)):  # nearly always; no sum with nan or an infinity is
        return steps, values
    pairs = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    return [step for step, _ in pairs], [value for _, value in pairs]
