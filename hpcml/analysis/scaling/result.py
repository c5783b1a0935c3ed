"""The result of `hpcml scaling`: how speed, cost and energy change with the number of devices.

A `Scaling` has a `ScalingCell` for each group of runs that differ only in the number of devices (in weak scaling, in
the batch size too), with one `ScalingPoint` for each number. docs/scaling.md has the methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpcml.analysis.compare.result import Discrepancy, Excluded, Interval, Unit
from hpcml.analysis.flags import Flag

Kind = Literal["strong", "weak"]  # one global batch for all; a batch that grows with the devices


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """The runs on one number of devices; the unit of medians is the seed, that of speed-ups is in `speedup_unit`.

    Speed-up and efficiency are relative to the reference of the cell: the efficiency of perfect scaling is 1.
    """

    devices: int  # GPUs, nodes, processes or threads, as the study counts
    n: int  # seeds with a steady state
    n_failed: int  # runs that ended without success: in the table, since that is a result, too
    n_unfinished: int = 0
    batch_size: int | None  # global
    step_ms: float | None  # median over seeds
    samples_per_s: float | None  # over all devices
    speedup: float | None  # against the reference; strong: time, weak: samples per second
    speedup_ci95: Interval | None
    speedup_unit: Unit | None = None  # of the interval
    paired: bool | None = None  # by seed; None: the reference itself, or no speed-up
    efficiency: float | None  # speed-up over the ratio of the devices
    efficiency_ci95: Interval | None
    gain: float | None = None  # samples per second over those of the next smaller number of devices with a speed
    gain_ci95: Interval | None = None
    cost: float | None  # device-hours for a sample, against the reference; below 1 is cheaper
    gpu_hours: float | None  # of whole runs, median
    energy_kj: float | None  # of whole runs, median
    energy_per_sample_j: float | None
    communication_share: float | None  # of a step's time
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialShare:
    """The share of the work that cannot be divided, fitted to the points of a cell.

    Amdahl's law for strong scaling (S = 1 / (s + (1 - s) / n)), Gustafson's for weak scaling (S = s + (1 - s) n), with
    n devices relative to the reference and s the `share`.
    """

    law: Literal["Amdahl", "Gustafson"]
    share: float  # of the time on the reference (Amdahl), of a step's time (Gustafson); below 0: better than linear
    ci95: Interval | None  # None below three numbers of devices, and where too few seeds tell
    most_speedup: float | None  # 1 / share, Amdahl's limit; None for Gustafson's law and a share that is not positive
    misfit: float = 0.0  # the most by which a measured time leaves the law, relative; large: the law says nothing here
    noise: float = 0.0  # the largest standard error of a slow-down, relative: what it may leave the law by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCell:
    """Runs that differ only in the number of devices (and, in weak scaling, in the batch that grows with it)."""

    kind: Kind
    over: str  # GPUs | nodes | processes | CPU threads
    where: Mapping[str, str]
    device: str | None
    points: tuple[ScalingPoint, ...]  # by number of devices
    reference: int | None = None  # the number of devices that speed-ups are against; None: none has a speed
    fit: SerialShare | None
    no_help_beyond: int | None  # the number of devices after which more do not help, by the intervals; None: not shown
    sentences: tuple[str, ...]  # the conclusion, plainly
    flops_per_sample: float | None = None  # of the model, as its programs counted it: how large it is
    steady_from_step: int | None = None
    steady_to_step: int | None = None
    flags: tuple[Flag, ...] = ()
    confounders: tuple[Discrepancy, ...] = ()
    notes: tuple[Discrepancy, ...] = ()
    excluded: tuple[Excluded, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """Cells that differ in one size alone, that of the batch or of the model, from the smallest on."""

    kind: Kind
    size: str  # batch size | batch size a device | model
    apart: str  # the settings that tell this row from others, in words; "" for a single one
    names: tuple[str, ...]  # of the sizes
    cells: tuple[int, ...]  # the places of their cells in `Scaling.cells`


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The whole result of one `hpcml scaling`."""

    over: str
    n_runs: int
    least_gain: float = 0.05  # more devices that gain less than this do not help
    least_efficiency: float = 0.5  # devices that are used worse than this do not pay
    cells: tuple[ScalingCell, ...] = ()
    pays_from: tuple[str, ...] = ()  # over cells: the smallest model or batch at which n devices pay, as sentences
    flags: tuple[Flag, ...] = ()
    sizes: tuple[SizeRow, ...] = ()  # that `pays_from` looks at
