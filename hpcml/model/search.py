"""What `hpcml tune` searches: the axes of a space as they are typed, and the definition of a study."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from hpcml.errors import ConfigError, require
from hpcml.model.choices import Goal
from hpcml.model.record_keys import ARGUMENTS

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<log>log\()?(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?(log)\))")
_WHOLE = re.compile(r"[+-]?\d+")
_LISTED = re.compile(r"\{(?P<values>[^{}]*,[^{}]*)\}")
_DIGITS = 6  # of a number that is searched: what is recorded can be typed again

Value = float | int | str


class SamplerName(Enum):
    """How the next point is chosen; all but `grid` are Optuna's."""

    tpe = "tpe"
    random = "random"
    grid = "grid"
    cmaes = "cmaes"


class PrunerName(Enum):
    """Which runs are stopped early, by the values that they report while they go."""

    none = "none"
    median = "median"
    hyperband = "hyperband"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting that is searched: numbers from `low` to `high`, or one of `choices`.

    `key` is the setting as runs record it.
    """

    key: str
    low: float = 0
    high: float = 0
    is_log: bool = False  # numbers are drawn on a logarithmic scale
    is_whole: bool = False
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called in answers and by ``--by``: ``lr`` of ``workload.args.lr``."""
        return self.key.removeprefix(ARGUMENTS)

    @property
    def values(self) -> Sequence[Value] | None:
        """All values; None where they are without end."""
        if self.choices:
            return self.choices
        return range(int(self.low), int(self.high) + 1) if self.is_whole else None

    def rounded(self, value: Value) -> Value:
        """Return *value* as it is tried: a real number with six digits, within the bounds."""
        if self.choices or self.is_whole:
            return value
        return min(max(float(f"{float(value):.{_DIGITS}g}"), self.low), self.high)

    def read(self, recorded: object) -> Value | None:
        """Return the value that a run has *recorded*; None where it is not on this axis."""
        if self.choices:
            return next((each for each in self.choices if _meaning(each) == _meaning(recorded)), None)
        if isinstance(recorded, bool) or not isinstance(recorded, int | float):
            return None
        is_on = self.low <= recorded <= self.high and (not self.is_whole or recorded == int(recorded))
        return (int(recorded) if self.is_whole else float(recorded)) if is_on else None


def _meaning(value: object) -> float | str:
    """Return a choice such that it is the same however it was typed or recorded: 1e-3 and 0.001, true and True."""
    text = str(value).strip("'\"").lower()
    try:
        return float(text)
    except ValueError:
        return text


def parse_axis(key: str, text: str, *, word: str) -> Axis | None:
    """Return the axis that *text* is: ``a..b``, ``log(a..b)`` or ``{x,y,z}``; None where it is a plain value.

    Two whole numbers are a range of whole numbers. Raises `ConfigError`, naming *word*, for a range that is upside
    down, a logarithm of what is not positive, and values that are empty or twice.

    >>> parse_axis("workload.args.lr", "log(1e-4..1e-1)", word="").high
    0.1
    """
    if found := _LISTED.fullmatch(text):
        choices = tuple(each.strip() for each in found["values"].split(","))
        require(all(choices), f"{word}: one of its values is empty: write {{64,128}}")
        require(len(set(map(_meaning, choices))) == len(choices), f"{word}: a value stands there twice: leave one out")
        return Axis(key=key, choices=choices)
    if (found := _RANGE.fullmatch(text)) is None:
        return None
    low, high = float(found["low"]), float(found["high"])
    require(math.isfinite(low) and math.isfinite(high), f"{word}: a range has an end: write log(1e-4..1e-1) or 1..8")
    require(low < high, f"{word}: the range is upside down or empty: the smaller number stands first")
    is_log = found["log"] is not None
    require(not is_log or low > 0, f"{word}: there is no logarithm of {low:g}: begin above 0, or leave log() out")
    is_whole = all(_WHOLE.fullmatch(found[end]) for end in ("low", "high"))
    return Axis(key=key, low=low, high=high, is_log=is_log, is_whole=is_whole)


def grid_size(axes: Sequence[Axis]) -> int | None:
    """Return how many points there are; None where they are without end."""
    sizes = [None if axis.values is None else len(axis.values) for axis in axes]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def grid(axes: Sequence[Axis]) -> Iterator[Mapping[str, Value]]:
    """Yield all points of axes with an end, the last axis changing fastest."""
    for values in itertools.product(*(axis.values or () for axis in axes)):
        yield {axis.key: value for axis, value in zip(axes, values, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The definition of a study: what is run, what is searched, how, and how long.

    The runs of the experiment `study` are its points. `settings` and `program` are the words of the command line with
    the space in them, as typed in the folder `project`. Study, metric and goal are what these say, once it is written.
    """

    project: str
    settings: list[str]
    program: list[str] | None
    runs: int
    study: str = ""
    metric: str = ""
    goal: Goal = Goal.max
    in_flight: int = 4
    sampler: SamplerName = SamplerName.tpe
    pruner: PrunerName = PrunerName.none
    takes_partial: bool = False  # the last value of a run that ran out of time counts
    until: str | None = None  # ISO 8601, local time unless it says another: nothing is submitted from then on
    seed: int = 0  # of the sampler
    chain: list[str] | None = None  # settings of the job that takes the next look; None: there is none
    is_stopped: bool = False
    command_line: list[str] = field(default_factory=list)  # that began it: recorded in each run

    def __post_init__(self) -> None:
        for option, value in (("--runs", self.runs), ("--in-flight", self.in_flight)):
            require(value >= 1, f"{option} {value}: at least 1")
        if self.until is not None:
            self.ends_at()

    @property
    def is_same_as(self) -> tuple[object, ...]:
        """What makes two definitions one study: all but how long it goes on, and how the next point is chosen."""
        return self.study, self.project, self.settings, self.program, self.metric, self.goal

    def ends_at(self) -> float:
        """Return the unix seconds from which on nothing is submitted, infinite where no time was given."""
        if self.until is None:
            return math.inf
        try:
            return datetime.fromisoformat(self.until).timestamp()
        except ValueError:
            raise ConfigError(f"--until {self.until}: write a time as 2026-12-24T08:00") from None


def check_space(search: Search, axes: Sequence[Axis]) -> None:
    """Raise `ConfigError` where the sampler of *search* cannot search *axes*."""
    if search.sampler is SamplerName.grid:
        endless = next((axis.name for axis in axes if axis.values is None), None)
        require(endless is None, f"--sampler grid: {endless} has no end of values: list them, as {{0.01,0.1}}")
        size = grid_size(axes)
        require(
            size is None or size <= search.runs,
            f"--sampler grid: the space has {size} points and --runs is {search.runs}: raise it, or take --sampler tpe",
        )
    if search.sampler is SamplerName.cmaes:
        named = next((axis.name for axis in axes if axis.choices), None)
        require(named is None, f"--sampler cmaes: {named} has choices, and it searches numbers alone: take tpe")
        require(len(axes) > 1, "--sampler cmaes: one axis is too few for it: take tpe")
