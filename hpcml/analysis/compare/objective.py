"""The objective of a comparison: the metric that runs are judged on, its direction, the margin and the target.

Each comes from the command line or else from the runs' own configuration (``objective.*``), where it was stored before
any result was known. Used by `hpcml compare`, `best`, `plan` and `report`.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcml.analysis.compare.result import Percent
from hpcml.errors import ComparisonError
from hpcml.model.choices import Goal, Scale
from hpcml.model.metric_goal import goal_by_name, is_duration_or_rate
from hpcml.model.records import RunRecord
from hpcml.model.run import DEFAULT_METRIC
from hpcml.model.told_apart import show
from hpcml.spelling import did_you_mean
from hpcml.units import one_or_many

_MOST_NAMED = 20  # metrics, in a line of advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The metric of a whole comparison, its direction (None: nothing tells it), and where that was taken from."""

    metric: str
    goal: Literal["max", "min"] | None
    goal_source: Literal["config", "command line", "metric name"] | None

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value is the better one; where that is not known nothing may rest on it."""
        return self.goal != Goal.min.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """The smallest difference that matters, in the unit of the metric or in per cent of it; None: none was fixed.

    The source `config` means that it was stored with the runs, before any result was known.
    """

    value: float | None
    source: Literal["config", "command line"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """The logarithm of a metric, on which all its tests are made; the margin is that which it is at the value `at`."""

    at: float
    higher_is_better: bool
    asked: str = "objective.scale=log"

    def value(self, raw: float) -> float:
        """Return the logarithm of *raw*; raise `ComparisonError` where there is none."""
        if raw <= 0:
            raise ComparisonError(f"{self.asked} has no place for a value of {raw:g}: judge by differences in its unit")
        return math.log(raw)

    def distance(self, margin: float) -> float:
        """Return how far from `at` a value lies that is worse by *margin*."""
        worse = self.at + (-margin if self.higher_is_better else margin)
        if worse <= 0:
            raise ComparisonError(
                f"margin={margin:g} from {self.at:g} leaves the log scale ({self.asked}): choose a smaller one"
            )
        return abs(math.log(worse / self.at))

    def back(self, difference: float) -> float:
        """Return a *difference* of logarithms in the metric's unit, as it is from `at` on."""
        return self.at * math.expm1(min(difference, 700.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The value of the metric that runs are to reach, in its unit; None: none was set."""

    value: float | None
    source: Literal["config", "command line"] | None


def _offered(known: Sequence[str]) -> str:
    choice = shlex.quote(known[0]) if len(known) == 1 else "NAME"
    named = ", ".join(known[:_MOST_NAMED]) + (f" and {more} more" if (more := len(known) - _MOST_NAMED) > 0 else "")
    return f"they have {named} (--metric {choice} judges by {'it' if len(known) == 1 else 'one of them'})"


def _no_metric(runs: Sequence[RunRecord], asked: str | None) -> str:
    """Return that none of *runs* recorded any metric, and what reads one that they printed."""
    if not any(run.state.is_final for run in runs):
        return f"no run recorded {asked or 'a metric'} yet: {not_ended(runs)}"
    name, experiments = asked or "loss", {run.experiment for run in runs}
    which = f"--experiment {shlex.quote(experiments.pop())}" if len(experiments) == 1 else "RUN..."
    reads = f"hpcml read {which} --metric {shlex.quote(name)} reads {name} from what they printed"
    return f"no run recorded {asked or 'any metric'}: {reads}"


def find_yardstick(runs: Sequence[RunRecord], metric: str | None, goal: str | None) -> Yardstick:
    """Return the metric to judge *runs* by and its direction ("max" or "min").

    None means the runs' own objective; a direction that is found nowhere is that of the metric's name (a loss or a time
    is to be small), if it tells one. Raises `ComparisonError` where there are no runs, they disagree, none recorded the
    metric, or *goal* is neither.
    """
    if not runs:
        raise ComparisonError("no runs to judge: none matches the selection")
    known = sorted({name for run in runs for name in run.metrics})
    if not known:
        raise ComparisonError(_no_metric(runs, metric))
    asked, metric = metric, metric or _agreed_metric(runs, known)
    if metric not in known:
        near = (did_you_mean(metric, known) if asked else None) or _offered(known)
        raise ComparisonError(f"no run recorded {metric}{'' if asked else ', their objective.metric'}: {near}")
    if goal is not None:
        if goal not in Goal.__members__:
            raise ComparisonError(f"goal={goal}: choose max or min")
        return Yardstick(metric=metric, goal="max" if goal == Goal.max.name else "min", goal_source="command line")
    goals = {run.params.get("objective.goal") for run in _judged_by(runs, metric)} - {None}
    if len(goals) > 1:
        raise ComparisonError(_disagreement(_judged_by(runs, metric), "goal"))
    if goals:
        return Yardstick(metric=metric, goal="max" if Goal.max.name in goals else "min", goal_source="config")
    if (by_name := goal_by_name(metric)) is None:
        return Yardstick(metric=metric, goal=None, goal_source=None)
    return Yardstick(metric=metric, goal="max" if by_name is Goal.max else "min", goal_source="metric name")


def find_margin(runs: Sequence[RunRecord], metric: str, wanted: float | Percent | None) -> Margin:
    """Return the margin for *metric* of the runs of one cell; *wanted* is the command line's.

    objective.margin is in the unit of objective.metric; objective.margins has those of other metrics, by name. Raises
    `ComparisonError` where *wanted* is not a positive number or the runs disagree.
    """
    if wanted is not None:
        given = wanted.value if isinstance(wanted, Percent) else float(wanted)
        if not (math.isfinite(given) and given > 0):
            raise ComparisonError(f"margin={wanted} must be positive")
        return Margin(value=given, source="command line")
    values = {_margin_of(run, metric) for run in runs}
    if len(values) > 1:
        shown = ", ".join(sorted("none" if value is None else show(value) for value in values))
        raise ComparisonError(f"the runs disagree on objective.margin for {metric}: {shown}; give one with --margin")
    value = next(iter(values), None)
    return Margin(value=None, source=None) if value is None else Margin(value=float(value), source="config")


def find_target(runs: Sequence[RunRecord], metric: str, wanted: float | None) -> Target:
    """Return the target of the runs of one cell; *wanted* is the command line's.

    objective.target is a value of objective.metric and of no other. Raises `ComparisonError` where *wanted* is not
    finite or the runs disagree.
    """
    if wanted is not None:
        if not math.isfinite(wanted):
            raise ComparisonError(f"target={wanted} must be a number")
        return Target(value=float(wanted), source="command line")
    own = _judged_by(runs, metric)
    values = {run.params.get("objective.target") for run in own}
    if len(values) > 1:
        raise ComparisonError(_disagreement(_judged_by(runs, metric), "target"))
    value = next(iter(values), None)
    return Target(value=None, source=None) if value is None else Target(value=float(value), source="config")


def find_scale(
    runs: Sequence[RunRecord], yardstick: Yardstick, wanted: float | Percent | None = None
) -> LogScale | None:
    """Return the logarithmic scale that *runs* were configured with; None: linear, as for a metric that is not theirs.

    Where the margin that is *wanted* is in per cent, the scale is such that differences are in per cent of the
    reference. Raises `ComparisonError` where the runs disagree.
    """
    if isinstance(wanted, Percent):
        return LogScale(at=100.0, higher_is_better=yardstick.higher_is_better, asked=f"--margin {wanted}")
    own = _judged_by(runs, yardstick.metric)
    scales = {(run.params.get("objective.scale"), run.params.get("objective.scale_at")) for run in own}
    if len(scales) > 1:
        raise ComparisonError(_disagreement(own, "scale") + ", or select with --where")
    name, value = next(iter(scales), (None, None))
    if name != Scale.log.name or not isinstance(value, int | float):
        return None
    return LogScale(at=float(value), higher_is_better=yardstick.higher_is_better)


def not_ended(runs: Sequence[RunRecord]) -> str:
    """Return "3 of 12 runs have not ended (2 PENDING, 1 RUNNING)"; "" where all have."""
    states = Counter(run.state.value for run in runs if not run.state.is_final)
    if not states:
        return ""
    n, of_them = states.total(), ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    return f"{n} of {len(runs)} {one_or_many(len(runs), 'runs')} {'has' if n == 1 else 'have'} not ended ({of_them})"


def _judged_by(runs: Sequence[RunRecord], metric: str) -> list[RunRecord]:
    return [run for run in runs if run.params.get("objective.metric") == metric]


def _margin_of(run: RunRecord, metric: str) -> float | None:
    own = run.params.get("objective.margin") if run.params.get("objective.metric") == metric else None
    value = run.params.get(f"objective.margins.{metric}") if own is None else own
    return value if isinstance(value, int | float) else None


def _agreed_metric(runs: Sequence[RunRecord], known: Sequence[str]) -> str:
    """Return the objective's metric; where nobody chose one, and no run recorded the default, the only one of *known*.

    Runs have no say that recorded no metric, or not the default. A time or a rate is no metric beside another.
    """
    chosen = [(run, run.params.get("objective.metric")) for run in runs if run.metrics]
    judging = [run for run, name in chosen if name in run.metrics or name not in (None, DEFAULT_METRIC)]
    if not judging:
        own = [name for name in known if not is_duration_or_rate(name)] or known
        if len(own) > 1:
            raise ComparisonError(f"by which metric? {_offered(own)}")
        return own[0]
    values = {run.params.get("objective.metric") for run in judging}
    if len(values) > 1:
        raise ComparisonError(_disagreement(runs, "metric"))
    return str(next(iter(values)))


def _disagreement(runs: Sequence[RunRecord], word: str) -> str:
    values = [show(run.params.get(f"objective.{word}")) for run in runs]
    counts = ", ".join(f"{value} ({values.count(value)} runs)" for value in sorted(set(values)))
    return f"the runs disagree on objective.{word}: {counts}; give one with --{word}"
