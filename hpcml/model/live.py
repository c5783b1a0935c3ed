"""The current state of runs and machines, for `hpcml top` and the live page: the newest metrics and telemetry.

Names of values and their units are those of docs/telemetry.md. A field that is None was not reported, or not yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcml.model.records import Point
from hpcml.model.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The newest value of a metric, and its step."""

    value: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNow:
    """The newest readings of one GPU, or MIG instance, of a node.

    The sampler reads some values less often than others: each in `values` is the newest there is, which may be older
    than `sampled_at`.
    """

    gpu: str  # gpu0, gpu1 ...: in the order of the run's GPUs on that node
    uuid: str | None
    model: str | None
    scope: str | None  # whose its power and energy are: gpu | board | shared
    values: Mapping[str, float]  # util_percent, power_w, memory_mb ...
    memory_total_mb: float | None
    power_limit_w: float | None
    max_sm_mhz: float | None
    throttled: Sequence[str]  # reasons for which clocks were lowered between the two newest samples, or in the newest
    energy_j: float | None  # since sampling began
    xids: Sequence[int]  # Xid errors seen so far
    lost: str | None  # why the GPU no longer answers
    sampled_at: float | None  # unix seconds, by its node's clock
    util_percent: Sequence[Point] = ()  # the last samples; the times of these and all points here are unix seconds
    power_w: Sequence[Point] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """The newest readings of one node of a run.

    `node` is its number in the job, from 0; `missed_ticks` counts samples that were skipped because the ones before
    took too long.
    """

    node: int
    host: str
    gpus: Sequence[GpuNow]
    cores_busy: float | None  # CPU seconds a second: of the job
    memory_mb: float | None
    load1: float | None
    sampled_at: float | None  # unix seconds, by the node's clock
    interval_s: float | None
    missed_ticks: int
    ended: str | None  # why there are no more samples
    doubt: str | None  # why the GPUs are not known to be the run's, or why there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """One run at this moment; `state` is what its journals say, since no scheduler was asked.

    Step, pace and curves are those of the latest attempt. `metrics` may hold values of an earlier one, where the latest
    has not reported them yet.
    """

    uid: str
    experiment: str
    name: str | None
    state: State
    is_settled: bool
    attempt: int
    reason: str | None
    job: str | None  # as its scheduler calls it
    started_at: float | None  # unix seconds: of the latest attempt
    ended_at: float | None
    step: int | None = None
    steps: int | None = None  # in all; None where the program did not say
    steps_per_s: float | None = None  # over the last minute that was reported
    left_s: float | None = None  # estimated time to the last step
    objective: str | None = None  # the metric that matters most
    metrics: Mapping[str, Latest] = field(default_factory=dict)
    metrics_at: float | None = None  # unix seconds
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)  # the newest points by metric
    nodes: Sequence[NodeNow] = ()
    notes: Sequence[str] = ()  # what is missing here, and why

    @property
    def gpus(self) -> list[GpuNow]:
        """The GPUs of all nodes, in the order of the nodes."""
        return [gpu for node in self.nodes for gpu in node.gpus]
