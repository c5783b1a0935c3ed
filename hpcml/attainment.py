"""What runs attained of what their devices can do at most, beside what others published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """The runs of one cell in one effective precision, a device's share of their work against its peak.

    Medians over seeds. Step, rate and MFU are of the steady state, what was sampled beside a run is of all of it.
    """

    where: Mapping[str, str]
    precision: str  # effective, as measured
    device: str | None
    devices: int | None
    n: int  # seeds
    step_ms: float | None
    samples_per_s: float | None  # over all devices
    tokens_per_s: float | None
    model_gflops_per_step: float | None  # 10^9 operations, over all devices
    achieved_tflops: float | None  # of one device
    peak_tflops: float | None
    peak_basis: str | None  # data sheet | uncertain | derived
    mfu: float | None
    why_no_mfu: str | None = None
    bandwidth_gbs: float | None  # of the device's memory, at most
    ridge_flop_per_byte: float | None = None  # peak over bandwidth: below it the memory is the lower roof
    util_percent: float | None = None
    sm_active_percent: float | None = None
    tensor_percent: float | None = None
    dram_percent: float | None
    intensity_flop_per_byte: float | None = None  # achieved over the memory's traffic; None where that was not measured
    roof_tflops: float | None = None  # the lower of peak and intensity x bandwidth
    data_share: float | None = None  # of the time from step to step, waiting for input
    communication_share: float | None = None  # of a step
    limits: tuple[str, ...]  # what limits it, as far as the record can tell, the likeliest first
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A figure of somebody else's, never measured by hpcml."""

    workload: str
    device: str
    precision: str  # as its author calls it
    value: float
    unit: str
    source: str
    note: str | None = None  # what is wrong or doubtful about it, too
    architecture: str | None = None  # of gpus.toml; None: no GPU, or not told which
    devices: int = 1
    size: int | None = None  # of a square matrix
    seconds: float | None = None
    operations: str | None = None  # 2N^3 | 2N^3/3: what the rate was computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """The answer to the question how much of the machine was used."""

    n_runs: int
    attained: tuple[Attained, ...]
    published: tuple[Published, ...]
    remarks: tuple[str, ...] = ()
