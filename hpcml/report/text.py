"""Values as short text for people: numbers with significant digits, spans of time, sizes, names made harmless.

Every format uses these functions, so that a value reads the same everywhere. None is always "".
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcml.analysis.compare.result import Interval


UNSAFE_CATEGORIES = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # controls, bidi and invisible marks, lone surrogates, line separators

_LONGEST_WORD, _SHOWN = 500, 100
_HUGE = 1e12  # from here on, and with more decimals, a number is written in powers of ten
_MOST_DECIMALS = 9
_LARGE, _FEWEST_DECIMALS = 1e6, -3  # and so is one of which the last four digits or more mean nothing
_SMALL = 1e-3  # six decimals show no more than three of its digits

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def safe(value: object) -> str:
    """Return *value* as one line in which control characters are escaped: a name must not move a terminal's cursor.

    Names, tags and messages come from other programs and users. Each renderer escapes what its own format reads
    besides.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in UNSAFE_CATEGORIES
        else character
        for character in text
    )


def safe_lines(text: str) -> str:
    """Return *text* as `safe` does, but with its line feeds and tabs."""
    if text.isprintable():
        return text
    return "".join(part if part in ("\n", "\t") else safe(part) for part in re.split(r"([\n\t])", text))


def shortened(text: str) -> str:
    """Return *text* with every word of more than 500 characters cut, and its length said.

    >>> shortened(f"model={'a' * 5000} is not there")[96:]
    'aaaa... (5006 characters) is not there'
    """
    return re.sub(
        rf"\S{{{_LONGEST_WORD + 1},}}", lambda found: f"{found[0][:_SHOWN]}... ({len(found[0])} characters)", text
    )


def number(value: float | None, digits: int = 4) -> str:
    """Return *value* with *digits* significant digits, or "" for None; nan and infinity as Python writes them.

    >>> number(0.0123), number(123.4), number(1e-7)
    ('0.01230', '123.4', '1.00e-07')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{max(0, digits - 2)}e}"
    decimals = max(0, digits - 1 - (math.floor(math.log10(abs(value))) if value else 0))
    return f"{value:.{decimals}f}"


def decimals_for(spread: float | None, value: float | None) -> int:
    """Return how many decimals of *value* to show for an uncertainty of *spread*: two of its digits, at most 6.

    More only for a value that six would not show; -2 is hundreds. Without a spread (None or 0) four digits of the
    value. The rule of two digits is that of the GUM (JCGM 100:2008, 7.2.6).

    >>> decimals_for(0.012, 0.93)
    3
    """
    scale = spread or value or 1.0
    if not math.isfinite(scale):
        return 4
    wanted = (1 if spread else 3) - math.floor(math.log10(abs(scale)))
    most = 5 - math.floor(math.log10(abs(value))) if value and abs(value) < _SMALL else 6
    return min(most, wanted)


def to_decimals(value: float, decimals: int, *, signed: bool = False) -> str:
    """Return *value* with *decimals* decimals, or in powers of ten where that would be a long row of digits.

    >>> to_decimals(0.0123, 3, signed=True), to_decimals(-1e300, -297), to_decimals(3.25e-12, 14)
    ('+0.012', '-1.000e+300', '3.25e-12')
    """
    size, sign = abs(value), "+" * signed
    is_long = size >= _HUGE or (size >= _LARGE and decimals < _FEWEST_DECIMALS) or decimals > _MOST_DECIMALS
    if not is_long or not value or not math.isfinite(value):
        shown = max(0, decimals) if decimals <= _MOST_DECIMALS else 0  # of zero
        return f"{value:{sign}.{shown}f}"
    return f"{value:{sign}.{max(0, min(_MOST_DECIMALS, decimals + math.floor(math.log10(size))))}e}"


def p_value(value: float | None) -> str:
    """Return a p value with three decimals, or "" for None.

    >>> p_value(0.0001), p_value(0.04)
    ('< 0.001', '0.040')
    """
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """Return seconds in their two largest units, or "" for None.

    >>> duration(5), duration(3700), duration(90000)
    ('5.0s', '1h01m', '1d01h')
    """
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    for unit_s, unit, lower_s, lower in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s}{unit}{whole % unit_s // lower_s:02d}{lower}"
    return f"{whole}s"


def ends(interval: Interval | None, decimals: int, *, signed: bool = False) -> str:
    """Return "[low, high]", or "" for None. *signed* gives positive numbers a sign, too."""
    if interval is None:
        return ""
    low, high = (to_decimals(end, decimals, signed=signed) for end in (interval.low, interval.high))
    return f"[{low}, {high}]"


def ratio_decimals(interval: Interval | None) -> int:
    """Return how many decimals a ratio near 1 and its interval need: one digit of its width, from 2 up to 5.

    With two alone, 1.008 [1.004, 1.011] would be 1.01 [1.00, 1.01], and nobody could tell whether 1 lies inside.
    """
    width = 0.0 if interval is None else interval.high - interval.low
    return max(2, min(5, -math.floor(math.log10(width)))) if 0 < width < math.inf else 2


def ratio(value: float, interval: Interval | None) -> str:
    """Return a ratio with its interval, where there is one: "1.25 [1.22, 1.28]"."""
    decimals = ratio_decimals(interval)
    return f"{to_decimals(value, decimals)} {ends(interval, decimals)}".strip()


def size(count: int) -> str:
    """Return a number of bytes in binary units.

    >>> size(1536), size(10)
    ('1.5 KiB', '10 B')
    """
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
