"""A share as a bar of text: eighths of a character where the terminal has them, else whole ones."""

from __future__ import annotations

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_PLAIN = "#"


def bar(share: float | None, *, width: int, is_plain: bool) -> str:
    """Return *share* of *width* characters, at most all of them; "" for None."""
    if share is None or width < 1:
        return ""
    filled = max(0.0, min(1.0, share)) * width
    if is_plain:
        return _PLAIN * round(filled)
    eighths = round(filled * 8)
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def can_draw(encoding: str) -> bool:
    """Tell whether a terminal of *encoding* has these characters."""
    try:
        _EIGHTHS.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
