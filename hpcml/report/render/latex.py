r"""A document's tables for LaTeX, to be included with \input.

Text is escaped: no character of it is a command, a comment or a column. The packages that the preamble needs are named
in a comment at the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hpcml.report.document import Chart, Document, Paragraph, Part, Remarks, Section, Table
from hpcml.report.text import safe

REPORT = "% hpcml report"
_PREAMBLE = r"% Needs \usepackage{booktabs,graphicx}; written in UTF-8, the encoding of LaTeX since 2018."
_WIDE = 8  # columns; from here on a table is made as narrow as the text
_LINE = 120  # characters of a table in small print
_PARAGRAPHS = 0.9  # of the line: the rest is between the columns
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


def is_report_latex(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report written by `as_latex_report`."""
    return head.startswith(REPORT.encode())


def as_latex_report(document: Document) -> str:
    """Return all tables of a report, each a float of its own with its caption; charts are replaced by their numbers."""
    lines = [
        f"{REPORT}: {safe(document.title)}",
        "% in the preamble: \\usepackage{booktabs} and \\usepackage{graphicx}",
        "",
    ]
    for section in document.sections:
        lines += _floats(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def as_latex(document: Document) -> str:
    """Return a float for each section: its tables, the heading as caption, the remarks as notes below.

    The labels are ``tab:hpcml-1`` and so on. A table of eight columns or more is scaled to the width of the text.
    """
    closing = [part.text for section in document.sections for part in section.parts if isinstance(part, Paragraph)]
    lines = [_PREAMBLE]
    for at, section in enumerate((each for each in document.sections if each.heading), start=1):
        lines += ["", *_float(section, f"{document.introduction}. {section.heading}.", at, closing)]
    return "\n".join([*lines, ""])


def escaped(value: object) -> str:
    """Return *value* as LaTeX text; a character that LaTeX's default fonts lack becomes its code point.

    A hyphen before a number becomes a minus sign.
    """
    text = _SIGN.sub("\u2212", safe(value))
    return "".join(map(_one, text))


def tabular(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    widths: Mapping[int, float] = MappingProxyType({}),
) -> list[str]:
    """Return the lines of a table with booktabs' rules; cells are taken as LaTeX, *right* are right-aligned columns.

    *widths* are shares of the line, for columns of running text, which is broken there.
    """
    kinds = {at: rf"p{{{share:.2f}\linewidth}}" for at, share in widths.items()} | dict.fromkeys(right, "r")
    columns = "".join(kinds.get(at, "l") for at in range(len(headings)))
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


def _floats(section: Section) -> Iterator[str]:
    for part in section.parts:
        if (table := _table_of(part)) is not None and table.rows:
            yield f"% {safe(section.heading)}"
            yield r"\begin{table}[htbp]"
            yield r"\centering\footnotesize"
            yield rf"\caption{{{escaped(table.caption)}}}"
            yield from _tabular(table)
            yield r"\end{table}"
            yield ""
    for one in section.sections:
        yield from _floats(one)


def _float(section: Section, caption: str, at: int, closing: Sequence[str]) -> Iterator[str]:
    lists = [part for part in section.parts if isinstance(part, Remarks) and not part.terminal_only]
    yield from (f"% {safe(part.hint)}" for part in lists if part.hint)
    yield r"\begin{table}[htbp]"
    yield r"\centering\footnotesize"
    yield rf"\caption{{{escaped(caption)}}}"
    yield rf"\label{{tab:hpcml-{at}}}"
    for nth, table in enumerate(part for part in section.parts if isinstance(part, Table)):
        yield from ["", r"\medskip"] if nth else []
        yield from _tabular(table if table.is_transposed else _without_empty_columns(table))
    yield ""
    yield r"\medskip"
    yield r"\begin{minipage}{\linewidth}\raggedright"
    yield from (rf"{escaped(note)}\par" for note in [*(line for each in lists for line in each.lines), *closing])
    yield r"\end{minipage}"
    yield r"\end{table}"


def _table_of(part: Part) -> Table | None:
    if isinstance(part, Chart):
        return None if part.repeats_a_table else part.numbers
    return part if isinstance(part, Table) else None


def _without_empty_columns(table: Table) -> Table:
    kept = [at for at in range(len(table.columns)) if at == 0 or any(row[at].whole for row in table.rows)]
    rows = [[row[at] for at in kept] for row in table.rows]
    return replace(table, columns=[table.columns[at] for at in kept], rows=rows)


def _widths(table: Table) -> dict[int, float]:
    """Return the shares of the line that the columns of a table of running text get; none for another table."""
    longest = [max((len(row[at].whole) for row in table.rows), default=0) for at in range(len(table.columns))]
    if sum(longest) <= _LINE or any(column.is_number for column in table.columns):
        return {}
    capped = [min(each, _LINE / 2) for each in longest]
    return {at: _PARAGRAPHS * each / sum(capped) for at, each in enumerate(capped)}


def _tabular(table: Table) -> Iterator[str]:
    headings = [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]
    rows = [[escaped(entry.whole) for entry in row] for row in table.rows]
    right = [at for at, column in enumerate(table.columns) if column.is_number]
    is_wide = len(headings) >= _WIDE and not table.is_transposed
    if is_wide:
        yield r"\resizebox{\linewidth}{!}{%"
    widths = {} if is_wide else _widths(table)
    yield from tabular(list(map(escaped, headings)), rows, right=right, widths=widths)
    if is_wide:
        yield "}"
