r"""A document's tables for LaTeX, to be included with \input: booktabs draws their lines, longtable breaks their pages.

Text is escaped: no character of it is a command, a comment or a column. The packages that the preamble needs are named
in a comment at the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from hpcml.report.document import Column, Document, Figure, Listing, Paragraph, Remarks, Section
from hpcml.report.text import safe

REPORT = "% hpcml report"
_PREAMBLE = r"% Needs \usepackage{booktabs,longtable}; written in UTF-8, the encoding of LaTeX since 2018."
_RUNNING = 40  # characters of a cell, from which on a column is running text
_SIGN = re.compile(r"(?<![\w-])-(?=[\d.])")  # before a number, where it is no hyphen
_JOINT = re.compile(r"(?:\\_|/|\{-\}|=|,)(?=\S)")  # of a name, behind which a line may end
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


def is_report_latex(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report written by `as_latex_report`."""
    return head.startswith(REPORT.encode())


def as_latex_report(document: Document) -> str:
    """Return all tables of a report with their captions; figures are replaced by their numbers."""
    lines = [f"{REPORT}: {safe(document.title)}", _PREAMBLE, ""]
    for section in document.sections:
        lines += _tables(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def as_latex(document: Document) -> str:
    """Return the tables of each section, the heading as caption, the remarks as notes below.

    The labels are ``tab:hpcml-1`` and so on.
    """
    lines = [_PREAMBLE]
    closing = [part.text for section in document.sections for part in section.parts if isinstance(part, Paragraph)]
    with_tables = [section for section in document.sections if section.listings()]
    for number, section in enumerate(with_tables, start=1):
        caption = " ".join(f"{part}." for part in (document.introduction, section.heading) if part)
        remarks = [part for part in section.parts if isinstance(part, Remarks)]
        lines += [f"% {safe(part.hint)}" for part in remarks if part.hint]
        for index, listing in enumerate(section.listings()):
            label = rf"\label{{tab:hpcml-{number}}}" if index == 0 else ""
            lines += _longtable(listing, listing.caption or caption, label)
        notes = [line for part in remarks for line in part.lines]
        lines += _notes([*notes, *(closing if section is with_tables[-1] else ())])
    return "\n".join([*lines, ""])


def escaped(value: object) -> str:
    """Return *value* as LaTeX text; a character that LaTeX's default fonts lack becomes its code point.

    A hyphen before a number becomes a minus sign.
    """
    return "".join(map(_one, _SIGN.sub("\u2212", safe(value))))


def _one(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character.isascii() or character in _LATIN_1:
        return character
    return rf"{{\ttfamily U+{ord(character):04X}}}"


def _tables(section: Section) -> Iterator[str]:
    for part in section.parts:
        listing = part.numbers if isinstance(part, Figure) and not part.repeats_a_table else part
        if isinstance(listing, Listing) and listing.rows:
            yield f"% {safe(section.heading)}"
            yield from _longtable(listing, listing.caption or section.heading)
            yield from _notes(listing.notes)
    for one in section.sections:
        yield from _tables(one)


def _longtable(listing: Listing[Any], caption: str, label: str = "") -> Iterator[str]:
    """Yield *listing* as a table that goes on over pages; columns of running text share what is left of the line."""
    columns = listing.shown()
    running = [column for column in columns if _is_running(listing, column)]
    share = 0.8 / (len(running) + 1)
    kinds = [
        rf"p{{{share:.2f}\linewidth}}" if column in running else "r" if listing.is_number(column) else "l"
        for column in columns
    ]
    yield r"{\footnotesize\setlength{\tabcolsep}{4pt}"
    yield rf"\begin{{longtable}}{{{''.join(kinds)}}}"
    yield rf"  \caption{{{escaped(caption)}}}{label} \\"
    headings = f"  {' & '.join(escaped(column.title) for column in columns)} \\\\"
    for end in (r"  \endfirsthead", r"  \endhead"):  # of the first page, and of those that it goes on over
        yield from (r"  \toprule", headings, r"  \midrule", end)
    for row in listing.rows:
        cells = [
            rf"\raggedright {_jointed(column.written(row))}" if column in running else escaped(column.written(row))
            for column in columns
        ]
        yield f"  {' & '.join(cells)} \\tabularnewline"
    yield r"  \bottomrule"
    yield r"\end{longtable}}"
    yield ""


def _is_running(listing: Listing[Any], column: Column[Any]) -> bool:
    if listing.is_number(column):
        return False
    return any(len(column.written(row)) > _RUNNING for row in listing.rows)


def _notes(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield r"{\footnotesize\raggedright\noindent"
        yield from (rf"{_jointed(line)}\par" for line in lines)
        yield "}"
        yield ""


def _jointed(text: str) -> str:
    """Return *text* as LaTeX, which may go on in a new line behind what joins the words of a name."""
    return _JOINT.sub(r"\g<0>\\allowbreak{}", escaped(text))
