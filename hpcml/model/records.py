"""Recorded runs as values: what the experiment store returns and what all analyses and reports are made from.

`RunRecord` is one run with the summaries of its metrics (`MetricSummary`), what it used (`Usage`) and what it computed
(`Work`). A measured value that is not known is None, never 0 or nan. hpcml/store/queries makes these from the database.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

from hpcml.errors import require
from hpcml.model.state import State

_LONGEST_TAG = 200  # it is a word in a list of words


def is_tag(tag: str) -> bool:
    """Tell whether *tag* is one: neither empty nor long, printable, and without blanks at its ends."""
    return 0 < len(tag) <= _LONGEST_TAG and tag.isprintable() and tag == tag.strip()


def check_tag(tag: str) -> None:
    """Raise `ConfigError` unless *tag* `is_tag`."""
    require(
        is_tag(tag),
        f"{tag[:40]!r} is no tag: give {_LONGEST_TAG} printable characters at most, no blanks at its ends",
    )


def spell_job(job_id: str, array_index: int | None = None) -> str:
    """Return the id of a job, or of an element of an array, as its scheduler prints and takes it.

    >>> spell_job("4711", 3), spell_job("13[].pbs01", 197), spell_job("13.pbs01")
    ('4711_3', '13[197].pbs01', '13.pbs01')
    """
    if array_index is None:
        return job_id
    return job_id.replace("[]", f"[{array_index}]") if "[]" in job_id else f"{job_id}_{array_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """What a scheduler counted of a job that has ended; None: it does not tell."""

    wall_s: float | None = None  # from its start to its end
    cpu_s: float | None = None  # of all its processes
    max_memory_mb: float | None = None  # MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The state of a job as the scheduler reports it, translated into hpcml's states and in its own words (`raw`)."""

    state: State
    raw: str  # the scheduler's own word for the state
    exit_code: str | None = None  # as it writes it: Slurm's 0:15, PBS's Exit_status
    reason: str | None = None  # why it waits or ended
    expected_start: str | None = None  # ISO 8601, local time of the scheduler
    is_live: bool = True  # from the queue; False: from the accounting database, which is late by seconds or more
    never_began: bool = False  # follows from what the scheduler does not say of it, and may be of a job that just began
    was_killed: bool = False  # its script, by SIGKILL
    is_ending: bool = False  # its script has ended, and the scheduler cleans up, which a site's epilog draws out
    is_stuck: bool = False  # it waits for what does not pass by itself, and `reason` says for what
    used: JobUsage | None = None  # of a job that has ended


@dataclass(slots=True)  # neither frozen nor by keyword alone: that takes most of the time, and each run has some
class MetricSummary:
    """One metric's curve in a few numbers, over its finite values; a number is None where no value is finite.

    `n` counts all recorded values, `n_nonfinite` those of them that are nan or infinite. Of these, `n_unmeasured` stand
    for nothing but that there is no value, as nan between two validations does; the last value is one before such.
    Only who loads it from the store fills it in piece by piece; it is nobody else's to change.
    """

    name: str
    n: int
    n_nonfinite: int
    first: float | None
    last: float | None  # the value at `last_step`, the last where one was measured; None where that one is not finite
    last_step: int | None
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None
    mean: float | None
    n_unmeasured: int = 0

    @property
    def last_or_nan(self) -> float | None:
        """The last value, nan where it is known not to be finite; None where there is none."""
        return math.nan if self.last is None and self.n_nonfinite else self.last


class Point(NamedTuple):
    """One value of a metric at a step, `t_s` seconds after the run's start.

    `value` is nan or infinite where the workload reported such a value. After a restart from a checkpoint steps may
    repeat.
    """

    step: int
    t_s: float  # since the run's start
    value: float


class Curve(Sequence[Point]):
    """The points of one metric of one run by step, in columns: a fifth of the memory of as many `Point`s.

    >>> curve = Curve([1, 2], [0.5, 1.0], [0.9, 0.8])
    >>> curve[-1], [point.step for point in curve]
    (Point(step=2, t_s=1.0, value=0.8), [1, 2])
    """

    __slots__ = ("steps", "times_s", "values")

    def __init__(self, steps: Iterable[int] = (), times_s: Iterable[float] = (), values: Iterable[float] = ()) -> None:
        """Make the curve of these columns; arrays are kept as they are, and nobody may change them."""
        self.steps = _as_column("q", steps)  # ascending, each once
        self.times_s = _as_column("d", times_s)
        self.values = _as_column("d", values)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Point]:
        return map(Point, self.steps, self.times_s, self.values)

    @overload
    def __getitem__(self, at: int) -> Point: ...
    @overload
    def __getitem__(self, at: slice) -> list[Point]: ...
    def __getitem__(self, at: int | slice) -> Point | list[Point]:
        if isinstance(at, slice):
            return list(map(Point, self.steps[at], self.times_s[at], self.values[at]))
        return Point(self.steps[at], self.times_s[at], self.values[at])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it could be changed

    def __repr__(self) -> str:
        return f"Curve({list(self)!r})"


def _as_column(typecode: str, values: Iterable[Any]) -> array[Any]:
    return values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note that a user attached to a run with `hpcml tag --note`."""

    at: float  # unix seconds
    author: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Energy, power, utilization and memory of a run, measured by the sampler over all nodes and all counted attempts.

    Shares lie between 0 and 1, percentages between 0 and 100. Shares and means are over all GPUs and the sampled time;
    a field is None where no device gave the value. docs/telemetry.md defines each.
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
    xids: str | None = None  # NVIDIA's Xid errors, seen while sampling
    incomplete: str | None = None  # what these numbers do not cover, in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one optimiser step of a run computes, over all devices, as its program counted it; None: not reported."""

    devices: int | None = None
    model_flops: float | None = None  # forward and backward of the model, a fused multiply-add is two; no recomputation
    flops_doubt: str | None = None  # which operations the count leaves out
    samples: float | None = None
    tokens: float | None = None
    peak_allocated_mb: float | None = None  # of the framework's allocator, on the fullest device
    peak_reserved_mb: float | None = None


@dataclass(slots=True)  # neither frozen nor by keyword alone: that takes most of the time
class RunRecord:
    """One run in the experiment store, as it was when it was read; nobody may change it.

    Fields for measured values are None until the value is known; `t_start` and `t_end` are unix seconds, None for a run
    that has not started or not ended.
    """

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
    job_name: str | None  # what the job is called in the queue: tells it from another with a recycled id
    is_shared: bool  # its job runs other runs too: cancelling the job would end them
    submission: str | None  # the runs that were submitted together have the same
    is_settled: bool  # False: ended by a signal from outside, and the scheduler has not said why
    cause: str | None  # why it ended without success: a value of failure_causes.Cause
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
    job_cluster: str | None = (
        None  # Slurm: which of the site's clusters has the job; empty: the submitting machine's own
    )
    bad_lines: int = 0  # lines of its journals that could not be read
    lost_records: int = 0  # journal records that were never written, or are in such a line
    tags: Sequence[str] = ()
    notes: Sequence[Note] = ()  # by time
    # the whole spec, flat: "model.name" -> "mnist_cnn"; too long to be shown
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    facts: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # where it ran and with what: hostname, gpu_model, torch ...
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    usage: Usage | None = None  # None: the sampler measured nothing
    work: Work | None = None  # None: the program reported none

    @property
    def incomplete(self) -> str | None:
        """Why its recorded values may be too few, or not the last ones, in one line; None where nothing says so."""
        told = self.reason if self.state is State.COMPLETED else None
        return told or missing_records(lost_records=self.lost_records, bad_lines=self.bad_lines)


def missing_records(*, lost_records: int, bad_lines: int) -> str | None:
    """Return in one line what is missing of the journals of a run; None where nothing is."""
    if not (lost_records or bad_lines):
        return None
    return f"{lost_records} records were lost, {bad_lines} lines are unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """One event of a run's journal.

    `t_s` is in seconds since the run's start; `writer` is the process that wrote it, such as agent.
    """

    t_s: float
    writer: str
    attempt: int
    name: str
    details: Mapping[str, Any]
