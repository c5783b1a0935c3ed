"""Predictions before runs are made: how many seeds a verdict needs, and how long a sweep will take.

`PowerPlan` is the power analysis of `hpcml plan`: from the spread of recorded runs it follows how many seeds each arm
needs. `Estimate` is the forecast of `hpcml plan --time`: time, energy and cost, from recorded runs that are alike.
docs/planning.md has the methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcml.analysis.compare.result import Interval
from hpcml.analysis.flags import Flag
from hpcml.model.asked_used import AskedUsed

WantedVerdict = Literal["equivalent", "non-inferior"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The standard deviation of a metric, and an interval for it from the runs at hand."""

    sd: float  # unpaired: of one arm, over seeds; paired: of the differences, over pairs
    df: float  # less than counted where differences share a reference: they are no independent witnesses
    low: float  # with 80 % confidence the true one is not below it
    high: float  # nor, with 80 % confidence, above it


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The number of seeds per arm that a verdict needs, for one way of comparing (paired by seed, or unpaired).

    `seeds` is None where more would be needed than the search tries.
    """

    paired: bool
    spread: Spread
    seeds: int | None
    seeds_low: int | None  # if the spread is as small as it may be
    seeds_high: int | None  # if it is as large as it may be
    table: Sequence[tuple[float, Sequence[float]]]  # margin, power with each of PowerPlan.columns
    to_launch: int | None = None  # that `seeds` of them count on average, if as large a share is lost again


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCell:
    """The power analysis of runs that differ only in the factor and the seed."""

    where: Mapping[str, str]
    margin: float
    margin_source: Literal["config", "command line"]
    seeds: Mapping[str, int]  # by level: how many there are
    designs: Sequence[Design]  # paired first, where it is possible
    flags: Sequence[Flag] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPlan:
    """How many seeds a verdict at a given margin needs, cell by cell."""

    by: str
    metric: str
    verdict: WantedVerdict
    power: float
    comparisons: int  # that share the risk of 5 %
    columns: Sequence[int]
    cells: Sequence[PowerCell]
    unusable: Sequence[str] = ()  # cells whose spread cannot be estimated, a line each


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A run that may be submitted, reduced to what its duration may depend on."""

    name: str  # the overrides that make it
    seed: int
    params: Mapping[str, Any]  # the whole spec, flat
    numerics: str
    device: str  # cpu | cuda
    device_model: str | None  # None: not known before it runs
    gpus: int  # over all nodes
    charged_gpus: int  # GPUs of whole nodes, where the site allocates only those
    nodes: int
    walltime_s: int | None
    stop_after_s: int | None  # the part of the walltime that the program may use
    warn_after_s: int | None  # when the program is asked to write a checkpoint
    margin_s: int = 0  # between the two: kept, so that the end is written down
    limit_s: int | None = None  # the longest walltime that its queue and site allow
    whole_nodes: bool = False
    co2_g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The duration and energy that recorded runs predict for one wanted run.

    With the basis "alike" the recorded runs have the same settings and give an interval; with "near" they differ in the
    settings of `differing` and give only a range, without a confidence; with "none" there is no prediction.
    """

    wanted: Wanted
    basis: Literal["alike", "near", "none"]  # near: they differ in `differing`, and give a range without a confidence
    uids: Sequence[str] = ()  # of the recorded runs, the newest first
    differing: Sequence[str] = ()  # key=wanted, recorded: values
    wall_s: float | None = None  # None: nothing recorded, or nothing alike
    interval: Interval | None = None  # where the next run lies; None: too few runs to say
    range_s: tuple[float, float] | None = None  # near: from the shortest to the longest that they allow
    start_s: float | None = None  # the part of `wall_s` before and after the training steps
    energy_j: float | None = None  # of the GPUs' boards, over all nodes
    suggested_s: int | None = None  # a walltime to ask for
    asked: Sequence[AskedUsed] = ()  # what it asks for, against what runs alike used
    remarks: Sequence[str] = ()  # what weakens it, a line each

    @property
    def low_s(self) -> float | None:
        """The lower bound of the duration in seconds; None where there is no prediction."""
        return self._bound(0)

    @property
    def high_s(self) -> float | None:
        """The upper bound of the duration in seconds; None where there is no prediction."""
        return self._bound(1)

    def _bound(self, end: Literal[0, 1]) -> float | None:
        if self.range_s is not None:
            return self.range_s[end]
        if self.interval is not None:
            return (self.interval.low, self.interval.high)[end]
        return self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The sums over all runs of a sweep; runs without a forecast are only counted, in `unknown`.

    `low_s` and `high_s` assume that all forecasts are off in the same direction.
    """

    known: int
    unknown: int
    wall_s: float  # one after the other
    low_s: float
    high_s: float
    gpu_hours: float
    gpu_hours_low: float
    gpu_hours_high: float
    node_hours: float | None  # None where no site charges whole nodes
    energy_j: float | None  # None unless that of every run is known
    co2_g: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The forecast for a whole sweep."""

    forecasts: Sequence[Forecast]
    total: Total
    longest: Forecast | None
    log_sd: float | None  # of durations of runs that are alike, pooled; None: no two runs are
    df: int
