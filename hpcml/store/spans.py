"""Samples of GPUs and hosts summed up in spans of about ten seconds. Pure.

`Buckets` sums the samples of one file, with the same result in however many pieces they come: what the next piece needs
is kept as JSON, which keeps every bit of a float.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcml.runs.journal import Event, Metrics

SPAN_MS = 10_000
_MEANS: Mapping[str, str] = {  # as the sampler calls it -> as the store does
    "power_w": "mean_power_w",
    **{
        name: name
        for name in ("util_percent", "memory_util_percent", "sm_active_percent", "tensor_percent", "dram_percent")
    },
    "sm_mhz": "sm_mhz",
}
_HIGHEST: Mapping[str, str] = {"memory_mb": "max_memory_mb", "temperature_c": "max_temperature_c"}
_THERMAL = ("throttle_thermal_s", "throttle_sw_thermal_s", "throttle_hw_thermal_s")  # one slowdown, counted by several
_POWER_SAMPLED = ("throttled_power_percent",)  # where the driver counts none of these, samples tell (usage.py)
_THERMAL_SAMPLED = ("throttled_sw_thermal_percent", "throttled_hw_thermal_percent")
_AVERAGED = frozenset({*_MEANS, *_POWER_SAMPLED, *_THERMAL_SAMPLED})
_GROWING = ("energy_j", "power_integral_j", "cpu_s", "throttle_power_s", *_THERMAL)
_DEVICES = re.compile(r"gpu\d{1,4}|host")  # the sampler's own values are none of the run's
_MOST_MS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Sums, means and maxima of one device over ten seconds from `t_ms`, by column of table ``bucket``.

    Column by column it is a row of table ``bucket``; None where the device gave no such reading. `t_ms` counts from the
    run's epoch and is a multiple of `SPAN_MS`. Energy is in joules, power in watts, memory in MB, shares in percent,
    times in seconds.
    """

    device: str
    uuid: str | None
    t_ms: int
    values: Mapping[str, float | int | None]  # by column


@dataclass(slots=True, kw_only=True)
class _Device:
    """The sums of a device's open span, and the last value of each counter.

    A counter's growth over a span is what the span is given; its first reading only says from where it grows.
    """

    uuid: str | None = None
    t_ms: int | None = None
    samples: int = 0
    covered_s: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    highest: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    last_at_s: float | None = None

    def open(self, t_ms: int) -> None:
        self.t_ms, self.samples, self.covered_s = t_ms, 0, 0.0
        self.sums, self.counts, self.highest, self.grown = {}, {}, {}, {}

    def tick(self, at_s: float) -> None:
        self.samples += 1
        if self.last_at_s is not None and at_s > self.last_at_s:
            self.covered_s += at_s - self.last_at_s
        self.last_at_s = at_s

    def add(self, name: str, value: float) -> None:
        if name in _AVERAGED:
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
        elif name in _GROWING:
            before = self.last.get(name)
            if before is not None and value >= before:  # one that fell was reset: by how much it grew nobody knows
                self.grown[name] = self.grown.get(name, 0.0) + (value - before)
            self.last[name] = value
        if name in _HIGHEST:
            self.highest[name] = max(value, self.highest.get(name, value))

    def bucket(self, name: str) -> Bucket:
        assert self.t_ms is not None
        values: dict[str, float | int | None] = {
            "samples": self.samples,
            "covered_s": self.covered_s,
            "energy_j": self.grown.get("energy_j", self.grown.get("power_integral_j")),
            "cpu_s": self.grown.get("cpu_s"),
            "throttled_power_s": self._throttled(("throttle_power_s",), _POWER_SAMPLED),
            "throttled_thermal_s": self._throttled(_THERMAL, _THERMAL_SAMPLED),
            **{column: self.highest.get(what) for what, column in _HIGHEST.items()},
            **{
                column: self.sums[what] / self.counts[what] if what in self.sums else None
                for what, column in _MEANS.items()
            },
        }
        return Bucket(device=name, uuid=self.uuid, t_ms=self.t_ms, values=values)

    def _throttled(self, counters: Sequence[str], sampled: Sequence[str]) -> float | None:
        """Return the seconds of lowered clocks in this span; None where neither counters nor samples tell.

        The sampler writes a counter only when it changes, so that nothing new means 0.
        """
        told = [self.grown.get(name, 0.0) for name in counters if name in self.last]
        told += [self.sums[name] / self.counts[name] / 100 * self.covered_s for name in sampled if name in self.sums]
        return max(told) if told and self.covered_s else None


@dataclass(slots=True)
class Buckets:
    """Sums up the records of one sampler file, given in their order.

    The records of a file may come in any number of pieces: `carry` of one piece is what the next one resumes from.

    >>> buckets = Buckets.resume("{}")
    >>> buckets.take()
    []
    """

    _devices: dict[str, _Device]
    _routes: dict[str, tuple[_Device, str] | None] = field(default_factory=dict)  # of each value's whole name
    _closed: list[Bucket] = field(default_factory=list)

    @classmethod
    def resume(cls, carry: str) -> Buckets:
        """Return the state that `carry` returned."""
        return cls({name: _Device(**known) for name, known in json.loads(carry).items()})

    def carry(self) -> str:
        """Return the state as JSON, for `resume`."""
        return json.dumps({name: asdict(device) for name, device in self._devices.items()})

    def add(self, records: Iterable[Metrics | Event], *, base_ms: float) -> None:
        """Add records of a journal; *base_ms* is its time zero, in ms since the run's epoch.

        Events other than ``devices``, values of unknown names and values that are not finite are passed over. A
        device's values count from its first ``at_s``, the time of sampling in seconds.
        """
        for record in records:
            if isinstance(record, Event):
                if record.name == "devices":
                    self._name(record.details)
                continue
            exact_ms = base_ms + record.t_s * 1000
            if -_MOST_MS < exact_ms < _MOST_MS:  # false for nan, too
                self._tick(math.floor(exact_ms / SPAN_MS) * SPAN_MS, record.values)

    def take(self) -> list[Bucket]:
        """Return the spans that ended since the last call, and those that are still open, as they are now.

        A span that is still open comes again, with more in it, at the next call: its row is to be replaced.
        """
        closed, self._closed = self._closed, []
        return closed + [device.bucket(name) for name, device in self._devices.items() if device.t_ms is not None]

    def _name(self, details: Mapping[str, Any]) -> None:
        gpus = details.get("gpus")
        for about in gpus if isinstance(gpus, list) else ():
            if isinstance(about, dict) and isinstance(about.get("uuid"), str):
                self._device(str(about.get("gpu"))).uuid = about["uuid"]

    def _device(self, name: str) -> _Device:
        return self._devices.setdefault(name, _Device())

    def _tick(self, t_ms: int, values: Mapping[str, float]) -> None:
        routes = self._routes
        for whole_name, value in values.items():
            route = routes[whole_name] if whole_name in routes else self._route(whole_name)
            if route is None or not math.isfinite(value):
                continue
            device, name = route
            if name == "at_s":  # the first of each device, so that all that follows is of this span
                self._move_on(whole_name.partition(".")[0], device, t_ms)
                device.tick(value)
            elif device.t_ms is not None:
                device.add(name, value)

    def _move_on(self, name: str, device: _Device, t_ms: int) -> None:
        if device.t_ms is None:
            device.open(t_ms)
        elif t_ms > device.t_ms:  # time does not run back in one journal; if it did, the span that is open takes it
            self._closed.append(device.bucket(name))
            device.open(t_ms)

    def _route(self, whole_name: str) -> tuple[_Device, str] | None:
        """Return the device and the name of a value like "gpu0.power_w"; None where it is not kept."""
        owner, _, name = whole_name.partition(".")
        is_kept = name == "at_s" or name in _AVERAGED or name in _HIGHEST or name in _GROWING
        found = (self._device(owner), name) if is_kept and _DEVICES.fullmatch(owner) else None
        self._routes[whole_name] = found
        return found
