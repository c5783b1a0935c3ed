"""One condition on runs, and what meets it: pure."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hpcml.errors import StoreError
from hpcml.states import State
from hpcml.store.times import Span, moment_of, parse_duration_s, parse_moment

_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = ("=", "!=", "~", *_ORDER)
MOMENTS = ("submitted_at", "t_start", "t_end")  # keys under which a time is found: ISO 8601 or unix seconds
AGE = "age"  # seconds since a run was submitted, else since it started
Meets = Callable[[object], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One condition. `op` is one of = != < <= > >= and ~, which searches for a regular expression."""

    key: str
    op: str
    value: str  # as typed; it becomes a number or a time where it is compared with one

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise StoreError(f"filter operator {self.op!r} is unknown: use one of {' '.join(OPERATORS)}")
        if self.op == "~":
            try:
                re.compile(self.value)
            except (re.error, RecursionError, OverflowError) as error:
                raise StoreError(f"filter {str(self)!r}: {self.value!r} is no regular expression: {error}") from error
        if self.key == "state" and self.op in ("=", "!=") and self.value.upper() not in State.__members__:
            near = difflib.get_close_matches(self.value.upper(), State.__members__) or State.__members__
            raise StoreError(f"filter {str(self)!r}: {self.value!r} is no state: choose {', '.join(near)}")

    def __str__(self) -> str:
        return f"{self.key}{self.op}{self.value}"


def meets(condition: Filter, *, now: datetime) -> Meets:
    """Return what tells whether a run that has some value under the key meets *condition*; None is what it has not.

    Numbers compare as numbers, times as times, texts without regard to case, and of a list one item is enough. What is
    None, or an empty list, meets only ``=none`` and each ``!=`` but that. *now* gives times without a zone theirs.
    """
    if condition.op == "~":
        expression = re.compile(condition.value)
        one: Meets = lambda stored: stored is not None and expression.search(_text(stored)) is not None  # noqa: E731
    elif condition.key in MOMENTS:
        one = _meets_moment(condition, now)
    elif condition.op in ("=", "!="):
        is_equal = _equal_to(condition)
        one = lambda stored: is_equal(stored) is (condition.op == "=")  # noqa: E731
    else:
        one = _meets_order(condition)
    of_all = all if condition.op == "!=" else any
    return lambda stored: of_all(map(one, stored or [None])) if isinstance(stored, list) else one(stored)


def sorted_by(values: Mapping[int, object], ids: list[int], *, descending: bool) -> list[int]:
    """Return *ids* in the order of their values: numbers before texts, those without any value last either way."""

    def place(run_id: int) -> tuple[bool, Any]:
        value = values.get(run_id)
        is_text = not isinstance(value, int | float)
        return is_text, _text(value) if is_text else value

    having = [run_id for run_id in ids if not is_missing(values.get(run_id))]
    lacking = [run_id for run_id in ids if is_missing(values.get(run_id))]
    return sorted(having, key=place, reverse=descending) + lacking


def is_missing(value: object) -> bool:
    """Whether *value* has no place in any order."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _is_none(word: str) -> bool:
    return word.casefold() in ("none", "null", "")


def _equal_to(condition: Filter) -> Meets:
    wanted, number = condition.value.casefold(), _number(condition)
    wants_none = _is_none(condition.value)

    def is_equal(stored: object) -> bool:
        if stored is None:
            return wants_none
        if isinstance(stored, int | float) and not isinstance(stored, bool):
            return number is not None and stored == number
        return _text(stored).casefold() == wanted

    return is_equal


def _meets_order(condition: Filter) -> Meets:
    compare, number = _ORDER[condition.op], _number(condition)

    def is_in_order(stored: object) -> bool:
        if stored is None:
            return False
        if isinstance(stored, int | float):
            if number is None:
                raise StoreError(f"filter {str(condition)!r}: {condition.key} is a number, {condition.value!r} is none")
            return compare(stored, number)
        return compare(_text(stored), condition.value)

    return is_in_order


def _meets_moment(condition: Filter, now: datetime) -> Meets:
    """Compare with the beginning of what was typed; equal is all that lies within it: a day, a minute."""
    if condition.op in ("=", "!=") and _is_none(condition.value):
        return lambda stored: (stored is None) is (condition.op == "=")
    span: Span = parse_moment(condition.value, now=now, where=f"filter {str(condition)!r}")

    def is_there(stored: object) -> bool:
        at = moment_of(stored)
        if condition.op in ("=", "!="):
            return (at is not None and span.begin_s <= at < span.end_s) is (condition.op == "=")
        return at is not None and _ORDER[condition.op](at, span.begin_s)

    return is_there


def _number(condition: Filter) -> float | None:
    try:
        return float(condition.value)
    except ValueError:
        # 2h30m, where the key says that its numbers are seconds
        return parse_duration_s(condition.value) if condition.key == AGE or condition.key.endswith("_s") else None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
