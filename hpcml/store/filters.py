"""Conditions on runs, as words and as values: pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcml.errors import StoreError
from hpcml.precision import ALIASES

_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = ("=", "!=", "~", *_ORDER)
_PRECISIONS = ("precision", "precision.name", "precision_effective")  # keys of what may be typed as an alias
_WORDS = re.compile(r"\s*([^=!<>~\s]+)\s*(!=|<=|>=|==|=|<|>|~)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One condition. `op` is one of = != < <= > >= and ~, which searches for a regular expression."""

    key: str
    op: str
    value: str  # as typed; it becomes a number where it is compared with one

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise StoreError(f"filter operator {self.op!r} is unknown: use one of {' '.join(OPERATORS)}")
        if self.op == "~":
            try:
                re.compile(self.value)
            except re.error as error:
                raise StoreError(f"filter {self}: {self.value!r} is no regular expression: {error}") from error

    def __str__(self) -> str:
        return f"{self.key}{self.op}{self.value}"


def parse_filter(text: str) -> Filter:
    """Return the condition in ``precision=tf32`` or ``val_accuracy>0.9``."""
    match = _WORDS.fullmatch(text)
    if match is None:
        raise StoreError(f"filter {text!r} is no condition: write it as precision=tf32 or 'val_accuracy>0.9'")
    key, op, value = match[1], "=" if match[2] == "==" else match[2], match[3]
    if key in _PRECISIONS and op in ("=", "!=") and value.casefold() in ALIASES:
        value = ALIASES[value.casefold()].name  # the store has the name that the alias stands for
    return Filter(key=key, op=op, value=value)


def matches(condition: Filter, stored: object) -> bool:
    """Whether a run that has *stored* under the key meets *condition*; None is what it has not.

    Numbers compare as numbers, texts without regard to case, and of a list one item is enough. What is None meets
    only ``=none`` and each ``!=`` but that.
    """
    if isinstance(stored, list):
        if condition.op == "!=":
            return all(matches(condition, item) for item in stored)
        return any(matches(condition, item) for item in stored)
    if condition.op in ("=", "!="):
        return _equal(stored, condition.value) is (condition.op == "=")
    if stored is None:
        return False
    if condition.op == "~":
        return re.search(condition.value, _text(stored)) is not None
    return _in_order(condition, stored)


def sorted_by(values: Mapping[int, object], ids: list[int], *, descending: bool) -> list[int]:
    """Return *ids* in the order of their values: numbers before texts, those without any value last either way."""

    def place(run_id: int) -> tuple[bool, Any]:
        value = values.get(run_id)
        is_text = not isinstance(value, int | float)
        return is_text, _text(value) if is_text else value

    having = [run_id for run_id in ids if not _is_missing(values.get(run_id))]
    lacking = [run_id for run_id in ids if _is_missing(values.get(run_id))]
    return sorted(having, key=place, reverse=descending) + lacking


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _equal(stored: object, wanted: str) -> bool:
    if stored is None:
        return wanted.casefold() in ("none", "null", "")
    if isinstance(stored, int | float) and not isinstance(stored, bool):
        number = _number(wanted)
        return number is not None and stored == number
    return _text(stored).casefold() == wanted.casefold()


def _in_order(condition: Filter, stored: object) -> bool:
    if isinstance(stored, int | float):
        number = _number(condition.value)
        if number is None:
            raise StoreError(f"filter {condition}: {condition.key} is a number, {condition.value!r} is none")
        return _ORDER[condition.op](stored, number)
    return _ORDER[condition.op](_text(stored), condition.value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
