"""What a scaling study says: how speed, cost and energy follow the number of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpcml.comparison import Discrepancy, Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """The runs on one number of devices; the unit of all statistics is the seed."""

    devices: int  # GPUs, nodes or threads, as the study counts
    n: int  # seeds with a steady state
    n_failed: int
    batch_size: int | None  # global
    step_ms: float | None  # median over seeds
    samples_per_s: float | None  # over all devices
    speedup: float | None  # against the smallest number of devices; strong: time, weak: samples per second
    speedup_ci95: Interval | None
    efficiency: float | None  # speed-up over the ratio of the devices
    efficiency_ci95: Interval | None
    cost: float | None  # device-hours for 10^6 samples, against the smallest number of devices; below 1 is cheaper
    gpu_hours: float | None  # of whole runs, median
    energy_kj: float | None  # of whole runs, median
    energy_per_sample_j: float | None
    communication_share: float | None  # of a step's time
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialShare:
    """The share of the work that does not divide, fitted: Amdahl's law for strong scaling, Gustafson's for weak."""

    law: Literal["Amdahl", "Gustafson"]
    share: float
    ci95: Interval | None  # None below three numbers of devices
    most_speedup: float | None  # 1 / share, Amdahl's limit; None for Gustafson's law and a share of 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCell:
    """Runs alike in all but the number of devices (and, in weak scaling, the batch that grows with it)."""

    kind: Literal["strong", "weak"]
    over: str  # GPUs | nodes | CPU threads
    where: Mapping[str, str]
    device: str | None
    points: tuple[ScalingPoint, ...]  # by number of devices
    fit: SerialShare | None
    no_help_beyond: int | None  # the number of devices after which more do not help, by the intervals; None: not shown
    sentences: tuple[str, ...]  # the conclusion, plainly
    remarks: tuple[str, ...] = ()
    confounders: tuple[Discrepancy, ...] = ()
    notes: tuple[Discrepancy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The answer to the question how many devices are worth it."""

    over: str
    n_runs: int
    cells: tuple[ScalingCell, ...] = ()
    pays_from: tuple[str, ...] = ()  # over cells: the smallest model or batch at which n devices pay, as sentences
