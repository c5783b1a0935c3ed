"""Values as entries of a report's tables."""

from __future__ import annotations

import math

from hpcml.comparison import Interval, Verdict
from hpcml.report.plain_text import duration, ends, number
from hpcml.report.study.parts import Column, Entry, Tone

NOTHING = Entry(text="")
VERDICT_TONES: dict[Verdict, Tone] = {
    "equivalent": "good",
    "better": "good",
    "non-inferior": "good",
    "worse": "bad",
    "inconclusive": "doubt",
    "not as requested": "doubt",
}


def words(value: object, tone: Tone = "plain") -> Entry:
    """Return *value* as text, nothing for None."""
    return NOTHING if value is None else Entry(text=str(value), tone=tone)


def figure(value: float | None, digits: int = 4) -> Entry:
    """Return a number with *digits* significant digits; a whole number is shown whole."""
    if value is None:
        return NOTHING
    text = f"{value:d}" if isinstance(value, int) else number(value, digits)
    return Entry(text=text, order=float(value) if math.isfinite(value) else None)


def fixed(value: float | None, decimals: int, *, signed: bool = False) -> Entry:
    """Return a number with *decimals* decimals."""
    return NOTHING if value is None else Entry(text=f"{value:{'+' * signed}.{decimals}f}", order=value)


def share(value: float | None) -> Entry:
    """Return a share as per cent, without the sign that the heading has."""
    return NOTHING if value is None else Entry(text=number(value * 100, 3), order=value)


def between(interval: Interval | None, decimals: int, *, signed: bool = False) -> Entry:
    """Return an interval; it is sorted by its lower end."""
    return NOTHING if interval is None else Entry(text=ends(interval, decimals, signed=signed), order=interval.low)


def span(seconds: float | None) -> Entry:
    """Return a span of time."""
    return NOTHING if seconds is None else Entry(text=duration(seconds), order=seconds)


def text_column(title: str) -> Column:
    """Return a column of words."""
    return Column(title=title)


def number_column(title: str, unit: str = "") -> Column:
    """Return a column of numbers."""
    return Column(title=title, unit=unit, is_number=True)
