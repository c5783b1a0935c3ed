"""The points of a sweep: every combination of the values given, in the order in which they were typed.

They are counted before any of them is made: ``range(1e9)`` is a few letters to type, and more memory than the machine
has.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep, ValueType

from hpcml.errors import ConfigError, require

MOST_RUNS = 100_000  # a few kB each while they are composed, a directory each afterwards
_VARIABLE = "HPCML_MAX_RUNS"


def most_runs(environ: Mapping[str, str]) -> int:
    """Return how many runs may be submitted at once: HPCML_MAX_RUNS, or 100,000.

    Raises `ConfigError` where it is no whole number from 1 on.
    """
    text = environ.get(_VARIABLE, "").strip()
    if text and not (text.isascii() and text.isdecimal() and 0 < len(text.lstrip("0")) <= 18):
        raise ConfigError(f"{_VARIABLE}={text}: give a whole number, 1 or more ({MOST_RUNS} unless it is set)")
    return int(text) if text else MOST_RUNS


def check_count(count: int, most: int, *, what: str) -> None:
    """Raise `ConfigError` where *count* runs are more than *most*; *what* would make them."""
    if count > most:
        number = f"{count:,}" if count < 10**15 else f"{Decimal(count):.0e}"
        raise ConfigError(
            f"{what} would make {number} runs, and {most:,} at once are allowed: sweep less, or raise {_VARIABLE}"
        )


def points(overrides: Sequence[Override], most: int) -> list[tuple[str, ...]]:
    """Return the words of each point, as Hydra's basic sweeper has them: of two words for one key the last counts.

    Raises `ConfigError` where they are none, or more than *most*, or two of them the same.
    """
    check_size(overrides, most)
    by_key = {override.get_key_element(): override for override in overrides}
    axes = [_words(key, override) for key, override in by_key.items()]
    return list(itertools.product(*axes))


def check_size(overrides: Sequence[Override], most: int) -> None:
    """Raise `ConfigError` where all combinations of the values are more than *most*, or without end."""
    by_key = {override.get_key_element(): override for override in overrides}
    sizes = [(_size(override), str(override.input_line)) for override in by_key.values()]
    require(all(size for size, _ in sizes), "the sweep has no points: one of its range() or glob() is empty")
    check_count(math.prod(size for size, _ in sizes), most, what=" ".join(word for size, word in sizes if size != 1))


def _words(key: str, override: Override) -> list[str]:
    if override.is_sweep_override():
        values = list(override.sweep_string_iterator())
        counts = Counter(value.strip("'\"") for value in values if value != "null")
        if again := next((text for text, count in counts.items() if count > 1), None):
            raise ConfigError(
                f"{override.input_line}: {again} stands there twice, and would make the same run again: leave one out "
                "(schedule.repeats=2 makes each run twice)"
            )
        return [f"{key}={value}" for value in values]
    return [key if override.value_type is None else f"{key}={override.get_value_element_as_str()}"]


def _size(override: Override) -> int:
    values = override.value()
    if isinstance(values, RangeSweep):
        return _steps(values, str(override.input_line))
    if isinstance(values, ChoiceSweep):
        return len(values.list)
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
        return sum(1 for _ in override.sweep_iterator())  # no more than there are files
    require(
        override.value_type is not ValueType.INTERVAL_SWEEP,
        f"{override.input_line}: an interval has no end of values: list them, or take range(START,STOP,STEP)",
    )
    return 1


def _steps(values: RangeSweep, word: str) -> int:
    start, stop, step = values.start or 0, values.stop or 0, values.step
    if not all(map(math.isfinite, (start, stop, step))) or step == 0:
        raise ConfigError(f"{word}: a range has an end, and steps that lead there, as range(0,10,2)")
    return max(0, math.ceil((Fraction(stop) - Fraction(start)) / Fraction(step)))
