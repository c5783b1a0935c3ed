"""The result of `hpcml peak`: what share of their devices' peak performance the runs attained.

`Attainment` holds one `Attained` for each cell and precision, and figures that others published, for comparison
(`Published`). hpcml/analysis computes it; docs/peak.md has the formulas of MFU and of the roofline model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcml.analysis.flags import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """The runs of one cell in one measured precision: their rate of work against the peak of the device.

    Medians over seeds. Step time, rates and MFU are of the steady state; what the sampler measured is of the whole run.
    MFU and shares lie between 0 and 1, percentages between 0 and 100.
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
    peak_basis: str | None  # data sheet | uncertain | derived; of a CPU: given | measured by model=gemm
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
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A figure that somebody else published; hpcml never measured it."""

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
    """The whole result of one `hpcml peak`."""

    n_runs: int
    attained: tuple[Attained, ...]
    published: tuple[Published, ...]
    flags: tuple[Flag, ...] = ()
