"""What questions to the store are answered with, where that is no list of runs: frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hpcml.records import Point, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a statement in SQL gave. Column names are all different."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """Return each row by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One run in a ranking."""

    place: int  # from 1, within its group
    group: Sequence[Any]  # its values under the keys of the ranking
    value: float
    step: int | None  # at which it had that value
    run: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best runs by one metric."""

    metric: str
    goal: Literal["max", "min"]
    at: Literal["last", "best"]  # which value of a run counts: the one it ended with, or its best
    by: Sequence[str]
    ranked: Sequence[Ranked]  # group by group, the group with the best run first
    candidates: int  # runs that had a value
    without: int  # runs that had none, or ended with one that is not finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A metric of several runs."""

    metric: str
    runs: Sequence[RunRecord]
    points: Mapping[str, Sequence[Point]]  # by uid, and there by step; empty where a run has none

    def thinned(self, count: int) -> Curves:
        """Return the same with at most *count* points a run: some of those that are there, the two ends among them."""
        return replace(self, points={uid: _thin(points, count) for uid, points in self.points.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One thing of two runs; None is what a run has not."""

    section: Literal["settings", "environment", "outcome"]
    key: str
    first: Any
    second: Any

    @property
    def differs(self) -> bool:
        """Whether the two are not the same."""
        if self.first != self.first and self.second != self.second:
            return False
        # True == 1 in Python, and yet it is another setting
        return isinstance(self.first, bool) is not isinstance(self.second, bool) or bool(self.first != self.second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Two runs, side by side."""

    first: RunRecord
    second: RunRecord
    contrasts: Sequence[Contrast]  # section by section, only what differs unless all was asked for
    alike: int  # how many things are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Ten seconds of a GPU or a node; None is what was not read of it, or what it has not."""

    t_s: float  # where they begin, on the run's clock
    samples: int
    covered_s: float  # between the sample before the first and the last: what the differences below are those of
    mean_power_w: float | None  # means are over the samples
    energy_j: float | None
    util_percent: float | None
    memory_util_percent: float | None
    sm_active_percent: float | None
    tensor_percent: float | None
    dram_percent: float | None
    sm_mhz: float | None
    max_memory_mb: float | None
    max_temperature_c: float | None
    throttled_power_s: float | None
    throttled_thermal_s: float | None
    cpu_s: float | None  # of the node: of the job on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What one GPU, or one node, did while one attempt of a run was sampled."""

    attempt: int
    node: int
    host: str
    device: str  # gpu0, gpu1 ... in the order of the run's GPUs on the node, or host
    uuid: str | None
    spans: Sequence[Span]  # by time; where nothing was sampled there is none


def _thin(points: Sequence[Point], count: int) -> Sequence[Point]:
    if len(points) <= count:
        return points
    if count == 1:
        return points[-1:]
    return [points[at * (len(points) - 1) // (count - 1)] for at in range(count)]
