"""One curve out of what several writers and attempts said about it, and its summary: pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from hpcml.records import MetricSummary

Points = Mapping[int, tuple[int, float]]  # step -> (t_ms, value)


@dataclass(frozen=True, slots=True, order=True)
class Precedence:
    """Whose value of a step is taken, where several writers have one: the greatest's."""

    attempt: int  # an attempt that goes on from a checkpoint repeats steps, and its word is the later one
    writer: tuple[int, int]
    t0: float
    file: str

    @classmethod
    def of(cls, *, attempt: int, writer: str, t0: float, file: str) -> Precedence:
        """Rank a journal: the workload's own rank 0, its other ranks, the agent (which reads stdout), the rest."""
        rank = re.fullmatch(r"rank(\d+)", writer)
        if rank is not None:
            return cls(attempt, (2, -int(rank[1])), t0, file)
        return cls(attempt, (int(writer == "agent"), 0), t0, file)


def merge(series: Iterable[tuple[Precedence, Points]]) -> dict[int, tuple[int, float]]:
    """Return one point for each step, in the order of the steps."""
    merged: dict[int, tuple[int, float]] = {}
    for _, points in sorted(series, key=operator.itemgetter(0)):
        merged.update(points)
    return dict(sorted(merged.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A summary that can be carried on. Adding in pieces gives, to the bit, what adding at once gives."""

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

    def summary(self, name: str) -> MetricSummary:
        """Return what the store hands out; a mean too large for a float is None."""
        finite = self.n - self.n_nonfinite
        mean = self.total / finite if finite and math.isfinite(self.total) else None
        return MetricSummary(
            name=name,
            n=self.n,
            n_nonfinite=self.n_nonfinite,
            first=self.first,
            last=self.last,
            last_step=self.last_step,
            min=self.min,
            min_step=self.min_step,
            max=self.max,
            max_step=self.max_step,
            mean=mean,
        )


EMPTY = Tally()


def extend(tally: Tally, steps: Sequence[int], values: Sequence[float]) -> Tally:
    """Add points whose *steps* increase and all lie behind the tally's last one. Of equal extremes the first counts."""
    if not steps:
        return tally
    pairs = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    last = values[-1] if math.isfinite(values[-1]) else None
    n, n_nonfinite = tally.n + len(steps), tally.n_nonfinite + len(steps) - len(pairs)
    if not pairs:
        return Tally(
            n=n,
            n_nonfinite=n_nonfinite,
            first=tally.first,
            last=last,
            last_step=steps[-1],
            min=tally.min,
            min_step=tally.min_step,
            max=tally.max,
            max_step=tally.max_step,
            total=tally.total,
        )
    finite = [value for _, value in pairs]
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
        min_step=pairs[finite.index(low)][0] if lower else tally.min_step,
        max=high if higher else tally.max,
        max_step=pairs[finite.index(high)][0] if higher else tally.max_step,
        total=reduce(operator.add, finite, tally.total),  # from left to right: sum() may compensate, and then differs
    )
