"""Sums up a node's samples over the time that the program ran: record by record, into a flat dict. Pure.

The result is the details of the event `telemetry`; docs/telemetry.md lists them.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcml.agent.telemetry.energy import Energy, EnergyMeter, Scope
from hpcml.model.running_total import RunningTotal
from hpcml.runs.journal import Event, Metrics

_TOTALS = ("throttle_", "pcie_", "nvlink_")  # GPU values that begin so only ever grow
_COUNTS = ("ecc_corrected", "ecc_uncorrected")
_MEDIANS = ("sm_mhz", "mem_mhz")
_HIGHEST = ("memory_mb", "temperature_c")
_HOST_TOTALS = ("cpu_s", "read_", "written_", "package", "net_", "ib_")


@dataclass(slots=True)
class _Mean:
    """The mean of values that come one by one."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1


@dataclass(slots=True)
class _Gpu:
    """What is known of one GPU so far."""

    meter: EnergyMeter
    about: Mapping[str, Any] = field(default_factory=dict)
    means: dict[str, _Mean] = field(default_factory=lambda: defaultdict(_Mean))
    highest: dict[str, float] = field(default_factory=dict)
    values: dict[str, Counter[float]] = field(default_factory=lambda: defaultdict(Counter))
    totals: dict[str, RunningTotal] = field(default_factory=lambda: defaultdict(RunningTotal))
    xids: Counter[int] = field(default_factory=Counter)
    lost: str | None = None
    samples: int = 0

    def add(self, values: Mapping[str, float]) -> None:
        """Add one sample, whose `at_s` says when it was taken; totals are cut at the program's start and end."""
        at_s = values["at_s"]
        begin_s, end_s = self.meter.begin_s, self.meter.end_s
        self.meter.add(
            at_s,
            counter_j=values.get("energy_j"),
            integral_j=values.get("power_integral_j"),
            power_w=values.get("power_w"),
        )
        for name, value in values.items():
            if name.startswith(_TOTALS):
                self.totals[name].add(at_s, value, begin_s, end_s)
            elif name in _COUNTS:  # whole ones: an error just before the begin is better counted than halved
                self.totals[name].add(at_s, value, -math.inf, math.inf)
        if at_s < begin_s:
            return
        self.samples += 1
        for name, value in values.items():
            if name.endswith("_percent"):
                self.means[name].add(value)
            elif name in _MEDIANS:
                self.values[name][value] += 1
            elif name in _HIGHEST:
                self.highest[name] = max(value, self.highest.get(name, value))

    def details(self) -> dict[str, Any]:
        """Return the GPU's part of the summary; means are over samples, medians of clocks too, totals over the time."""
        energy = self.meter.result()
        about = {
            key: self.about.get(key)
            for key in ("uuid", "board", "model", "scope", "scope_reason", "power_field", "throttle_from")
        }
        return {
            **about,
            **_energy(energy, self._why_no_energy(energy)),
            **{f"mean_{name}": mean.total / mean.count for name, mean in self.means.items()},
            **{f"max_{name}": value for name, value in self.highest.items()},
            **{f"median_{name}": _median(values) for name, values in self.values.items()},
            **{name: round(self.totals[name].part) for name in _COUNTS if name in self.totals},
            **{name: total.part for name, total in self.totals.items() if name not in _COUNTS},
            "xids": ",".join(str(code) for code in sorted(self.xids.elements())) or None,
            "lost": self.lost,
            "samples": self.samples,
        }

    def _why_no_energy(self, energy: Energy) -> str | None:
        """Return why the energy is unknown (GPU lost, NVML's refusals, too few readings); None where it is known."""
        if energy.reason is None:
            return None
        refused = self.about.get("refused", {})
        said = [f"{what}: {refused[what]}" for what in ("gpu", "energy_j", "power", "fields") if what in refused]
        return self.lost or "; ".join(said) or energy.reason


@dataclass(slots=True)
class NodeSummary:
    """Sums up the records of one node's sampler, given in their order.

    *begin_s* and `end_s` are the times between which the program ran, on the node's CLOCK_MONOTONIC.
    """

    begin_s: float
    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _host: dict[str, RunningTotal] = field(default_factory=lambda: defaultdict(RunningTotal))
    _end_s: float = math.inf
    _max_memory_mb: float | None = None
    _about: Mapping[str, Any] = field(default_factory=dict)
    _tick_us: array[float] = field(default_factory=lambda: array("f"))
    _last: Mapping[str, float] = field(default_factory=dict)

    def end(self, at_s: float) -> None:
        """Set the end of the program; to be called before records of later times are added."""
        self._end_s = at_s
        for gpu in self._gpus.values():
            gpu.meter.end_s = at_s

    def add(self, records: Iterable[Metrics | Event]) -> None:
        """Add more records of the sampler, in their order."""
        for record in records:
            if isinstance(record, Metrics):
                self._add_tick(record.values)
            elif record.name == "devices":
                self._about = record.details
                for about in record.details.get("gpus", ()):
                    self._gpu(str(about["gpu"])).about = about
                    self._gpu(str(about["gpu"])).meter.averaged = about.get("power_field") == "average_1s"
            elif record.name == "xid":
                self._gpu(str(record.details.get("gpu"))).xids[int(record.details["code"])] += 1
            elif record.name == "gpu_lost":
                self._gpu(str(record.details.get("gpu"))).lost = str(record.details.get("reason"))

    def details(self) -> dict[str, Any]:
        """Return the flat details: of the node, and of each GPU with its name in front (``gpu0_energy_j``).

        What is not known is left out; an energy is None then, with its reason beside it.
        """
        flat: dict[str, Any] = {"gpus": len(self._gpus), "mapping": self._about.get("mapping")}
        flat |= {"mapping_reason": self._about.get("mapping_reason"), **self._all_energy()}
        for name in sorted(self._gpus):
            flat |= {f"{name}_{key}": value for key, value in self._gpus[name].details().items()}
        flat |= {f"host_{name}": total.part for name, total in self._host.items() if total.covered_s}
        fell = sorted(name for name, total in self._host.items() if total.falls)
        last_s = self._last.get("host.at_s")
        flat |= {
            "host_max_memory_mb": self._max_memory_mb,
            "host_incomplete": ",".join(fell) or None,
            "samples": len(self._tick_us),
            "missed_ticks": int(self._last.get("sampler.missed_ticks", 0)),
            "sampler_cpu_s": self._last.get("sampler.cpu_s"),
            "sampler_tick_p99_us": _quantile(self._tick_us, 0.99),
            "data_until_s": None if last_s is None else min(last_s, self._end_s) - self.begin_s,
        }
        return {name: value for name, value in flat.items() if value is not None or name.endswith("energy_j")}

    def _gpu(self, name: str) -> _Gpu:
        if name not in self._gpus:
            self._gpus[name] = _Gpu(meter=EnergyMeter(self.begin_s, self._end_s))
        return self._gpus[name]

    def _add_tick(self, values: Mapping[str, float]) -> None:
        """Take one sample into account; its values are named "gpu0.power_w", "host.cpu_s" and so on."""
        of: dict[str, dict[str, float]] = defaultdict(dict)
        for name, value in values.items():
            owner, _, what = name.partition(".")
            of[owner][what] = value
        for name, read in of.items():
            if name.startswith("gpu"):
                self._gpu(name).add(read)
        host = of["host"]
        at_s = host["at_s"]
        for name, value in host.items():
            if name.startswith(_HOST_TOTALS):
                self._host[name].add(at_s, value, self.begin_s, self._end_s)
        if at_s >= self.begin_s and "memory_mb" in host:
            self._max_memory_mb = max(host["memory_mb"], self._max_memory_mb or 0.0)
        self._tick_us.append(values["sampler.tick_us"])
        self._last = values

    def _all_energy(self) -> dict[str, Any]:
        """Return the sum over the boards, each once; None if one of them is not known."""
        boards: dict[str, tuple[Energy, str]] = {}
        for name, gpu in self._gpus.items():
            key = str(gpu.about.get("board") or gpu.about.get("uuid") or name)
            boards[key] = (gpu.meter.result(), str(gpu.about.get("scope")))
        if not boards:
            return {}
        known = [energy.energy_j for energy, _ in boards.values() if energy.energy_j is not None]
        scopes = {scope for _, scope in boards.values()}
        worst = next((scope for scope in (Scope.shared, Scope.board) if scope.value in scopes), Scope.gpu)
        return {"energy_j": sum(known) if len(known) == len(boards) else None, "energy_scope": worst.value}


def _energy(energy: Energy, reason: str | None) -> dict[str, Any]:
    return {
        "energy_j": energy.energy_j,
        "energy_method": energy.method,
        "energy_counter_j": energy.counter_j,
        "energy_integral_j": energy.integral_j,
        "energy_disagreement": energy.disagreement,
        "energy_disagrees": energy.disagrees,
        "energy_uncertainty_j": energy.uncertainty_j,
        "energy_covered_s": energy.covered_s,
        "energy_counter_resets": energy.counter_resets or None,
        "energy_reason": reason,
        "mean_power_w": energy.mean_power_w,
        "max_power_w": energy.max_power_w,
    }


def _median(values: Counter[float]) -> float | None:
    """Return the lower median of values that are counted; None without any."""
    seen, half = 0, values.total() / 2
    for value in sorted(values):
        seen += values[value]
        if seen >= half:
            return value
    return None


def _quantile(values: array[float], share: float) -> float | None:
    """Return the value below which the *share* (0 to 1) of *values* lies; None without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
