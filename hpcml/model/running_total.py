"""A total that only grows (joules, CPU seconds), read now and then: how much it grew between two moments. Pure.

All rates and sums over samples come from here: the agent's summary of a run, the spans of its timelines, `hpcml top`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TotalReading(NamedTuple):
    """What a total was, and when it was read, in seconds of a monotonic clock."""

    at_s: float
    value: float


class Growth(NamedTuple):
    """How much a total grew, in its own unit, and for how many seconds that is known."""

    amount: float
    known_s: float

    @property
    def rate(self) -> float | None:
        """The growth in a second; None where it is known for no time."""
        return self.amount / self.known_s if self.known_s > 0 else None


def growth_between(before: TotalReading, now: TotalReading, begin_s: float, end_s: float) -> Growth | None:
    """Return the growth between *begin_s* and *end_s* that two readings tell of; None where the total fell.

    Between the readings it is taken as linear, outside of them nothing is known. A total that falls was reset, or lost
    a part of what it sums.

    >>> growth_between(TotalReading(0.0, 100.0), TotalReading(4.0, 140.0), 1.0, 9.0)
    Growth(amount=30.0, known_s=3.0)
    """
    between_s = now.at_s - before.at_s
    known_s = max(0.0, min(now.at_s, end_s) - max(before.at_s, begin_s))
    if between_s <= 0 or known_s <= 0:
        return Growth(0.0, 0.0)
    if now.value < before.value:
        return None
    return Growth(known_s / between_s * (now.value - before.value), known_s)


@dataclass(slots=True)
class RunningTotal:
    """The increase of a total between two moments, from its readings one by one.

    `part` is the increase in the total's unit, `covered_s` how much of the time it is known for.

    >>> total = RunningTotal()
    >>> _ = total.add(0.0, 100.0, 1.0, 9.0), total.add(2.0, 140.0, 1.0, 9.0)
    >>> total.part, total.covered_s
    (20.0, 1.0)
    """

    part: float = 0.0
    covered_s: float = 0.0
    falls: int = 0  # the time before such a reading is left out
    _last: TotalReading | None = None

    def add(self, at_s: float, value: float, begin_s: float, end_s: float) -> float | None:
        """Add a reading; return which share of the time since the last lies between *begin_s* and *end_s* (0 to 1).

        Returns None where the total fell: the time since the last reading is left out.
        """
        before, self._last = self._last, TotalReading(at_s, value)
        if before is None or at_s <= before.at_s:
            return 0.0
        grown = growth_between(before, self._last, begin_s, end_s)
        if grown is None:
            self.falls += 1
            return None
        self.part += grown.amount
        self.covered_s += grown.known_s
        return grown.known_s / (at_s - before.at_s)
