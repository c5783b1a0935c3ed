"""Values as short text for people, safe to put on a terminal, into Markdown or into a spreadsheet."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from hpcml.codec import Json
from hpcml.comparison import Interval

_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, bidi and invisible marks, lone surrogates, line separators
_MARKDOWN = re.compile(r"[\\`*|]|\](?=\()|(?<!\w)_|_(?!\w)|~~")  # not every character: the source is read as well


def safe(value: object) -> str:
    """Return *value* as one line in which control characters are spelt out: a name must not move the cursor."""
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _UNSAFE else character
        for character in str(value)
    )


def safe_markdown(value: object) -> str:
    """Return *value* for a Markdown table cell: nothing in it is markup, and it stays in its cell."""
    text = safe(value).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", text)


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table; *right* are the columns aligned to the right. Cells are taken as Markdown."""
    rule = ["---:" if column in right else "---" for column in range(len(headings))]
    return [f"| {' | '.join(line)} |" for line in (headings, rule, *rows)]


def number(value: float | None, digits: int = 4) -> str:
    """Return *value* with *digits* significant digits, or "" for None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{max(0, digits - 2)}e}"
    decimals = max(0, digits - 1 - (math.floor(math.log10(abs(value))) if value else 0))
    return f"{value:.{decimals}f}"


def decimals_for(spread: float | None, value: float | None) -> int:
    """Return how many decimals show a *value* whose uncertainty is *spread*: two digits of it, 6 decimals at most."""
    scale = spread or value or 1.0
    if not math.isfinite(scale):
        return 4
    wanted = (1 if spread else 3) - math.floor(math.log10(abs(scale)))
    return max(0, min(6, wanted))


def p_value(value: float | None) -> str:
    """Return a p value, or "" for None."""
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """Return a span of time in its two largest units, or "" for None."""
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
    """Return "[low, high]", or "" for None."""
    if interval is None:
        return ""
    sign = "+" if signed else ""
    return f"[{interval.low:{sign}.{decimals}f}, {interval.high:{sign}.{decimals}f}]"


def json_ready(value: Json) -> Json:
    """Return encoded *value* with what JSON has no number for as text: "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_ready(item) for item in value]
    return value
