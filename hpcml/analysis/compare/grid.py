"""The scale and the grid of a metric: on which scale its values are tested, and which step they cannot be finer than.

An accuracy of 355 samples moves in steps of 1/355. A spread that was seen below one step says how coarse the metric is,
not how certain the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hpcml.analysis.compare.factor import with_distinct_settings
from hpcml.errors import ComparisonError
from hpcml.model.records import RunRecord
from hpcml.model.told_apart import show

_RECORDED = "metric_resolution."  # with the metric's name a fact, which programs may report


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The smallest step of a metric; None: no grid is known."""

    value: float | None
    source: Literal["config", "recorded"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricScale:
    """The scale of all tests; on another than linear the margin is that which it is at the value `at`."""

    name: Literal["linear", "log", "logit"]
    at: float | None
    higher_is_better: bool

    def value(self, raw: float, step: float | None) -> float:
        """Return *raw* on the scale; the ends of logit's (0 and 1) are taken to be half a *step* away from them."""
        if self.name == "linear":
            return raw
        if self.name == "logit" and step is not None:
            raw = min(max(raw, step / 2), 1 - step / 2)
        if not 0 < raw < (1 if self.name == "logit" else math.inf):
            more = ": set objective.resolution" if self.name == "logit" and raw in (0, 1) else ""
            raise ComparisonError(f"objective.scale={self.name} has no place for a value of {raw:g}{more}")
        return self._there(raw)

    def distance(self, raw: float) -> float:
        """Return how far from `at` a value lies that is worse by *raw*, a margin in the metric's unit."""
        if self.at is None:
            return raw
        worse = self.at + (-raw if self.higher_is_better else raw)
        if not 0 < worse < (1 if self.name == "logit" else math.inf):
            raise ComparisonError(f"margin={raw:g} from objective.scale_at={self.at:g} leaves the {self.name} scale")
        return abs(self._there(worse) - self._there(self.at))

    def step(self, raw: float | None) -> float:
        """Return what a step of *raw* in the metric's unit is on the scale, at `at`; 0 for None."""
        if raw is None or self.at is None:
            return raw or 0.0
        return raw / self.at / (1.0 if self.name == "log" else 1 - self.at)

    def back(self, difference: float) -> float:
        """Return a *difference* on the scale in the metric's unit, as it is from `at` on."""
        if self.at is None:
            return difference
        if self.name == "log":
            return self.at * math.expm1(min(difference, 700.0))
        there = self._there(self.at) + difference
        return (1 / (1 + math.exp(-there)) if there > -700 else 0.0) - self.at

    def _there(self, raw: float) -> float:
        return math.log(raw) if self.name == "log" else math.log(raw / (1 - raw))


NO_GRID = Resolution(value=None, source=None)
LINEAR = MetricScale(name="linear", at=None, higher_is_better=True)


def find_scale(runs: Sequence[RunRecord], metric: str, *, higher_is_better: bool) -> MetricScale:
    """Return the scale that *runs* were configured with before they ran; linear for a metric that is not theirs.

    Raises `ComparisonError` where the runs disagree.
    """
    name, at = (_agreed(runs, metric, key, of) for key, of in (("scale", _name), ("scale_at", _number)))
    if name not in ("log", "logit"):
        return MetricScale(name="linear", at=None, higher_is_better=higher_is_better)
    return MetricScale(
        name="log" if name == "log" else "logit",
        at=at if isinstance(at, float) else None,
        higher_is_better=higher_is_better,
    )


def find_resolution(runs: Sequence[RunRecord], metric: str) -> Resolution:
    """Return the step of *metric* of the runs of one cell: configured, else recorded by their program.

    Of several that were recorded the largest counts. Raises `ComparisonError` where the runs' configurations disagree.
    """
    configured = _agreed(runs, metric, "resolution", _number)
    if isinstance(configured, float):
        return Resolution(value=configured, source="config")
    every = {id(run.facts): run.facts for run in runs}.values()
    told = [_number(facts.get(f"{_RECORDED}{metric}")) for facts in every]
    recorded = [step for step in told if step is not None and step > 0]
    return Resolution(value=max(recorded), source="recorded") if recorded else NO_GRID


def _agreed(
    runs: Sequence[RunRecord], metric: str, key: str, read: Callable[[object], float | str | None]
) -> float | str | None:
    own = [run for run in with_distinct_settings(runs) if run.params.get("objective.metric") == metric]
    values = {read(run.params.get(f"objective.{key}")) for run in own}
    if len(values) > 1:
        shown = ", ".join(sorted(map(show, values)))
        raise ComparisonError(f"the runs disagree on objective.{key} for {metric}: {shown}; select with --where")
    return next(iter(values), None)


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _name(value: object) -> str:
    return "linear" if value is None else str(value)
