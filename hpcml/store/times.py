"""Times and spans of time as people type them in conditions: pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hpcml.errors import ConfigError, StoreError
from hpcml.quantities import parse_walltime_s

_MOMENT = re.compile(
    r"(?P<year>\d{4})(-(?P<month>\d{1,2})(-(?P<day>\d{1,2})([T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})"
    r"(:(?P<second>\d{2})(\.\d+)?)?\s*(?P<zone>Z|[+-]\d{2}:?\d{2})?)?)?)?",
    re.IGNORECASE,
)
_DAYS = {"today": 0, "yesterday": 1}
_UNIT_S = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(w|d|h|min|m|s)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time in unix seconds, its end not in it."""

    begin_s: float
    end_s: float


def parse_moment(text: str, *, now: datetime, where: str) -> Span:
    """Return what ``2026-11-01``, ``2026-11-01 08:30``, ``2026-11``, ``today``, ``now`` or unix seconds stand for.

    Without a zone it is the zone of *now*; where that has none, this machine's, with its rules of summer time. What is
    no time raises `StoreError`, beginning with *where*.
    """
    word = text.strip().casefold()
    if word == "now":
        return Span(begin_s=now.timestamp(), end_s=now.timestamp() + 1)
    if word in _DAYS:
        midnight = _local(now, now.year, now.month, now.day) - timedelta(days=_DAYS[word])
        return _span(midnight, midnight + timedelta(days=1))
    match = _MOMENT.fullmatch(word)
    if match is None:
        try:
            return Span(begin_s=float(word), end_s=float(word) + 1)
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
    """Return seconds from ``7d``, ``2h30m``, ``1.5h``, ``2w`` or ``HH:MM:SS``; None for anything else."""
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
    """Return unix seconds of what the store has: such seconds, or ISO 8601; None where it is neither."""
    if isinstance(stored, int | float):
        return float(stored)
    try:
        moment = datetime.fromisoformat(str(stored))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


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


def _span(begin: datetime, end: datetime) -> Span:
    return Span(begin_s=begin.timestamp(), end_s=end.timestamp())
