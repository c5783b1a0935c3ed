"""Samplers that packages add, by entry points in the group ``hpcml.samplers``: what they read are metrics of the run.

A run names them in ``telemetry.samplers``. They are read in the sampler's process, beside GPUs and host, after those:
one that fails is left out from then on, with one event, and takes nothing else with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcml import plugins
from hpcml.agent.telemetry.node import Tell
from hpcml.errors import ConfigError

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is watched on this node: the run's agent, whose children the program's processes are, and the GPUs."""

    agent_pid: int
    node: int  # of the job, from 0
    gpu_uuids: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSampler:
    """What an entry point names: `open` is called once on each node, and what it returns at each tick.

    That returns numbers by name, with their unit at its end (``power_w``); it is to return in milliseconds.
    `contract` is the version of hpcml's contract that it keeps (``hpcml.plugins.CONTRACT``).
    """

    open: Callable[[Watched], Callable[[], Mapping[str, float]]]
    contract: int | None = None


def sampler_of(name: str) -> NodeSampler:
    """Return the sampler that a package adds as *name*; raises `ConfigError` as `hpcml.plugins.load` does."""
    return plugins.load(plugins.SAMPLERS, name, NodeSampler, ours=())


@dataclass(slots=True)
class OtherSamplers:
    """The samplers of packages on one node; *tell* writes an event where one fails."""

    tell: Tell
    watched: Watched
    _readers: dict[str, Callable[[], Mapping[str, float]]] = field(default_factory=dict)

    def open(self, names: Sequence[str]) -> None:
        """Open those of *names*; none raises."""
        for name in names:
            try:
                self._readers[name] = sampler_of(name).open(self.watched)
            except ConfigError as error:
                self.tell("sampler_failed", {"sampler": name, "reason": str(error)})
            except Exception as error:  # noqa: BLE001 - somebody else's code must not cost the run its telemetry
                self._failed(name, error)

    def read(self) -> dict[str, float]:
        """Return what each reads now, as ``NAME.power_w``, on other nodes than the first ``node1.NAME.power_w``.

        Values that are no finite numbers, and names that are no plain words, are left out.
        """
        before = "" if self.watched.node == 0 else f"node{self.watched.node}."
        values: dict[str, float] = {}
        for name, reader in list(self._readers.items()):
            try:
                read = dict(reader())
            except Exception as error:  # noqa: BLE001 - as above
                del self._readers[name]
                self._failed(name, error)
                continue
            values |= {f"{before}{name}.{key}": float(value) for key, value in read.items() if _is_good(key, value)}
        return values

    def _failed(self, name: str, error: Exception) -> None:
        words = " ".join(str(error).split())
        self.tell("sampler_failed", {"sampler": name, "reason": f"{type(error).__name__}: {words}"})


def _is_good(key: object, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and isinstance(key, str) and _KEY.fullmatch(key) is not None
