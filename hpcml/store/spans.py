"""Samples of GPUs and hosts summed up in spans of about ten seconds. Pure.

A device's spans follow each other without a gap from its first sample to its last one: each begins with the sample that
the one before ended with, so that totals like joules grow within one span or another and never between two.

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

from hpcml.model.running_total import TotalReading, growth_between
from hpcml.runs.journal import Event, Metrics

SPAN_S = 10.0
_EARLY_S = 0.1  # a sample that is due after ten seconds may come this much sooner
_SHORTEST_S = 0.5  # a rest below this belongs to the span before: no rate is made of an instant
_OPEN = 30  # spans that wait for the next reading of a slow total, at most: five minutes

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
_TOTALS = ("energy_j", "power_integral_j", "cpu_s")  # grow evenly between two readings
_STEPPED = ("throttle_power_s", *_THERMAL)  # are written when they have changed
_DEVICES = re.compile(r"gpu\d{1,4}|host")  # the sampler's own values are none of the run's
_MOST_MS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Sums, means and maxima of one device over about ten seconds from `t_ms`, by column of table ``bucket``.

    Column by column it is a row of table ``bucket``; None where the device gave no such reading. `t_ms` counts from the
    run's epoch. Energy is in joules, power in watts, memory in MB, shares in percent, times in seconds.
    """

    device: str
    uuid: str | None
    t_ms: int
    values: Mapping[str, float | int | None]  # by column


@dataclass(slots=True, kw_only=True)
class _Span:
    """The sums between two samples, which are seconds of the node's monotonic clock."""

    begin_s: float
    end_s: float
    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    highest: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)
    known_s: dict[str, float] = field(default_factory=dict)  # for how long it is known how a total grew

    def joined(self, rest: _Span) -> _Span:
        """Return this span together with the *rest* behind it."""
        highest = {
            name: max(value, self.highest.get(name, value)) for name, value in (self.highest | rest.highest).items()
        }
        return _Span(
            begin_s=self.begin_s,
            end_s=rest.end_s,
            samples=self.samples + rest.samples,
            sums=_added(self.sums, rest.sums),
            counts={name: self.counts.get(name, 0) + rest.counts.get(name, 0) for name in self.counts | rest.counts},
            highest=highest,
            grown=_added(self.grown, rest.grown),
            known_s=_added(self.known_s, rest.known_s),
        )

    def values(self, counters: Iterable[str]) -> dict[str, float | int | None]:
        """Return the columns of table ``bucket``; *counters* are those totals that the device has."""
        energy = next((name for name in _TOTALS[:2] if self.known_s.get(name)), None)
        power = [name for name in ("throttle_power_s",) if name in counters]
        thermal = [name for name in _THERMAL if name in counters]
        return {
            "samples": self.samples,
            "covered_s": self.end_s - self.begin_s,
            "energy_j": None if energy is None else self.grown[energy],
            "energy_covered_s": None if energy is None else self.known_s[energy],
            "cpu_s": self.grown["cpu_s"] if self.known_s.get("cpu_s") else None,
            "cpu_covered_s": self.known_s.get("cpu_s"),
            "throttled_power_s": self._throttled(power, _POWER_SAMPLED),
            "throttled_thermal_s": self._throttled(thermal, _THERMAL_SAMPLED),
            **{column: self.highest.get(what) for what, column in _HIGHEST.items()},
            **{
                column: self.sums[what] / self.counts[what] if what in self.sums else None
                for what, column in _MEANS.items()
            },
        }

    def _throttled(self, counters: Sequence[str], sampled: Sequence[str]) -> float | None:
        """Return the seconds of lowered clocks in this span; None where neither counters nor samples tell.

        The sampler writes a counter only when it changes, so that nothing new means 0.
        """
        covered_s = self.end_s - self.begin_s
        told = [self.grown.get(name, 0.0) for name in counters]
        told += [self.sums[name] / self.counts[name] / 100 * covered_s for name in sampled if name in self.sums]
        return max(told) if told and covered_s else None


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


@dataclass(slots=True, kw_only=True)
class _Device:
    """A device's spans that may still change, the last of them open, and the last reading of each total.

    What a total grew by between two readings goes to the spans in between, each its share of the time; its first
    reading only says from where it grows.
    """

    uuid: str | None = None
    spans: list[_Span] = field(default_factory=list)
    last: dict[str, TotalReading] = field(default_factory=dict)

    @classmethod
    def restored(cls, known: Mapping[str, Any]) -> _Device:
        return cls(
            uuid=known["uuid"],
            spans=[_Span(**span) for span in known["spans"]],
            last={name: TotalReading(*reading) for name, reading in known["last"].items()},
        )

    def tick(self, at_s: float) -> None:
        if not self.spans:
            self.spans.append(_Span(begin_s=at_s, end_s=at_s))
        elif self.spans[-1].end_s - self.spans[-1].begin_s >= SPAN_S - _EARLY_S:
            self.spans.append(_Span(begin_s=self.spans[-1].end_s, end_s=self.spans[-1].end_s))
        self.spans[-1].samples += 1
        self.spans[-1].end_s = max(at_s, self.spans[-1].end_s)  # time does not run back in one journal

    def add(self, name: str, value: float) -> None:
        span = self.spans[-1]
        if name in _AVERAGED:
            span.sums[name] = span.sums.get(name, 0.0) + value
            span.counts[name] = span.counts.get(name, 0) + 1
        elif name in _TOTALS:
            self._grow(name, TotalReading(span.end_s, value))
        elif name in _STEPPED:
            before = self.last.get(name)
            if (
                before is not None and value >= before.value
            ):  # one that fell was reset: by how much it grew nobody knows
                span.grown[name] = span.grown.get(name, 0.0) + (value - before.value)
            self.last[name] = TotalReading(span.end_s, value)
        if name in _HIGHEST:
            span.highest[name] = max(value, span.highest.get(name, value))

    def _grow(self, name: str, now: TotalReading) -> None:
        before = self.last.get(name)
        if before is None:
            self.last[name] = now
            return
        if now.at_s <= before.at_s:
            return
        self.last[name] = now
        for span in self.spans:
            grown = growth_between(before, now, span.begin_s, span.end_s)
            if grown is not None and grown.known_s > 0 and math.isfinite(grown.amount):
                span.grown[name] = span.grown.get(name, 0.0) + grown.amount
                span.known_s[name] = span.known_s.get(name, 0.0) + grown.known_s

    def settle(self) -> list[_Span]:
        """Return the spans that nothing can change any more, and forget them.

        The last two stay: what is left behind the last may be too short for a span.
        """
        until_s = min((last.at_s for name, last in self.last.items() if name in _TOTALS), default=math.inf)
        count = 0
        while count < len(self.spans) - 2 and (self.spans[count].end_s <= until_s or len(self.spans) - count > _OPEN):
            count += 1
        settled, self.spans = self.spans[:count], self.spans[count:]
        return settled

    def present(self) -> list[_Span]:
        """Return the spans that may still change, as they are now."""
        if len(self.spans) > 1 and self.spans[-1].end_s - self.spans[-1].begin_s < _SHORTEST_S:
            return [*self.spans[:-2], self.spans[-2].joined(self.spans[-1])]
        return self.spans


@dataclass(slots=True)
class Buckets:
    """Sums up the records of one sampler file, given in their order.

    The records of a file may come in any number of pieces: `carry` of one piece is what the next one resumes from.

    >>> buckets = Buckets.resume("{}")
    >>> buckets.take()
    []
    """

    _devices: dict[str, _Device]
    _zero_ms: float | None = None  # where the node's monotonic clock began, in ms since the run's epoch
    _routes: dict[str, tuple[_Device, str] | None] = field(default_factory=dict)  # of each value's whole name
    _settled: list[Bucket] = field(default_factory=list)

    @classmethod
    def resume(cls, carry: str) -> Buckets:
        """Return the state that `carry` returned; "{}" is that before the first piece."""
        known = json.loads(carry)
        devices = {name: _Device.restored(device) for name, device in known.get("devices", {}).items()}
        return cls(devices, known.get("zero_ms"))

    def carry(self) -> str:
        """Return the state as JSON, for `resume`."""
        devices = {name: asdict(device) for name, device in self._devices.items()}
        return json.dumps({"zero_ms": self._zero_ms, "devices": devices})

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
            self._tick(base_ms + record.t_s * 1000, record.values)

    def take(self) -> list[Bucket]:
        """Return the spans that were settled since the last call, and those that may still change, as they are now.

        A span that may still change comes again at the next call: its row is to be replaced, and so are those behind.
        """
        settled, self._settled = self._settled, []
        return settled + [
            self._bucket(name, device, span)
            for name, device in self._devices.items()
            for span in device.present()
            if span.samples
        ]

    def _bucket(self, name: str, device: _Device, span: _Span) -> Bucket:
        assert self._zero_ms is not None
        t_ms = round(self._zero_ms + span.begin_s * 1000)
        return Bucket(device=name, uuid=device.uuid, t_ms=t_ms, values=span.values(device.last))

    def _name(self, details: Mapping[str, Any]) -> None:
        gpus = details.get("gpus")
        for about in gpus if isinstance(gpus, list) else ():
            if isinstance(about, dict) and isinstance(about.get("uuid"), str):
                self._device(str(about.get("gpu"))).uuid = about["uuid"]

    def _device(self, name: str) -> _Device:
        return self._devices.setdefault(name, _Device())

    def _tick(self, written_ms: float, values: Mapping[str, float]) -> None:
        """Take one sample, whose record was written at *written_ms*."""
        routes = self._routes
        ticked: dict[str, _Device] = {}
        for whole_name, value in values.items():
            route = routes[whole_name] if whole_name in routes else self._route(whole_name)
            if route is None or not math.isfinite(value):
                continue
            device, name = route
            owner = whole_name.partition(".")[0]
            if name == "at_s":  # the first of each device, so that all that follows is of this time
                if self._zero_ms is None:
                    self._zero_ms = _zero_ms(written_ms, value, values.get("sampler.tick_us", 0.0))
                if self._zero_ms is not None and abs(self._zero_ms + value * 1000) < _MOST_MS:
                    device.tick(value)
                    ticked[owner] = device
            elif owner in ticked:
                device.add(name, value)
        for owner, device in ticked.items():
            if len(device.spans) > 2:
                self._settled += [self._bucket(owner, device, span) for span in device.settle()]

    def _route(self, whole_name: str) -> tuple[_Device, str] | None:
        """Return the device and the name of a value like "gpu0.power_w"; None where it is not kept."""
        owner, _, name = whole_name.partition(".")
        is_kept = name == "at_s" or name in _AVERAGED or name in _HIGHEST or name in _TOTALS or name in _STEPPED
        found = (self._device(owner), name) if is_kept and _DEVICES.fullmatch(owner) else None
        self._routes[whole_name] = found
        return found


def _zero_ms(written_ms: float, at_s: float, tick_us: float) -> float | None:
    """Return where the monotonic clock of a file's first sample, taken at *at_s*, began; None where it has no time.

    The record was written when the sample had been taken, which took *tick_us*.
    """
    zero_ms = written_ms - (tick_us / 1000 if math.isfinite(tick_us) else 0.0) - at_s * 1000
    return zero_ms if abs(zero_ms) < _MOST_MS else None
