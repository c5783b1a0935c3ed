"""What the rows of one cell have in common, before any of them is judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hpcml.analysis.arms import Arm
from hpcml.analysis.steady import SteadyState
from hpcml.analysis.to_target import Race, Reach
from hpcml.records import Point

Curves = Mapping[str, Sequence[Point]]  # by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a cell's rows have in common."""

    reference: Arm | None  # None: the cell has no run of that level
    margin: float | None
    higher_is_better: bool
    by_precision: bool
    steady: Mapping[str, SteadyState]  # by uid, one step window for all
    reporting: Collection[str]  # uids of the runs that reported step_time_s at all
    steps: Curves  # step_time_s
    data: Curves  # data_time_s
    communication: Curves  # communication_time_s
    race: Race | None = None  # None: no target
    reaches: Mapping[str, Sequence[Reach]] = field(default_factory=dict)  # by level
    budget_s: float | None = None
    is_scored: bool = False
