"""What runs attained of what their devices can do at most, beside what others published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """The runs of one cell in one effective precision, a device's share of their work against its peak."""

    where: Mapping[str, str]
    precision: str  # effective, as measured
    device: str | None
    devices: int | None
    n: int  # seeds
    step_ms: float | None
    samples_per_s: float | None  # over all devices
    tokens_per_s: float | None
    model_gflops_per_step: float | None  # over all devices
    achieved_tflops: float | None  # of one device
    peak_tflops: float | None
    peak_basis: str | None  # data sheet | uncertain | derived
    mfu: float | None
    bandwidth_gbs: float | None  # of the device's memory, at most
    dram_percent: float | None
    limits: tuple[str, ...]  # what limits it, as far as the record can tell, the likeliest first
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A figure of somebody else's, never measured by hpcml."""

    workload: str
    device: str
    precision: str
    value: float
    unit: str
    source: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """The answer to the question how much of the machine was used."""

    n_runs: int
    attained: tuple[Attained, ...]
    published: tuple[Published, ...]
    remarks: tuple[str, ...] = ()
