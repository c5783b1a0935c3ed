"""A number as programs write it: in groups of three digits, in per cent, as a share."""

from __future__ import annotations

import re

from hpcml.model.metric_goal import is_rate
from hpcml.model.metric_sources import IN_CALL

_AROUND = " \t,;:|%()[]{}'\""  # what \S+ takes, too, in "loss 0.5, acc 71%"
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")  # 17,000,000; 1,234 is a number with decimals, too
_SURELY_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:(?:,\d{3})+\.\d*|(?:,\d{3}){2,})")
_SHARE = re.compile(r"(\d{1,15})\s?/\s?(\d{1,15})")  # so many out of so many
_CALL = re.compile(rf"{IN_CALL}(?:([^\[\],()\s]+)|\[([^\[\],()\s]+)\])\s*(?:[,)]|$)")
_BEGINS = re.compile(r"[-+]?\.?\d|[*#]{2,}")  # what is meant to be a number, or had no room for one
COLUMN = re.compile(r"[A-Za-z_][\w./@%-]*(?: [A-Za-z_][\w./@%-]*)*")  # what names one in a line between commas
MISSING = frozenset({"", "-", "--", "---", "na", "n/a", "#n/a", "none", "null", "nil", "missing", "?", ".", "_"})


def plain(number: str, metric: str | None = None) -> str:
    """Return a *number* without what stands around it, and without commas between groups of three digits.

    Where it may have a comma for its point, as ``1,234`` may that a program of another language prints, it is left as
    it is, but for a rate (by the name of its *metric*) and for a step, which has no decimals (None).

    >>> plain("(975,159.5)", "loss"), plain("17,000,000", "loss"), plain("975,159", "lookups_per_s")
    ('975159.5', '17000000', '975159')
    >>> plain("1,234", "loss"), plain("0,123", "lookups_per_s"), plain("1,000")
    ('1,234', '0,123', '1000')

    Of a library's number, as it shows itself, the number is left; of several there is none.

    >>> plain("tensor(0.69, grad_fn=<DivBackward0>)"), plain("np.float64(0.5)})"), plain("tensor([0.1, 0.2])")
    ('0.69', '0.5', 'tensor([0.1, 0.2')
    """
    if "(" in number and (shown := _CALL.match(number.lstrip(_AROUND))) is not None:
        number = shown[1] or shown[2]
    stripped = number.strip(_AROUND)
    if _GROUPED.fullmatch(stripped) is None or not (
        _SURELY_GROUPED.fullmatch(stripped) is not None or metric is None or is_rate(metric)
    ):
        return stripped
    return stripped.replace(",", "")


def number_of(stripped: str) -> float:
    """Return the number that is written as *stripped*; raise `ValueError` for none."""
    return float(stripped)


def number_or_share(stripped: str) -> float:
    """Return the number that is written as *stripped*; of so many correct out of so many, their share.

    Raises `ValueError` for none.

    >>> number_or_share("0.5"), number_or_share("9421/10000"), number_or_share("3 / 4")
    (0.5, 0.9421, 0.75)
    """
    if found := _SHARE.fullmatch(stripped):
        part, whole = int(found[1]), int(found[2])
        if part <= whole and whole:
            return part / whole
    return number_of(stripped)


def looks_like_number(text: str) -> bool:
    """Tell whether *text* begins as a number does, or is what a field shows that has no room for it.

    >>> [looks_like_number(text) for text in ("0.5±0.1", "1,234", "*****", "diverged", "-", "# of steps")]
    [True, True, True, False, False, False]
    """
    return _BEGINS.match(text.strip(_AROUND)) is not None


def is_missing(text: str) -> bool:
    """Tell whether *text* stands where there is no value, as N/A does.

    >>> is_missing(" N/A "), is_missing("diverged")
    (True, False)
    """
    return text.strip().lower() in MISSING
