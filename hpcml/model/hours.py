"""The hours that runs held nodes and GPUs, over all of their attempts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpcml.errors import ConfigError
from hpcml.model.state import State

_BUDGET = re.compile(r"(?P<hours>\d+(?:\.\d+)?)\s*(?P<unit>gpu|node)h")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTime:
    """One attempt of a run that started: how long its program ran, and whether its work led to the run's outcome."""

    number: int
    state: State
    wall_s: float | None  # None: it goes on, or nobody lived to see its end
    counts: bool  # False: a later attempt began anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """The time that runs held nodes and GPUs, by the program's own time, over all of their attempts.

    `lost_*` are those of it that led to no completed run: failed, cancelled, begun anew. GPU-hours are None where the
    number of GPUs of a run is not known.
    """

    n_runs: int
    n_attempts: int
    node_h: float
    gpu_h: float | None
    lost_node_h: float
    lost_gpu_h: float | None
    n_unknown: int  # attempts that are over, and nobody knows for how long they ran: they are in no sum
    n_running: int  # attempts that go on: they are in no sum


Attempts = Mapping[str, tuple[AttemptTime, ...]]  # by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most hours that runs may take, of GPUs or of nodes.

    >>> Budget.parse("200gpuh", field="schedule.budget")
    Budget(hours=200.0, unit='gpu')
    """

    hours: float
    unit: Literal["gpu", "node"]

    @classmethod
    def parse(cls, text: str, *, field: str) -> Budget:
        """Return the budget that *text* is; raise `ConfigError`, which names *field*, where it is none."""
        found = _BUDGET.fullmatch(text.strip())
        if found is None:
            raise ConfigError(f"{field}={text!r} is no budget: write 200gpuh or 50nodeh")
        return cls(hours=float(found["hours"]), unit="gpu" if found["unit"] == "gpu" else "node")

    def of(self, *, wall_s: float, nodes: int, gpus_per_node: int) -> float:
        """Return the hours of it that a job takes."""
        return wall_s / 3600 * nodes * (gpus_per_node if self.unit == "gpu" else 1)
