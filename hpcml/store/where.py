"""The language of conditions (``hpcml runs --where``), e.g. ``precision=tf32 and (val_accuracy>0.9 or tag=paper)``.

Three parts: the parser (`parse_condition`), which never evaluates text as code; the meaning of each operator for
numbers, times, texts and lists (`meets`, `meeting`); times and spans as people type them (`parse_moment`,
`parse_duration_s`).

    condition   = either
    either      = every { "or" every }
    every       = negated { "and" negated }
    negated     = "not" negated | "(" either ")" | comparison
    comparison  = key operator value | key ["not"] "in" "(" value { "," value } ")"

A value without quotes ends at the next ``and`` or ``or``, at the bracket that closes, or at the end of the text.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hpcml.errors import ConfigError, StoreError
from hpcml.model.precision import ALIASES
from hpcml.model.record_keys import unix_time
from hpcml.model.state import State
from hpcml.spelling import nearest
from hpcml.units import parse_walltime_s

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
    """One comparison. `op` is one of = != < <= > >= and ~, which searches for a regular expression.

    `Filter` is what the parser makes of ``key op value``, and what code builds that needs no text. Making one raises
    `StoreError` for an unknown operator, an empty value, a value of ``~`` that is no regular expression, and a state
    that does not exist: all are mistakes that would otherwise select other runs, or none.

    >>> str(Filter(key="seed", op="<=", value="3"))
    'seed<=3'
    """

    key: str
    op: str
    value: str  # as typed; it becomes a number or a time where it is compared with one

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise StoreError(f"filter operator {self.op!r} is unknown: use one of {' '.join(OPERATORS)}")
        if not self.value:  # as of a variable of the shell that is not set
            raise StoreError(f"filter {str(self)!r} has no value: {self.key}=none is what has none")
        if self.op == "~":
            try:
                re.compile(self.value)
            except (re.error, RecursionError, OverflowError) as error:
                raise StoreError(f"filter {str(self)!r}: {self.value!r} is no regular expression: {error}") from error
        if self.key == "state" and self.op in ("=", "!=") and self.value.upper() not in State.__members__:
            near = nearest(self.value, State.__members__) or State.__members__
            raise StoreError(f"filter {str(self)!r}: {self.value!r} is no state: choose {', '.join(near)}")

    def __str__(self) -> str:
        return f"{self.key}{self.op}{self.value}"


def meets(condition: Filter, *, now: datetime) -> Meets:
    """Return a function that tells whether a value under the condition's key meets it; None stands for "no value".

    Numbers compare as numbers, times as times, texts without regard to case, and of a list one item is enough. No
    value, or an empty list, meets only ``=none``, and each ``!=`` but ``!=none``. Times without a zone are in the zone
    of *now*. An empty text is no value to ``=`` and ``!=``.

    The returned function raises `StoreError` where ``<`` and the like compare a number with a value that is none.
    `meets` itself raises it where the value under a key of `MOMENTS` is no time.

    >>> is_met = meets(Filter(key="val_accuracy", op=">", value="0.9"), now=datetime.now(tz=UTC))
    >>> is_met(0.93), is_met(0.5), is_met(None)
    (True, False, False)
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


def sorted_by(values: Mapping[str, object], ids: list[str], *, descending: bool) -> list[str]:
    """Return *ids* sorted by their values: numbers before texts; those without a value last in either direction.

    The sort is stable: runs with equal values keep the order of *ids*. Values that are no numbers, such as texts and
    lists, sort by their text.
    """

    def place(run_id: str) -> tuple[bool, Any]:
        value = values.get(run_id)
        is_text = not isinstance(value, int | float)
        return is_text, _text(value) if is_text else value

    having = [run_id for run_id in ids if not is_missing(values.get(run_id))]
    lacking = [run_id for run_id in ids if is_missing(values.get(run_id))]
    return sorted(having, key=place, reverse=descending) + lacking


def is_missing(value: object) -> bool:
    """Whether *value* cannot be sorted: None or nan."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _is_none(word: str) -> bool:
    return word.casefold() in ("none", "null")


def _equal_to(condition: Filter) -> Meets:
    wanted, number = condition.value.casefold(), _number(condition)
    wants_none = _is_none(condition.value)

    def is_equal(stored: object) -> bool:
        if stored is None or stored == "":
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
    """Return the comparison with a time: by the beginning of what was typed.

    Equal is all within it (a day, a minute). For ``<``, ``<=``, ``>`` and ``>=`` the first second of what was typed
    counts, so ``submitted_at>=2026-11-01`` includes that day. A run without a time meets ``!=`` and ``=none`` only.
    """
    if condition.op in ("=", "!=") and _is_none(condition.value):
        return lambda stored: (stored is None) is (condition.op == "=")
    span: TimeSpan = parse_moment(condition.value, now=now, where=f"filter {str(condition)!r}")

    def is_there(stored: object) -> bool:
        at = moment_of(stored)
        if condition.op in ("=", "!="):
            return (at is not None and span.begin_s <= at < span.end_s) is (condition.op == "=")
        return at is not None and _ORDER[condition.op](at, span.begin_s)

    return is_there


def _number(condition: Filter) -> float | None:
    try:
        number = float(condition.value)
        return int(condition.value) if number.is_integer() and condition.value.isdecimal() else number
    except ValueError:
        # 2h30m, where the key says that its numbers are seconds
        return parse_duration_s(condition.value) if condition.key == AGE or condition.key.endswith("_s") else None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_PRECISIONS = ("precision", "precision.name", "precision_effective")  # keys of what may be typed as an alias
_TURNED = re.compile(r"=([<>!])")  # a mistake; a text that begins so is written in quotes
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
    """All of the conditions hold; also true for none."""

    of: Sequence[Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Either:
    """At least one of the conditions holds."""

    of: Sequence[Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Negated:
    """The condition does not hold; also true for a run without such a value."""

    of: Condition


Condition = Filter | Every | Either | Negated


def parse_condition(text: str) -> Condition:
    """Return the condition that *text* states; raises `StoreError` with the place of the first mistake.

    Operators bind as in Python: ``not`` before ``and`` before ``or``. Words may be in upper or lower case. Parentheses
    may be nested 50 deep; more are refused, since the parser calls itself for each of them. ``key in (a, b)`` becomes
    an `Either` of two comparisons, and an alias of a precision the name it stands for.

    Whether a run has anything under the key is not looked at here but by `hpcml.store.keys.check_known`.

    >>> parse_condition("seed=1")
    Filter(key='seed', op='=', value='1')
    """
    reader = _Reader(text)
    condition = reader.either()
    if not reader.is_at_end:
        raise reader.refusal("expected 'and', 'or' or the end")
    return condition


def keys_of(condition: Condition) -> set[str]:
    """Return the keys that *condition* compares."""
    match condition:
        case Filter():
            return {condition.key}
        case Negated():
            return keys_of(condition.of)
    return {key for part in condition.of for key in keys_of(part)}


def meeting(
    condition: Condition, uids: Collection[str], values: Callable[[str], Mapping[str, Any]], *, now: datetime
) -> set[str]:
    """Return those of *uids* that meet *condition*.

    *values* returns, for a key, the value of each run; a run without one is absent. Times without a zone are in the
    zone of *now*. Raises what `meets` raises.
    """
    match condition:
        case Filter():
            under, is_met = values(condition.key), meets(condition, now=now)
            return {uid for uid in uids if is_met(under.get(uid))}
        case Negated():
            return set(uids) - meeting(condition.of, uids, values, now=now)
        case Either():
            return {uid for part in condition.of for uid in meeting(part, uids, values, now=now)}
        case Every():
            for part in condition.of:
                uids = meeting(part, uids, values, now=now)
    return set(uids)


class _Reader:
    """The parser: a text and the place reached in it.

    Each method reads one rule of the grammar above, moves the place behind it, and raises `StoreError` where the text
    does not fit. Blanks behind each word are skipped at once, so the place is always at a word or at the end.
    """

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
        if (turned := _TURNED.match(operator[0] + self._text[self._at : self._at + 1])) is not None:
            raise self.refusal(f"after {key!r}: write {turned[1]}= in place of ={turned[1]},")
        self._skip()
        op = "=" if operator[0] == "==" else operator[0]
        return _filter(key, op, self._value(closing=")"))

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
            values.append(self._value(closing=",)"))
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
    """Return the length of the value at the beginning of *text*.

    It ends before a joining word, or one of *closing* outside of all brackets.
    """
    depth = 0
    for at, character in enumerate(text):
        is_new_word = at == 0 or text[at - 1].isspace()
        if depth == 0 and ((is_new_word and _JOIN.match(text, at)) or character in closing):
            return at
        depth += (character == "(") - (character == ")")
    return len(text)


def _balanced(text: str) -> int:
    """Return the length of *text* before the first closing bracket that it does not open."""
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


_MOMENT = re.compile(
    r"(?P<year>\d{4})(-(?P<month>\d{1,2})(-(?P<day>\d{1,2})([T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})"
    r"(:(?P<second>\d{2})(\.\d+)?)?\s*(?P<zone>Z|[+-]\d{2}:?\d{2})?)?)?)?",
    re.IGNORECASE,
)
_DAYS = {"today": 0, "yesterday": 1}
_UNIT_S = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(w|d|h|min|m|s)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A span of time in unix seconds, without its end.

    A moment that was typed less exactly than to the second is a span: a day, an hour and minute, a year.
    """

    begin_s: float
    end_s: float


def parse_moment(text: str, *, now: datetime, where: str) -> TimeSpan:
    """Return the span that ``2026-11-01``, ``2026-11-01 08:30``, ``2026-11``, ``today``, ``now`` or unix seconds name.

    Without a zone it is the zone of *now*; where that has none, this machine's, with its rules of summer time. Raises
    `StoreError`, whose message begins with *where*, for anything else.

    >>> span = parse_moment("2026-11-01", now=datetime(2026, 11, 22, tzinfo=UTC), where="--since")
    >>> span.end_s - span.begin_s
    86400.0
    """
    word = text.strip().casefold()
    if word == "now":
        return TimeSpan(begin_s=now.timestamp(), end_s=now.timestamp() + 1)
    if word in _DAYS:
        midnight = _local(now, now.year, now.month, now.day) - timedelta(days=_DAYS[word])
        return _span(midnight, midnight + timedelta(days=1))
    match = _MOMENT.fullmatch(word)
    if match is None:
        try:
            return TimeSpan(begin_s=float(word), end_s=float(word) + 1)
        except ValueError:
            raise StoreError(f"{where}: {text!r} is no time: write 2026-11-01, '2026-11-01 08:30' or today") from None
    part = {name: int(value) for name, value in match.groupdict().items() if value and name != "zone"}
    try:
        begin = _local(now, part["year"], part.get("month", 1), part.get("day", 1))
        begin = begin.replace(hour=part.get("hour", 0), minute=part.get("minute", 0), second=part.get("second", 0))
        if match["zone"]:
            begin = begin.replace(tzinfo=datetime.fromisoformat(f"2000-01-01T00:00:00{match['zone'].upper()}").tzinfo)
        return _span(begin, _end(begin, part))
    except (ValueError, OverflowError) as error:
        raise StoreError(f"{where}: {text!r} is no time: {error}") from error


def parse_duration_s(text: str) -> float | None:
    """Return seconds from ``7d``, ``2h30m``, ``1.5h``, ``2w`` or ``HH:MM:SS``; None for anything else.

    ``m`` and ``min`` are minutes; months and years have no word, for their length varies. All forms of a walltime are
    taken too (`hpcml.units.parse_walltime_s`).

    >>> parse_duration_s("2h30m")
    9000.0
    """
    given = text.strip()
    total_s, at = 0.0, 0
    while part := _PART.match(given, at):
        total_s += float(part[1]) * _UNIT_S[part[2][0].lower()]
        at = part.end()
    if given and at == len(given):
        return total_s
    try:
        return float(parse_walltime_s(given))
    except ConfigError:
        return None


def moment_of(stored: object) -> float | None:
    """Return unix seconds of a stored time: unix seconds, or ISO 8601 (UTC without a zone).

    None where it is neither.

    >>> moment_of("1970-01-02T00:00:00")
    86400.0
    """
    if isinstance(stored, int | float):
        return float(stored)
    return unix_time(str(stored))


def _local(now: datetime, year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, tzinfo=now.tzinfo)


def _end(begin: datetime, part: dict[str, int]) -> datetime:
    if "minute" in part:
        return begin + timedelta(seconds=1 if "second" in part else 60)
    if "day" in part:
        return begin + timedelta(days=1)
    if "month" in part:
        return (begin + timedelta(days=32)).replace(day=1)
    return begin.replace(year=begin.year + 1)


def _span(begin: datetime, end: datetime) -> TimeSpan:
    return TimeSpan(begin_s=begin.timestamp(), end_s=end.timestamp())
