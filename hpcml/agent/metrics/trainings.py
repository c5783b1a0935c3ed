"""Whether the values of a metric are those of several trainings in one run, as of a script that loops over them.

Steps that begin anew are no sign alone: they do so where a loop counts the batches of each epoch, and after a restart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcml.agent.metrics.reading import Taker
from hpcml.model.metric_goal import goal_by_name, is_duration_or_rate
from hpcml.model.metric_sources import MIXED_TRAININGS
from hpcml.runs.state import EventName

_MOST_TOLD = 3  # names, in a line that people read
_FEWEST = 4  # values of a training: fewer say nothing of where it went
_STRAIGHT = 0.6  # of the way that the values made, from the first to the last
_BEYOND_NOISE = 4.0  # times what the values differ from one to the next
_WAY_BACK = 0.5  # of the way from the first value to the last
COUNTED_WORDS = ("epoch", "fold", "round", "stage", "phase", "cycle", "task", "episode", "split")
_COUNTED = re.compile(rf"(?<![a-z])({'|'.join(COUNTED_WORDS)})\W{{0,3}}(\d{{1,9}})(?![\w.])")


@dataclass(slots=True)
class _Stretch:
    """Values whose steps ascend."""

    step: int
    value: float
    counted: Mapping[str, int]  # what else was counted where it began
    first_step: int
    first: float
    n: int = 1
    way: float = 0.0  # the differences of all values from those before


@dataclass(slots=True)
class Trainings:
    """Takes all values in their order, and knows of which names values of several trainings seem to be there."""

    _stretches: dict[str, _Stretch] = field(default_factory=dict)
    _anew: Counter[tuple[str, bool]] = field(default_factory=Counter)  # by name, and whether it had risen
    _went_on: set[str] = field(default_factory=set)  # whose steps began anew within a training

    def take(self, name: str, step: int, value: float, counted: Mapping[str, int]) -> None:
        """Take a value of *name*; *counted* is the last number of each epoch, fold ... that was told before it."""
        of = self._stretches.get(name)
        if of is not None and step >= of.step:
            of.n += step > of.step
            of.way += abs(value - of.value)
            of.step, of.value = step, value
            return
        if of is not None and step <= of.first_step:
            if _is_anew(of, value, counted):
                self._anew[name, of.value > of.first] += 1
            else:
                self._went_on.add(name)
        self._stretches[name] = _Stretch(step, value, dict(counted), first_step=step, first=value)

    def mixed(self) -> dict[str, int]:
        """Return how many trainings there seem to be of each name of which it is more than one.

        Only what gets better in a training tells: a learning rate, a sum or a clock may begin anew with each epoch.
        """
        again = [(name, has_risen, n) for (name, has_risen), n in self._anew.items() if name not in self._went_on]
        if not again:
            return {}
        return {
            name: n + 1
            for name, has_risen, n in again
            if (goal := goal_by_name(name)) and has_risen is (goal.name == "max") and not is_duration_or_rate(name)
        }

    def tell(self, journal: Taker, place: str) -> None:
        """Journal what is `mixed` of the metrics that were read from *place*."""
        if not (mixed := self.mixed()):
            return
        names = ", ".join(sorted(mixed)[:_MOST_TOLD])
        verb = "have" if len(mixed) > 1 else "has"
        problem = (
            f"{names} {verb} values of {max(mixed.values())} trainings in one series, of which those of the last "
            "training count: give each training a run of its own"
        )
        journal.event(EventName.METRICS_TROUBLE, {"file": place, "problem": problem})
        journal.event("facts", {MIXED_TRAININGS: names})


def counted_in(line: str) -> Sequence[tuple[str, int]]:
    """Return what *line* says of epochs, folds and the like.

    >>> dict(counted_in("Fold 2/5, Epoch: [10][40/100] loss 0.5"))
    {'fold': 2, 'epoch': 10}
    """
    lower = line.lower()
    if not [word for word in COUNTED_WORDS if word in lower]:  # nearly all lines: a tenth of the pattern's time
        return ()
    return [(found[1], int(found[2])) for found in _COUNTED.finditer(lower)]


def counted_beside(row: Mapping[str, float]) -> dict[str, int]:
    """Return the same of a row of a table.

    >>> counted_beside({"loss": 0.5, "Episode": 3.0})
    {'episode': 3}
    """
    return {word: int(n) for name, n in row.items() if (word := name.lower()) in COUNTED_WORDS and math.isfinite(n)}


def _is_anew(of: _Stretch, value: float, counted: Mapping[str, int]) -> bool:
    """Tell whether a metric is back where it was before it went somewhere, and nothing else was counted on."""
    if of.n < _FEWEST or any(counted[word] > n for word, n in of.counted.items() if word in counted):
        return False
    if counted.keys() - of.counted.keys():
        return False
    moved = of.value - of.first
    is_on_its_way = abs(moved) >= _STRAIGHT * of.way or abs(moved) >= _BEYOND_NOISE * of.way / (of.n - 1)
    return moved != 0 and is_on_its_way and (of.value - value) / moved >= _WAY_BACK
