"""Any text as LaTeX that compiles and shows it: no character of it is a command, a comment or a column."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcml.report.plain_text import safe

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",  # in LaTeX's first font encoding these are other characters
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\ttfamily\char34}",  # in LaTeX's first fonts only the typewriter has this one and the next
    "`": r"{\ttfamily\char96}",
    "'": r"{'}",  # two in a row would be one quotation mark
    "-": r"{-}",  # two in a row would be a dash
    "[": r"{[}",  # behind \\ or \item it would begin an option
    "]": r"{]}",
    "*": r"{*}",  # behind \\ it would be its star
    "±": r"$\pm$",
    "\u00d7": r"$\times$",
    "·": r"$\cdot$",
    "°": r"$^\circ$",
    "\u2212": r"$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "…": r"\dots{}",
    "\u2013": r"\textendash{}",
    "\u2014": r"\textemdash{}",
    "\u00a0": "~",
    "\u202f": r"\,",
}
_LATIN_1 = frozenset(map(chr, range(0xC0, 0x100))) - set("\u00d7÷ÐðÞþ")  # accents that every font encoding can put

_SIGN = re.compile(r"(?<![\w-])-(?=[\d.])")  # before a number, where it is no hyphen


def escaped(value: object) -> str:
    """Return *value* for LaTeX's text; a character that its default fonts lack becomes its code point."""
    text = _SIGN.sub("\u2212", safe(value))
    return "".join(map(_one, text))


def tabular(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table in the rules of booktabs; cells are taken as LaTeX."""
    columns = "".join("r" if at in right else "l" for at in range(len(headings)))
    lines = [rf"  {' & '.join(row)} \\" for row in rows]
    return [
        rf"\begin{{tabular}}{{{columns}}}",
        r"  \toprule",
        rf"  {' & '.join(headings)} \\",
        r"  \midrule",
        *lines,
        r"  \bottomrule",
        r"\end{tabular}",
    ]


def _one(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character.isascii() or character in _LATIN_1:
        return character
    return rf"{{\ttfamily U+{ord(character):04X}}}"
