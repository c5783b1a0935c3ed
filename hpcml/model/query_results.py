"""Answers of the experiment store that are not simply lists of runs: curves, timelines, rows of SQL.

hpcml/store/queries makes them for `hpcml show --curve`, `query` and the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcml.model.records import Point, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRows:
    """The result of a SQL statement; column names are all different."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """Return one dict per row, by column name.

        >>> SqlRows(columns=["uid", "seed"], rows=[["a", 0], ["b", 1]]).records()
        [{'uid': 'a', 'seed': 0}, {'uid': 'b', 'seed': 1}]
        """
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of one metric over several runs."""

    metric: str
    runs: Sequence[RunRecord]
    points: Mapping[str, Sequence[Point]]  # by uid, and there by step; empty where a run has none

    def thinned(self, count: int) -> Curves:
        """Return the same with at most *count* points per run, evenly chosen among the recorded ones.

        The first and the last point are kept.
        """
        return replace(self, points={uid: _thin(points, count) for uid, points in self.points.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySpan:
    """About ten seconds of telemetry of one GPU or node; a value is None where it was not measured, or does not exist.

    A span begins with the sample that the one before ended with. Energy and CPU time are those of the seconds beside
    them, in which alone they are known: rates are made of the two.
    """

    t_s: float  # where it begins, on the run's clock
    samples: int
    covered_s: float  # how long it is
    mean_power_w: float | None  # means are over the samples
    energy_j: float | None
    energy_covered_s: float | None
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
    cpu_covered_s: float | None

    @property
    def end_s(self) -> float:
        """Where it ends, on the run's clock."""
        return self.t_s + self.covered_s

    @property
    def cores_busy(self) -> float | None:
        """How many cores of the node the job kept busy, on average."""
        return self.cpu_s / self.cpu_covered_s if self.cpu_s is not None and self.cpu_covered_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The telemetry of one GPU, or of one node, during one attempt of a run."""

    attempt: int
    node: int
    host: str
    device: str  # gpu0, gpu1 ... in the order of the run's GPUs on the node, or host
    uuid: str | None
    spans: Sequence[TelemetrySpan]  # by time, from the first sample to the last

    @property
    def cores_busy(self) -> float | None:
        """How many cores of the node the job kept busy, on average over the time for which that is known."""
        known_s = sum(span.cpu_covered_s or 0.0 for span in self.spans)
        return sum(span.cpu_s or 0.0 for span in self.spans) / known_s if known_s else None


def _thin(points: Sequence[Point], count: int) -> Sequence[Point]:
    if len(points) <= count:
        return points
    if count == 1:
        return points[-1:]
    return [points[at * (len(points) - 1) // (count - 1)] for at in range(count)]
