"""The hours that runs held nodes and GPUs, over all of their attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcml.model.state import State


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
