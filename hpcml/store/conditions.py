"""The language of conditions, ``precision=tf32 and (val_accuracy>0.9 or tag=paper)``: read, never evaluated as code.

    condition   = either
    either      = every { "or" every }
    every       = negated { "and" negated }
    negated     = "not" negated | "(" either ")" | comparison
    comparison  = key operator value | key ["not"] "in" "(" value { "," value } ")"

A value without quotes goes on to the next ``and`` or ``or``, the bracket that closes, or the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hpcml.errors import StoreError
from hpcml.precision import ALIASES
from hpcml.store.filters import Filter, meets

_PRECISIONS = ("precision", "precision.name", "precision_effective")  # keys of what may be typed as an alias
_OPERATOR = re.compile(r"!=|<=|>=|==|=|<|>|~")
_KEY = re.compile(r"[^=!<>~\s()\"',][^=!<>~\s\"',]*")
_JOIN = re.compile(r"(and|or)(?=[\s(]|$)", re.IGNORECASE)
_NOT = re.compile(r"not(?=[\s(])\s*", re.IGNORECASE)
_IN = re.compile(r"(?P<no>not\s+)?in\s*\(", re.IGNORECASE)
_RUN_ON = re.compile(r"\s[^=!<>~\s()]+\s*(?:!=|<=|>=|==|=|<|>|~)")
_QUOTES = ("'", '"')
_EXAMPLE = "precision=tf32 and val_accuracy>0.9"
_DEEPEST = 50  # brackets and nots in each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """All of them hold; of none, that is so."""

    of: Sequence[Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Either:
    """One of them holds."""

    of: Sequence[Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Negated:
    """It does not hold, be it that the run has no such value."""

    of: Condition


Condition = Filter | Every | Either | Negated


def parse_condition(text: str) -> Condition:
    """Return what *text* says; `StoreError` tells, in one line, at which place it says nothing."""
    reader = _Reader(text)
    condition = reader.either()
    if not reader.is_at_end:
        raise reader.refusal("expected 'and', 'or' or the end")
    return condition


def meeting(
    condition: Condition, ids: Collection[int], values: Callable[[str], Mapping[int, Any]], *, now: datetime
) -> set[int]:
    """Return those of *ids* that meet *condition*; *values* gives what all have under a key, absent where they lack it.

    *now* gives times without a zone theirs.
    """
    match condition:
        case Filter():
            under, is_met = values(condition.key), meets(condition, now=now)
            return {run_id for run_id in ids if is_met(under.get(run_id))}
        case Negated():
            return set(ids) - meeting(condition.of, ids, values, now=now)
        case Either():
            return {run_id for part in condition.of for run_id in meeting(part, ids, values, now=now)}
        case Every():
            for part in condition.of:
                ids = meeting(part, ids, values, now=now)
    return set(ids)


class _Reader:
    """A text and how far it was read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._skip()

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._text)

    def refusal(self, what: str, at: int | None = None) -> StoreError:
        """Return the error that points at the place reached, or at *at*."""
        at = self._at if at is None else at
        rest = self._text[at:]
        shown = rest if len(rest) <= 20 else f"{rest[:17]}..."
        place = f"at character {at + 1}, {shown!r}" if rest.strip() else "at its end"
        return StoreError(f"condition {self._text!r}: {what} {place}; write it as in '{_EXAMPLE}'")

    def either(self) -> Condition:
        parts = [self._every()]
        while self._take_word("or"):
            parts.append(self._every())
        return parts[0] if len(parts) == 1 else Either(of=tuple(parts))

    def _every(self) -> Condition:
        parts = [self._negated()]
        while self._take_word("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else Every(of=tuple(parts))

    def _negated(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.refusal(f"more than {_DEEPEST} brackets in each other")
        try:
            if match := _NOT.match(self._text, self._at):
                self._at = match.end()
                return Negated(of=self._negated())
            if not self._take("("):
                return self._comparison()
            inside = self.either()
            if not self._take(")"):
                raise self.refusal("expected ')'")
            return inside
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        key = self._key()
        if match := _IN.match(self._text, self._at):
            self._at = match.end()
            self._skip()
            found = Either(of=tuple(_filter(key, "=", value) for value in self._list()))
            return Negated(of=found) if match["no"] else found
        operator = _OPERATOR.match(self._text, self._at)
        if operator is None:
            raise self.refusal(f"after {key!r} expected one of = != < <= > >= ~ in")
        self._at = operator.end()
        self._skip()
        op = "=" if operator[0] == "==" else operator[0]
        value = self._value(closing=")")
        if not value and op not in ("=", "!="):
            raise self.refusal(f"after {key}{op} expected a value")
        return _filter(key, op, value)

    def _key(self) -> str:
        if self._text[self._at : self._at + 1] in _QUOTES:
            key = self._quoted()
        else:
            match = _KEY.match(self._text, self._at)
            if match is None or _JOIN.fullmatch(match[0]):
                raise self.refusal("expected what the condition is about")
            key = match[0][: _balanced(match[0])]
            self._at += len(key)
            self._skip()
        if not key:
            raise self.refusal("expected what the condition is about")
        return key

    def _list(self) -> list[str]:
        values = []
        while True:
            is_quoted = self._text[self._at : self._at + 1] in _QUOTES
            value = self._value(closing=",)")
            if not value and not is_quoted:
                raise self.refusal("expected a value")
            values.append(value)
            if self._take(")"):
                return values
            if not self._take(","):
                raise self.refusal("expected ',' or ')'")

    def _value(self, *, closing: str) -> str:
        if self._text[self._at : self._at + 1] in _QUOTES:
            return self._quoted()
        begin = self._at
        end = begin + _unquoted(self._text[begin:], closing)
        value = self._text[begin:end].rstrip()
        if run_on := _RUN_ON.search(value):
            raise self.refusal("expected 'and' or 'or', or the value in quotes,", begin + run_on.start() + 1)
        self._at = begin + len(value)
        self._skip()
        return value

    def _quoted(self) -> str:
        mark = self._text[self._at]
        match = re.compile(rf"{mark}((?:[^{mark}\\]|\\.)*){mark}", re.DOTALL).match(self._text, self._at)
        if match is None:
            raise self.refusal(f"no {mark} closes what begins")
        self._at = match.end()
        self._skip()
        return match[1].replace(f"\\{mark}", mark)  # any other \ stays, since expressions are full of them

    def _take(self, character: str) -> bool:
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        self._skip()
        return True

    def _take_word(self, word: str) -> bool:
        match = _JOIN.match(self._text, self._at)
        if match is None or match[1].lower() != word:
            return False
        self._at = match.end()
        self._skip()
        return True

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


def _unquoted(text: str, closing: str) -> int:
    """Return how much of *text* is one value: to a joining word, or one of *closing* outside of all brackets."""
    depth = 0
    for at, character in enumerate(text):
        is_new_word = at == 0 or text[at - 1].isspace()
        if depth == 0 and ((is_new_word and _JOIN.match(text, at)) or character in closing):
            return at
        depth += (character == "(") - (character == ")")
    return len(text)


def _balanced(text: str) -> int:
    """Return how much of *text* comes before a bracket that it does not open."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return at
    return len(text)


def _filter(key: str, op: str, value: str) -> Filter:
    if key in _PRECISIONS and op in ("=", "!=") and value.casefold() in ALIASES:
        value = ALIASES[value.casefold()].name  # the store has the name that the alias stands for
    return Filter(key=key, op=op, value=value)
