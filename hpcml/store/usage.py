"""What a run used and what a step of it computes, folded from its events ``telemetry``, ``work`` and ``memory``. Pure.

Only attempts whose work counts are looked at, as for the wall time (`hpcml.store.facts`). A sum that one node does not
know is None, and `Usage.incomplete` or the reason of the energy says which node. docs/telemetry.md lists the events.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcml.model.records import Usage, Work
from hpcml.runs.state import EventName
from hpcml.store.facts import Happening

MEASURED = ("telemetry", "work", "memory")
_WHOLE = 0.99  # of the time: a gap of a hundredth is less than what counters and sensors are wrong by
_SHOWN = 4  # reasons in one line
_SCOPES = ("shared", "board", "gpu")  # the worst first
_GPU = re.compile(r"(gpu\d+)_(.+)", re.DOTALL)
# The driver counts one slowdown under several of these names (nvml.h, NVML_FI_DEV_PERF_POLICY_THERMAL and
# NVML_FI_DEV_CLOCKS_EVENT_REASON_*): the longest of them is the least that it can have been.
_THERMAL = ("throttle_thermal_s", "throttle_sw_thermal_s", "throttle_hw_thermal_s")
# Where the driver does not count, shares of the samples. "hw" may be heat or a power brake: it stands for neither.
_THERMAL_SAMPLED = ("mean_throttled_sw_thermal_percent", "mean_throttled_hw_thermal_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carbon:
    """The CO2 of a kilowatt-hour in the run's cluster, and the source of that figure, from the run's configuration.

    In grams for each kWh of electricity; the source is a citation, which is shown beside every figure that was made
    with it.
    """

    g_per_kwh: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """One GPU of one node in one attempt, with what its sampler reported at the end."""

    where: str
    board: str
    told: Mapping[str, Any]
    wall_s: float | None
    sampled_s: float

    def number(self, name: str) -> float | None:
        return _number(self.told.get(name))

    @property
    def gap(self) -> str | None:
        """The reason why its energy does not cover the whole time; None where it does."""
        if self.number("energy_j") is None:
            return f"{self.where}: {self.told.get('energy_reason') or 'its energy was not told'}"
        covered_s = self.number("energy_covered_s") or 0.0
        if self.wall_s is None or covered_s >= _WHOLE * self.wall_s:
            return None
        return f"{self.where}: no data for {self.wall_s - covered_s:.3g} of {self.wall_s:.3g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """One node in one attempt, with what its sampler reported at the end."""

    where: str
    attempt: int
    told: Mapping[str, Any]
    gpus: Sequence[_Gpu]

    def number(self, name: str) -> float | None:
        return _number(self.told.get(name))

    @property
    def unseen(self) -> str | None:
        """The reason why no GPU of this node was sampled; None where there was none to sample."""
        reason = self.told.get("mapping_reason")
        return None if self.gpus or reason is None else f"{self.where}: {reason}"

    @property
    def is_known(self) -> bool:
        """Whether the GPUs that were sampled are known to be those that the run was given."""
        return self.told.get("mapping") != "shared/unknown"


def fold_usage(happenings: Sequence[Happening], counted: Collection[int], carbon: Carbon | None = None) -> Usage | None:
    """Return what the run used in its *counted* attempts; None where no telemetry of them was reported.

    *carbon* None leaves the CO2 out. *counted* are numbers of attempts. Sums (energy, GPU seconds, CPU seconds) are
    over all nodes and attempts; means are weighted by samples or seconds; `gpus` is the number in the last of the
    attempts. A sum of which a part is not known is None and not a smaller number, and the reason is told in words.

    CO2 is the energy of the GPU boards times `Carbon.g_per_kwh`: 3.6e6 J are one kWh.
    """
    nodes = _nodes(happenings, counted)
    if not nodes:
        return None
    untold = _untold(happenings, counted, nodes)
    gpus = [gpu for node in nodes for gpu in node.gpus]
    cpu_s = [node.number("host_cpu_s") for node in nodes]
    return Usage(
        gpus=sum(len(node.gpus) for node in nodes if node.attempt == nodes[-1].attempt),
        gpu_s=_gpu_s(nodes, untold),
        **_energy(nodes, untold, carbon),
        power_limit_w=_power_limit_w(happenings, counted),
        throttled_power_share=_share(gpus, ("throttle_power_s",), ("mean_throttled_power_percent",)),
        throttled_thermal_share=_share(gpus, _THERMAL, _THERMAL_SAMPLED),
        sm_mhz=_median([(gpu.number("median_sm_mhz"), gpu.number("samples")) for gpu in gpus]),
        util_percent=_mean_of(gpus, "util_percent"),
        memory_util_percent=_mean_of(gpus, "memory_util_percent"),
        sm_active_percent=_mean_of(gpus, "sm_active_percent"),
        tensor_percent=_mean_of(gpus, "tensor_percent"),
        dram_percent=_mean_of(gpus, "dram_percent"),
        max_memory_mb=_most(gpu.number("max_memory_mb") for gpu in gpus),
        max_temperature_c=_most(gpu.number("max_temperature_c") for gpu in gpus),
        cpu_s=_sum(cpu_s) if not untold else None,
        max_host_memory_mb=_most(node.number("host_max_memory_mb") for node in nodes),
        xids=",".join(str(gpu.told["xids"]) for gpu in gpus if gpu.told.get("xids")) or None,
        incomplete=_in_one_line([*untold, *_troubles(nodes)]),
    )


def fold_work(happenings: Iterable[Happening], counted: Collection[int]) -> Work | None:
    """Return the work of a step, as the program reported it last, and the peak memory over all *counted* attempts.

    None where neither was reported. Rank 0 counts where several ranks report the work, and the latest attempt. Counts
    that are no numbers become None. Memory is the highest of all ranks, in MB.
    """
    known = [happening for happening in happenings if happening.journal.attempt in counted]
    said = max((h for h in known if h.name == "work"), key=lambda h: (h.journal.precedence, h.ordinal), default=None)
    memory = [happening.details for happening in known if happening.name == "memory"]
    if said is None and not memory:
        return None
    told: Mapping[str, Any] = said.details if said is not None else {}
    devices = told.get("devices")
    return Work(
        devices=devices
        if isinstance(devices, int) and not isinstance(devices, bool) and 0 <= devices < 2**31
        else None,
        model_flops=_number(told.get("model_flops")),
        flops_doubt=None if told.get("flops_doubt") is None else str(told["flops_doubt"]),
        samples=_number(told.get("samples")),
        tokens=_number(told.get("tokens")),
        peak_allocated_mb=_most(_number(details.get("peak_allocated_mb")) for details in memory),
        peak_reserved_mb=_most(_number(details.get("peak_reserved_mb")) for details in memory),
    )


def _nodes(happenings: Iterable[Happening], counted: Collection[int]) -> list[_Node]:
    """Return each node of each counted attempt that reported telemetry, in order."""
    told: dict[tuple[int, int], Mapping[str, Any]] = {}
    for happening in happenings:
        if happening.name == "telemetry" and happening.journal.attempt in counted:
            told[happening.journal.attempt, _node_of(happening)] = happening.details
    return [_node(attempt, number, told[attempt, number]) for attempt, number in sorted(told)]


def _node(attempt: int, number: int, told: Mapping[str, Any]) -> _Node:
    wall_s, until_s = _number(told.get("wall_s")), _number(told.get("data_until_s"))
    of: dict[str, dict[str, Any]] = {}
    for name, value in told.items():
        if match := _GPU.fullmatch(name):
            of.setdefault(match[1], {})[match[2]] = value
    where = f"node {number}, attempt {attempt}"
    gpus = [
        _Gpu(
            where=f"{name} of {where}",
            board=str(values.get("board") or values.get("uuid") or f"{name} of {number}"),
            told=values,
            wall_s=wall_s,
            sampled_s=_number(values.get("energy_covered_s")) or until_s or 0.0,
        )
        for name, values in sorted(of.items())
    ]
    return _Node(where=where, attempt=attempt, told=told, gpus=gpus)


def _untold(happenings: Iterable[Happening], counted: Collection[int], nodes: Iterable[_Node]) -> list[str]:
    """Return the nodes whose agents began a counted attempt and reported nothing at its end, in words."""
    began = {
        (h.journal.attempt, _node_of(h))
        for h in happenings
        if h.name == EventName.ATTEMPT_STARTED and h.journal.attempt in counted
    }
    told = {node.where for node in nodes}
    wheres = (f"node {node}, attempt {attempt}" for attempt, node in sorted(began))
    return [f"{where}: told nothing (yet)" for where in wheres if where not in told]


def _node_of(happening: Happening) -> int:
    node = happening.details.get("node")
    return node if isinstance(node, int) else 0


def _gpu_s(nodes: Sequence[_Node], untold: Sequence[str]) -> float | None:
    walls = [node.number("wall_s") for node in nodes]
    is_known = all(node.is_known and node.unseen is None for node in nodes)
    if untold or not is_known or not any(node.gpus for node in nodes):
        return None
    return _sum([None if wall is None else wall * len(node.gpus) for wall, node in zip(walls, nodes, strict=True)])


def _energy(nodes: Sequence[_Node], untold: Sequence[str], carbon: Carbon | None) -> dict[str, Any]:
    """Return the fields of `Usage` about energy and power; each board counts once in each attempt."""
    boards = list({(node.where, gpu.board): gpu for node in nodes for gpu in node.gpus}.values())
    unseen = [node.unseen for node in nodes if node.unseen is not None]
    if not boards:
        return {"energy_reason": _in_one_line(unseen)}
    gaps = [*untold, *unseen, *(gpu.gap for gpu in boards if gpu.gap is not None)]
    energy_j = None if gaps else _sum([node.number("energy_j") if node.gpus else 0.0 for node in nodes])
    known = [(gpu.number("energy_j"), gpu.number("energy_covered_s")) for gpu in boards]
    sure = [(joules, seconds) for joules, seconds in known if joules is not None and seconds]
    methods = {str(gpu.told["energy_method"]) for gpu in boards if gpu.told.get("energy_method")}
    scopes = {str(gpu.told.get("scope")) for gpu in boards}
    doubts = [_disagreement(gpu) for gpu in boards if gpu.told.get("energy_disagrees") is True]
    doubts += [str(gpu.told["scope_reason"]) for gpu in boards if gpu.told.get("scope_reason")]
    return {
        "energy_j": energy_j,
        "energy_method": methods.pop() if len(methods) == 1 else "mixed" if methods else None,
        "energy_scope": next((scope for scope in _SCOPES if scope in scopes), None),
        "energy_uncertainty_j": _sum([gpu.number("energy_uncertainty_j") for gpu in boards]) if not gaps else None,
        "energy_disagrees": any(gpu.told.get("energy_disagrees") is True for gpu in boards),
        "energy_reason": _in_one_line([*gaps, *doubts]),
        "mean_power_w": sum(j for j, _ in sure) / sum(s for _, s in sure) if sure else None,
        "max_power_w": _most(gpu.number("max_power_w") for gpu in boards),
        **_carbon(energy_j, carbon),
    }


def _carbon(energy_j: float | None, carbon: Carbon | None) -> dict[str, Any]:
    if energy_j is None or carbon is None:
        return {}
    source = f"GPU boards only, {carbon.g_per_kwh:g} g/kWh: {carbon.source}"
    return {"co2_g": energy_j / 3.6e6 * carbon.g_per_kwh, "co2_source": source}


def _disagreement(gpu: _Gpu) -> str:
    ratio = gpu.number("energy_disagreement")
    return f"{gpu.where}: integral and counter differ" + ("" if ratio is None else f" by {ratio:+.0%}")


def _power_limit_w(happenings: Iterable[Happening], counted: Collection[int]) -> float | None:
    facts = (h.details for h in happenings if h.name == "facts" and h.journal.attempt in counted)
    limits = [_number(details.get("gpu_power_limit_w")) for details in facts]
    return min((limit for limit in limits if limit is not None), default=None)


def _share(gpus: Iterable[_Gpu], counters: Sequence[str], sampled: Sequence[str]) -> float | None:
    """Return the share of the sampled time in which clocks were lowered, over all GPUs that report it."""
    throttled_s = sampled_s = 0.0
    for gpu in gpus:
        percents = [gpu.number(name) for name in sampled]
        ways = [gpu.number(name) for name in counters]
        ways += [None if percent is None else percent / 100 * gpu.sampled_s for percent in percents]
        longest_s = _most(ways)
        if longest_s is not None and gpu.sampled_s > 0:
            throttled_s += longest_s
            sampled_s += gpu.sampled_s
    return min(1.0, throttled_s / sampled_s) if sampled_s else None


def _troubles(nodes: Iterable[_Node]) -> list[str]:
    found = []
    for node in nodes:
        if node.told.get("trouble"):
            found.append(f"{node.where}: {node.told['trouble']}")
        if not node.is_known:
            found.append(f"{node.where}: which GPUs are the run's is not known ({node.told.get('mapping_reason')})")
        if node.unseen is not None:
            found.append(node.unseen)
        found += [f"{gpu.where} was lost: {gpu.told['lost']}" for gpu in node.gpus if gpu.told.get("lost")]
        if node.told.get("host_incomplete"):
            found.append(f"{node.where}: too low, since a process left: {node.told['host_incomplete']}")
    return found


def _in_one_line(reasons: Iterable[str]) -> str | None:
    each = list(dict.fromkeys(reasons))
    more = f"; ... and {len(each) - _SHOWN} more" if len(each) > _SHOWN else ""
    return "; ".join(each[:_SHOWN]) + more if each else None


def _mean_of(gpus: Iterable[_Gpu], name: str) -> float | None:
    """Return the mean of a percentage over all samples of all GPUs that have it."""
    weighted = [(gpu.number(f"mean_{name}"), gpu.number("samples")) for gpu in gpus]
    known = [(value, weight) for value, weight in weighted if value is not None and weight]
    total = sum(weight for _, weight in known)
    return math.fsum(value * weight for value, weight in known) / total if known else None


def _median(weighted: Iterable[tuple[float | None, float | None]]) -> float | None:
    known = sorted((value, weight) for value, weight in weighted if value is not None and weight)
    half, seen = sum(weight for _, weight in known) / 2, 0.0
    for value, weight in known:
        seen += weight
        if seen >= half:
            return value
    return None


def _sum(numbers: Sequence[float | None]) -> float | None:
    """Return the sum; None unless all are known."""
    known = [number for number in numbers if number is not None]
    return math.fsum(known) if known and len(known) == len(numbers) else None


def _most(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None  # false for nan, too
