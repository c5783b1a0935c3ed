"""One sample of a node: all GPUs of the run and the host are read once, and what is remarkable becomes an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpcml.agent.nvml.reader import GpuLostError, GpuReader
from hpcml.agent.nvml.session import XidWatch, attempt
from hpcml.agent.telemetry.energy import Scope
from hpcml.agent.telemetry.gpus import FoundGpus, Gpu

Tell = Callable[[str, Mapping[str, Any]], None]
_THROTTLE = "throttle_"
_THROTTLED = "throttled_"  # of a sample, where the driver does not count


class Host(Protocol):
    """The reader for everything but GPUs: that of a run, or of the whole machine."""

    refused: dict[str, str]

    @property
    def cpu_from(self) -> str:
        """The source of CPU time."""

    @property
    def memory_from(self) -> str:
        """The source of memory."""

    def read(self, at_s: float, /, *, whatever_it_takes: bool = False) -> dict[str, float]:
        """Return the values at *at_s* (monotonic seconds)."""


def scope_of(gpu: Gpu, found: FoundGpus) -> tuple[Scope, str | None]:
    """Return whose energy this GPU's readings are, and why they are not the run's alone (None where they are)."""
    if not found.is_known:
        return Scope.shared, found.reason
    if gpu.board is not None:
        return Scope.board, "a MIG instance: NVML measures the board"
    if gpu.processes:
        return Scope.shared, f"other processes computed on it when the run began: {gpu.processes}"
    return Scope.gpu, None


@dataclass(slots=True)
class NodeReader:
    """Reads the GPUs of a run on this node, named gpu0, gpu1 ... in the order of `found`, and the host.

    *tell* writes an event with its details. GPUs that cannot be opened are left out, with the reason in `refused`.
    """

    found: FoundGpus
    host: Host
    tell: Tell
    traffic: bool = False
    refused: dict[str, str] = field(default_factory=dict)  # of the node as a whole
    _readers: dict[str, GpuReader] = field(default_factory=dict)
    _watch: XidWatch | None = None
    _told: set[tuple[str, str]] = field(default_factory=set)
    _before: dict[str, float] = field(default_factory=dict)  # as last told

    def __post_init__(self) -> None:
        for number, gpu in enumerate(self.found.gpus):
            self._open(f"gpu{number}", gpu)
        boards = {name: reader.board for name, reader in self._readers.items()}
        self._watch = attempt(lambda: XidWatch(boards), "xid", self.refused) if boards else None

    def _open(self, name: str, gpu: Gpu) -> None:
        try:
            reader = attempt(lambda: GpuReader(gpu, traffic=self.traffic), name, self.refused)
        except GpuLostError as error:
            self.refused[name] = str(error)
            return
        if reader is not None:
            self._readers[name] = reader

    def read(self, *, whatever_it_takes: bool = False) -> dict[str, float]:
        """Return all present values as "gpu0.power_w", "host.cpu_s" and so on; times are the node's CLOCK_MONOTONIC.

        Slow calls are left out of most samples, unless *whatever_it_takes*. A GPU that is lost is reported as an event
        and not read again.
        """
        values: dict[str, float] = {}
        for name, reader in list(self._readers.items()):
            at_s = time.monotonic()
            try:
                read = reader.read(at_s, whatever_it_takes=whatever_it_takes)
            except GpuLostError as error:
                del self._readers[name]
                self.tell("gpu_lost", {"gpu": name, "uuid": reader.gpu.uuid, "reason": str(error)})
                continue
            values[f"{name}.at_s"] = round(at_s, 6)
            values |= {f"{name}.{key}": round(value, 6) for key, value in read.items()}
        at_s = time.monotonic()
        host = self.host.read(at_s, whatever_it_takes=whatever_it_takes)
        return values | {"host.at_s": round(at_s, 6)} | {f"host.{key}": round(value, 6) for key, value in host.items()}

    def tell_changes(self, values: Mapping[str, float]) -> None:
        """Write events for what is remarkable in *values*, the latest result of `read`.

        Xid errors and memory errors are written each time; throttling, refusals and slow calls once for each kind.
        """
        xids = attempt(self._watch.take, "xid", self.refused) if self._watch is not None else None
        for xid in xids or []:
            self.tell("xid", {"gpu": xid.gpu, "code": xid.code})
        for name, value in values.items():
            gpu, _, what = name.partition(".")
            rose = value - self._before.get(name, value)
            if what.startswith(_THROTTLE) and rose > 0:
                self._tell_once("throttle", gpu, what.removeprefix(_THROTTLE).removesuffix("_s"))
            elif what.startswith(_THROTTLED) and value > 0:
                self._tell_once("throttle", gpu, what.removeprefix(_THROTTLED).removesuffix("_percent"))
            elif what.startswith("ecc_") and rose > 0:
                self.tell("ecc", {"gpu": gpu, "kind": what.removeprefix("ecc_"), "count": int(rose)})
        self._before |= {name: value for name, value in values.items() if ".throttle_" in name or ".ecc_" in name}
        for owner, what, why in self._refusals():
            self._tell_once("refused", owner, what, why)
        for name, reader in self._readers.items():
            for what, every in reader.backed_off.items():
                self._tell_once("slow", name, what, f"asked for in one of {every} ticks from now on, or fewer")

    def describe(self) -> dict[str, Any]:
        """Return what is being read, as the details of the event `devices`; to be called after the first `read`."""
        for owner, what, _ in self._refusals():
            self._told.add((owner, f"refused {what}"))
        return {
            "gpus": self._describe_gpus(),
            "mapping": self.found.source,
            "mapping_reason": self.found.reason,
            "host": {
                "cpu_from": self.host.cpu_from,
                "memory_from": self.host.memory_from,
                "refused": dict(self.host.refused),
            },
            "refused": dict(self.refused),
        }

    def _describe_gpus(self) -> Sequence[Mapping[str, Any]]:
        """Return a description of each GPU: its properties, whose its energy is, and how its values are read."""
        described = []
        for number, gpu in enumerate(self.found.gpus):
            scope, why = scope_of(gpu, self.found)
            name = f"gpu{number}"
            reader = self._readers.get(name)
            refused = reader.refused if reader else {"gpu": self.refused.get(name, "lost in the first sample")}
            described.append(
                {
                    "gpu": name,
                    "uuid": gpu.uuid,
                    "model": gpu.name,
                    "pci": gpu.pci,
                    "board": gpu.board,
                    "instance": gpu.instance,
                    "sm_count": gpu.sm_count,
                    "memory_total_mb": gpu.memory_mb,
                    "max_sm_mhz": gpu.max_sm_mhz,
                    "power_limit_w": gpu.power_limit_w,
                    "scope": scope.value,
                    "scope_reason": why,
                    "power_field": reader.power_field if reader else None,
                    "throttle_from": reader.throttle_from if reader else None,
                    "refused": {**gpu.refused, **refused},
                }
            )
        return described

    def _refusals(self) -> list[tuple[str, str, str]]:
        """Return what is not read and why, as owner (node, host, gpu0 ...), name and reason."""
        found = [("node", what, why) for what, why in self.refused.items()]
        found += [("host", what, why) for what, why in self.host.refused.items()]
        found += [
            (name, what, why) for name, reader in self._readers.items() for what, why in list(reader.refused.items())
        ]
        return found

    def _tell_once(self, event: str, owner: str, what: str, why: str | None = None) -> None:
        """Write an event unless the same one was written for this owner before."""
        key = (owner, f"{event} {what}")
        if key not in self._told:
            self._told.add(key)
            details = {"of": owner, "what": what} | ({"reason": why} if why else {})
            self.tell(event, details)
