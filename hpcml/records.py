"""What the store hands out: runs with their summaries and curves, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcml.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a scheduler says of a job."""

    state: State
    raw: str  # its own word
    exit_code: str | None = None  # as it writes it: Slurm's 0:15, PBS's Exit_status
    reason: str | None = None  # why it waits or ended
    expected_start: str | None = None  # ISO 8601, local time of the scheduler
    is_live: bool = True  # said by the queue itself; False: by the accounting, which is late by seconds or more


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """One curve in a few numbers, over the finite values; None where there is none."""

    name: str
    n: int
    n_nonfinite: int
    first: float | None
    last: float | None  # the value at `last_step`; None where that one is not finite
    last_step: int | None
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None
    mean: float | None


class Point(NamedTuple):
    """One value of a curve; `value` is nan or infinite where the workload said so."""

    step: int
    t_s: float  # since the run's start
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What somebody noted of a run."""

    at: float  # unix seconds
    author: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run drew and how hard its devices worked: measured beside it, over all nodes and counted attempts.

    Shares and means are over all GPUs and the time that was sampled; None is what no device gave.
    """

    gpus: int = 0  # boards or MIG instances, over all nodes
    gpu_s: float | None = None  # GPUs x seconds that the program had them
    energy_j: float | None = None  # of the GPUs' boards; None unless that of each is known for the whole time
    energy_method: str | None = None  # counter | integral | counter+integral | mixed
    energy_scope: str | None = None  # gpu | board | shared: the worst of all
    energy_uncertainty_j: float | None = None  # of sampling alone
    energy_disagrees: bool = False  # counter and integral, by more than 5 %
    energy_reason: str | None = None  # why there is none, or why it is doubtful
    mean_power_w: float | None = None  # of one GPU
    max_power_w: float | None = None
    power_limit_w: float | None = None  # the lowest of all GPUs
    throttled_power_share: float | None = None  # of the time: clocks lowered by the power cap
    throttled_thermal_share: float | None = None
    sm_mhz: float | None = None  # median
    util_percent: float | None = None
    memory_util_percent: float | None = None
    sm_active_percent: float | None = None  # Hopper and newer, as are the next two
    tensor_percent: float | None = None
    dram_percent: float | None = None
    max_memory_mb: float | None = None  # in use on the fullest GPU, by all processes
    max_temperature_c: float | None = None
    cpu_s: float | None = None  # of the job, over all nodes
    max_host_memory_mb: float | None = None  # of the fullest node
    co2_g: float | None = None  # of `energy_j` alone, by the factor of the run's own configuration
    co2_source: str | None = None  # the factor, who says so, and for which year
    xids: str | None = None
    incomplete: str | None = None  # what is missing of these numbers, in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one optimiser step of a run does, as its program counted it; over all devices."""

    devices: int | None = None
    model_flops: float | None = None  # forward and backward of the model, a fused multiply-add is two; no recomputation
    flops_doubt: str | None = None  # what the count cannot see
    samples: float | None = None
    tokens: float | None = None
    peak_allocated_mb: float | None = None  # of the framework's allocator, on the fullest device
    peak_reserved_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run as the store knows it. Everything measured is None until it is."""

    uid: str
    path: str
    experiment: str
    name: str | None
    spec_hash: str
    state: State
    reason: str | None  # why it ended so, in one line
    exit_code: int | None
    attempt: int
    scheduler: str
    job_id: str | None
    array_index: int | None
    job_name: str | None = None  # what the job is called in the queue: tells it from another with a recycled id
    is_shared: bool = False  # its job runs others too: to end the job would end them
    submission: str | None = None  # the runs that were submitted together have the same
    is_settled: bool = True  # False: ended by a signal from outside, and the scheduler has not said why
    cause: str | None = None  # of an end that is no success: a word of causes.Cause
    submitted_at: str | None
    t_start: float | None  # unix seconds
    t_end: float | None
    wall_s: float | None
    seed: int
    precision: str  # requested
    precision_effective: str | None  # measured by the workload's probe; None: not proven
    numerics: str  # native | emulated: as reported, else as planned; unproven: a user's program that reported none
    git_commit: str | None
    git_dirty: bool | None
    bad_lines: int = 0  # of its journals, which could not be read
    lost_records: int = 0  # that were written down nowhere, or in such a line
    tags: Sequence[str] = ()
    notes: Sequence[Note] = ()  # by time
    params: Mapping[str, Any] = field(default_factory=dict)  # the whole spec, flat: "model.name" -> "mnist_cnn"
    facts: Mapping[str, Any] = field(default_factory=dict)  # where it ran and with what: hostname, gpu_model, torch ...
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    usage: Usage | None = None  # None: nothing was measured beside it
    work: Work | None = None  # None: its program did not say


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """One event of a run, on the run's own clock."""

    t_s: float
    writer: str
    attempt: int
    name: str
    details: Mapping[str, Any]
