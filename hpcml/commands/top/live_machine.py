"""The GPUs and load of one node, from its sampler's records or measured here, for ``hpcml top``."""

from __future__ import annotations

import math
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hpcml.agent.nvml.inventory import shown_gpus
from hpcml.agent.nvml.session import attempt, started
from hpcml.agent.telemetry.gpus import FoundGpus
from hpcml.agent.telemetry.host import MachineReader
from hpcml.agent.telemetry.node import NodeReader
from hpcml.model.live import GpuNow, NodeNow
from hpcml.model.records import Point
from hpcml.model.running_total import TotalReading, growth_between
from hpcml.runs.journal import Event, Metrics

_KEPT = 120  # samples of a curve
_RATE_S = 0.9  # what CPU time is averaged over at least: ticks of 10 ms that lie close together tell no rate
_COUNTED, _SAMPLED = "throttle_", "throttled_"
_OF_FIELDS = ("energy_j", "power_w")  # come with the counters: a sample with one of them is news of throttling


@dataclass(slots=True)
class _Gpu:
    """The newest values of one GPU, the first ones (for differences of counters), and two short curves."""

    about: Mapping[str, Any] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    xids: list[int] = field(default_factory=list)
    lost: str | None = None
    sampled_at: float | None = None  # unix seconds
    util: deque[Point] = field(default_factory=lambda: deque(maxlen=_KEPT))
    power: deque[Point] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def take(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Take the values of one sample; *at* is unix seconds.

        A reason for throttling holds if its counter has risen since the sample before, or if it is set in this one.
        """
        rose = [
            name.removeprefix(_COUNTED).removesuffix("_s")
            for name, value in values.items()
            if name.startswith(_COUNTED) and value > self.values.get(name, value)
        ]
        holds = [
            name.removeprefix(_SAMPLED).removesuffix("_percent")
            for name, value in values.items()
            if name.startswith(_SAMPLED) and value > 0
        ]
        if rose or holds or any(name in values for name in _OF_FIELDS):
            self.throttled = tuple(sorted({*rose, *holds}))
        self.values |= values
        self.first = {**values, **self.first}
        self.sampled_at = at
        for curve, name in ((self.util, "util_percent"), (self.power, "power_w")):
            if name in values:
                curve.append(Point(step, at, values[name]))

    def energy_j(self) -> float | None:
        """Return the energy since sampling began: by the counter, or the integral where that fell or is not there."""
        for name in ("energy_j", "power_integral_j"):
            if name in self.values and self.values[name] >= self.first[name]:
                return self.values[name] - self.first[name]
        return None


@dataclass(slots=True)
class Sampled:
    """The state of one node, built from the records of its sampler; *t0* is the unix time of their second 0."""

    node: int
    host: str
    t0: float
    attempt: int = 0
    ended: str | None = None
    _about: Mapping[str, Any] = field(default_factory=dict)
    _gpus: defaultdict[str, _Gpu] = field(default_factory=lambda: defaultdict(_Gpu))
    _host: dict[str, float] = field(default_factory=dict)
    _cpu: deque[TotalReading] = field(default_factory=deque)  # CPU seconds, as far back as the rate goes
    _sampled_at: float | None = None
    _missed: int = 0

    def take(self, records: Sequence[Metrics | Event]) -> None:
        """Take more records, in the order in which the sampler wrote them; gaps between them are allowed."""
        for record in records:
            if isinstance(record, Metrics):
                self._take_sample(record)
            elif record.name == "devices":
                self._about = record.details
                for about in record.details.get("gpus", ()):
                    self._gpus[str(about["gpu"])].about = about
            elif record.name == "xid":
                self._gpus[str(record.details.get("gpu"))].xids.append(int(record.details["code"]))
            elif record.name == "gpu_lost":
                self._gpus[str(record.details.get("gpu"))].lost = str(record.details.get("reason"))
            elif record.name == "sampler_ended":
                self.ended = "sampling has ended"

    def now(self) -> NodeNow:
        """Return the node as the records so far describe it; what they did not say is None.

        `cores_busy` is the CPU time of the last second, or between the last two readings if they are longer apart.
        """
        cpu = growth_between(self._cpu[0], self._cpu[-1], -math.inf, math.inf) if self._cpu else None
        return NodeNow(
            node=self.node,
            host=self.host,
            gpus=[self._gpu_now(name) for name in sorted(self._gpus, key=_number)],
            cores_busy=None if cpu is None else cpu.rate,
            memory_mb=self._host.get("memory_mb"),
            load1=self._host.get("load1"),
            sampled_at=self._sampled_at,
            interval_s=self._about.get("interval_s"),
            missed_ticks=self._missed,
            ended=self.ended,
            doubt=self._about.get("mapping_reason"),
        )

    def _take_sample(self, record: Metrics) -> None:
        of: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for name, value in record.values.items():
            owner, _, what = name.partition(".")
            of[owner][what] = value
        for owner, values in of.items():
            if owner.startswith("gpu"):
                self._gpus[owner].take(record.step, self.t0 + record.t_s, values)
        host = of["host"]
        self._host |= host
        if "cpu_s" in host and "at_s" in host:
            self._cpu.append(TotalReading(host["at_s"], host["cpu_s"]))
            while len(self._cpu) > 2 and self._cpu[-1].at_s - self._cpu[1].at_s >= _RATE_S:
                self._cpu.popleft()
        self._sampled_at = self.t0 + record.t_s
        self._missed = int(of["sampler"].get("missed_ticks", 0))

    def _gpu_now(self, name: str) -> GpuNow:
        gpu = self._gpus[name]
        return GpuNow(
            gpu=name,
            uuid=gpu.about.get("uuid"),
            model=gpu.about.get("model"),
            scope=gpu.about.get("scope"),
            values={key: value for key, value in gpu.values.items() if key != "at_s"},
            memory_total_mb=gpu.about.get("memory_total_mb"),
            power_limit_w=gpu.about.get("power_limit_w"),
            max_sm_mhz=gpu.about.get("max_sm_mhz"),
            throttled=gpu.throttled,
            energy_j=gpu.energy_j(),
            xids=tuple(gpu.xids),
            lost=gpu.lost,
            sampled_at=gpu.sampled_at,
            util_percent=tuple(gpu.util),
            power_w=tuple(gpu.power),
        )


def _number(name: str) -> tuple[int, str]:
    digits = name.removeprefix("gpu")
    return (int(digits) if digits.isdecimal() else -1), name


# Measuring this machine itself, without a run.

_NOBODYS = "no run: all that NVML shows"


@contextmanager
def machine(environ: Mapping[str, str], *, interval_s: float) -> Iterator[Callable[[], NodeNow]]:
    """Yield a function that samples this machine, without a run, and returns its state.

    *environ* may name the NVML library to load; *interval_s* is shown, the caller does the waiting. Without NVML the
    host alone is sampled, and `NodeNow.doubt` has the reason.
    """
    with started(environ) as obstacle:
        refused: dict[str, str] = {}
        gpus, hidden = ([], []) if obstacle else attempt(shown_gpus, "nvml", refused) or ([], [])
        parts = [part for gpu in gpus for part in gpu.instances or (gpu,)]
        doubts = [obstacle, refused.get("nvml"), *hidden]
        found = FoundGpus(gpus=parts, source=_NOBODYS, reason="; ".join(filter(None, doubts)) or None)
        began_s = time.monotonic()
        told: list[Metrics | Event] = []

        def tell(name: str, details: Mapping[str, Any]) -> None:
            told.append(Event(seq=0, t_s=time.monotonic() - began_s, name=name, details=dict(details)))

        node = NodeReader(found=found, host=MachineReader(), tell=tell, refused=refused)
        sampled = Sampled(node=0, host=socket.gethostname(), t0=time.time())
        ticks = 0

        def sample() -> NodeNow:
            nonlocal ticks
            values = node.read()
            if ticks == 0:
                tell("devices", {**node.describe(), "interval_s": interval_s})
            told.append(Metrics(seq=0, t_s=time.monotonic() - began_s, step=ticks, values=values))
            node.tell_changes(values)
            ticks += 1
            sampled.take(told)
            told.clear()
            return sampled.now()

        yield sample
