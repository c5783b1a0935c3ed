"""What is said of runs before they are made: how many seeds a verdict needs, how long a sweep will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcml.comparison import Interval

WantedVerdict = Literal["equivalent", "non-inferior"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How much a metric varies, and how well that is known from the runs at hand."""

    sd: float  # unpaired: of one arm, over seeds; paired: of the differences, over pairs
    df: int
    low: float  # with 80 % confidence the true one is not below it
    high: float  # nor, with 80 % confidence, above it
    rho: float | None = None  # of the pairs; None unpaired, or where it cannot be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Seeds in each arm that a verdict needs, one way of running them; None: more than are ever tried."""

    paired: bool
    spread: Spread
    seeds: int | None
    seeds_low: int | None  # if the spread is as small as it may be
    seeds_high: int | None  # if it is as large as it may be
    table: Sequence[tuple[float, Sequence[float]]]  # margin, power with each of PowerPlan.columns
    smallest: Sequence[float | None]  # margin that each of PowerPlan.columns would show with the power asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCell:
    """Runs that are alike in all but the factor and the seed."""

    where: Mapping[str, str]
    margin: float
    margin_source: Literal["config", "command line"]
    seeds: Mapping[str, int]  # by level: how many there are
    designs: Sequence[Design]  # paired first, where it is possible
    remarks: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPlan:
    """How many seeds a verdict at a margin needs, from the spread of the runs at hand."""

    by: str
    metric: str
    verdict: WantedVerdict
    power: float
    comparisons: int  # that share the risk of 5 %
    columns: Sequence[int]
    cells: Sequence[PowerCell]
    unusable: Sequence[str] = ()  # cells whose spread cannot be told, a line each


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A run that may be submitted, as far as its duration may depend on it."""

    name: str  # the words that make it
    seed: int
    params: Mapping[str, Any]  # the whole spec, flat
    numerics: str
    device: str  # cpu | cuda
    device_model: str | None  # None: not known before it runs
    gpus: int  # over all nodes
    charged_gpus: int  # whole nodes, where the site gives out no less
    nodes: int
    walltime_s: int | None
    stop_after_s: int | None  # what the program has of it
    warn_after_s: int | None  # when it is asked to leave a checkpoint
    margin_s: int = 0  # between the two: kept, so that the end is written down
    limit_s: int | None = None  # the longest walltime that its queue and site allow
    whole_nodes: bool = False
    co2_g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What recorded runs say of one that is wanted."""

    wanted: Wanted
    basis: Literal["alike", "near", "none"]  # near: they differ in `differing`, and give a range without a confidence
    uids: Sequence[str] = ()  # of the recorded runs, the newest first
    differing: Sequence[str] = ()  # key=wanted, recorded: values
    wall_s: float | None = None  # None: nothing recorded, or nothing alike
    interval: Interval | None = None  # where the next run lies; None: too few runs to say
    range_s: tuple[float, float] | None = None  # near: from the shortest to the longest that they allow
    start_s: float | None = None  # of it before and after the steps, whose number does not matter
    energy_j: float | None = None  # of the GPUs' boards
    suggested_s: int | None = None  # a walltime to ask for
    remarks: Sequence[str] = ()

    @property
    def low_s(self) -> float | None:
        """The least that is to be expected."""
        return self._bound(0)

    @property
    def high_s(self) -> float | None:
        """The most that is to be expected."""
        return self._bound(1)

    def _bound(self, end: Literal[0, 1]) -> float | None:
        if self.range_s is not None:
            return self.range_s[end]
        if self.interval is not None:
            return (self.interval.low, self.interval.high)[end]
        return self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All runs of a sweep together; `low` and `high` are as if all were off in the same way. Without the unknown."""

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
    """How long a sweep will take, by what was recorded."""

    forecasts: Sequence[Forecast]
    total: Total
    longest: Forecast | None
    log_sd: float | None  # of durations of runs that are alike, pooled; None: no two runs are
    df: int
