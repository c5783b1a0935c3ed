"""Looking more than once: a plan of looks at growing data, what was seen at each, and looks that nobody planned.

A `LookPlan` is written down before the first run of an experiment is submitted, and never changed after that. Each
planned look is a `Look`: what was judged, from which runs, and which arms need no more of them. A `Glance` is a
comparison outside of any plan; it is remembered so that a later one, of grown data, can say that it is not the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# What a run must be asked with again so that its plan goes on; the first that differs is named.
Question = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArm:
    """One arm of a planned study: its runs, one for each seed of the plan, in the plan's order of seeds."""

    cell: int  # arms of one cell are compared with its reference
    level: str
    is_reference: bool
    uids: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPlan:
    """What was decided before the first run: the question, and how many seeds each look has.

    `levels` are the nominal one-sided levels of the looks for j = 1, 2 .. arms that are not yet shown (Holm's steps).
    """

    experiment: str
    planned_at: str  # ISO 8601 with offset
    by: str
    reference: str
    claim: str  # that is to be shown
    metric: str
    goal: str
    margin: float
    seeds: list[int]
    sizes: list[int]
    levels: list[list[float]]
    arms: list[PlannedArm]
    question: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[PlannedArm]:
        """The arms that are judged."""
        return [arm for arm in self.arms if not arm.is_reference]

    def seeds_of(self, look: int) -> list[int]:
        """Return the seeds that *look*, from 1 on, adds to those before."""
        return self.seeds[(self.sizes[look - 2] if look > 1 else 0) : self.sizes[look - 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenArm:
    """What a look saw of one arm. `ps` are the one-sided p values of the claims, empty where nothing can be claimed."""

    cell: int
    level: str
    n: int  # seeds that the test rests on
    uids: list[str]  # of the arm and of its reference: the runs that were there
    verdict: str
    ps: dict[str, float] = field(default_factory=dict)
    stop: str | None = None  # why it gets no more seeds; None: it goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A planned look that was taken; arms that had stopped before are not in it."""

    number: int  # from 1
    taken_at: str
    arms: list[SeenArm]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A comparison that nobody planned: which runs it saw of one row, and which of it were still to come."""

    at: str
    question: str  # metric and compared setting: what was looked at
    seen: list[str]
    awaited: list[str]
    n: int  # seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStudy:
    """A plan, with the looks that were taken, by number from 1."""

    plan: LookPlan
    looks: tuple[Look, ...] = ()

    def last_of(self, cell: int, level: str) -> tuple[int, SeenArm] | None:
        """Return the latest look at an arm, by number, with what it saw; None before the first."""
        seen = [
            (look.number, arm) for look in self.looks for arm in look.arms if (arm.cell, arm.level) == (cell, level)
        ]
        return seen[-1] if seen else None

    @property
    def open_rows(self) -> list[PlannedArm]:
        """The judged arms that need more seeds."""
        if self.looks and self.looks[-1].number == len(self.plan.sizes):
            return []
        last = {(arm.cell, arm.level): self.last_of(arm.cell, arm.level) for arm in self.plan.rows}
        return [arm for arm in self.plan.rows if (seen := last[arm.cell, arm.level]) is None or seen[1].stop is None]

    @property
    def open_arms(self) -> list[PlannedArm]:
        """The arms that get the next seeds: those that are not decided, and their references."""
        rows = self.open_rows
        cells = {arm.cell for arm in rows}
        return [arm for arm in self.plan.arms if arm in rows or (arm.is_reference and arm.cell in cells)]
