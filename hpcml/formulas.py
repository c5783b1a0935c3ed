"""Text in a CSV that a spreadsheet would run as a formula, made text by a quote in front of it.

A tag, a metric or a file may be called ``=HYPERLINK(...)``, and whoever opens the table clicks on it (OWASP, CSV
injection).
"""

from __future__ import annotations

import re

# What OWASP lists, the forms of full width too; quotes before it, so that a quote of ours is told from one of the text
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-](inf|nan)")


def inert(text: str) -> str:
    """Return *text* as it stands in a CSV: with a quote before it where a spreadsheet would run it; numbers stay.

    It can be undone: a quote before any number of quotes and one of ``= + - @``, a tab, CR or LF is ours.

    >>> inert("=1+1"), inert("'=1"), inert("-0.5"), inert("-lr")
    ("'=1+1", "''=1", '-0.5', "'-lr")
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
