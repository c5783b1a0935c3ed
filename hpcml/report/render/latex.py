r"""A document's tables for LaTeX, to be included with \input.

Text is escaped: no character of it is a command, a comment or a column. The packages that the preamble needs are named
in a comment at the top.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from hpcml.report.document import Chart, Document, Entry, Paragraph, Part, Remarks, Section, Table
from hpcml.report.text import safe

REPORT = "% hpcml report"
_PREAMBLE = r"% Needs \usepackage{booktabs,graphicx}; written in UTF-8, the encoding of LaTeX since 2018."
_LINE = 120  # characters of a table in small print
_RUNNING = 45  # characters of a cell; from here on a column is running text, if its table is too wide
_LEGIBLE = 1.0  # lines that a table may be scaled down to one from
_PAGE = 44  # lines of a table in small print: LaTeX cuts off what a page does not hold, and only its log says so
_NARROW = 1.5  # times as many characters are estimated to be in a line as the narrowest page has, to count lines
_SHORT = 12  # characters of a line of a heading at least
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

_SOLID = re.compile(r"[^\s_/=,-]{8}(?=[^\s_/=,-]{4})")  # of a name without joints, which goes on in a new line anywhere
_JOINT = re.compile(r"(?:\\_|/|\{-\}|=|,)(?=\S)")
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

    The labels are ``tab:hpcml-1`` and so on. A table that is wider than the text is scaled to its width, and one that
    is longer than a page is several, with the remarks as running text behind them.
    """
    closing = [part.text for section in document.sections for part in section.parts if isinstance(part, Paragraph)]
    lines = [_PREAMBLE]
    with_tables = [each for each in document.sections if any(isinstance(part, Table) for part in each.parts)]
    for at, section in enumerate(with_tables, start=1):
        caption = " ".join(f"{part}." for part in (document.introduction, section.heading) if part)
        lines += ["", *_float(section, caption, at, closing)]
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
    end = r"\tabularnewline" if widths else r"\\"  # which has another meaning behind \raggedright
    lines = [f"  {' & '.join(row)} {end}" for row in rows]
    return [
        rf"\begin{{tabular}}{{{columns}}}",
        r"  \toprule",
        f"  {' & '.join(headings)} {end}",
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
            for each, which in ((page, which) for part in _side_by_side(table) for page, which in _pages(part)):
                yield f"% {safe(section.heading)}"
                yield r"\begin{table}[htbp]"
                yield r"\centering\footnotesize"
                yield rf"\caption{{{escaped(each.caption + which)}}}"
                yield from _tabular(each)
                yield r"\end{table}"
                yield ""
    for one in section.sections:
        yield from _floats(one)


def _float(section: Section, caption: str, at: int, closing: Sequence[str]) -> Iterator[str]:
    lists = [part for part in section.parts if isinstance(part, Remarks) and not part.terminal_only]
    yield from (f"% {safe(part.hint)}" for part in lists if part.hint)
    tables = [part for part in section.parts if isinstance(part, Table)]
    tables = [each if each.is_transposed else _without_empty_columns(each) for each in tables]
    notes = [*(line for each in lists for line in each.lines), *closing]
    height = sum(map(_height, tables)) + sum(map(_lines_of, notes))
    pages = (
        [(tables, "")] if height <= _PAGE else [([each], which) for table in tables for each, which in _pages(table)]
    )
    for nth, (on_page, which) in enumerate(pages):
        yield r"\begin{table}[htbp]"
        yield r"\centering\footnotesize"
        yield rf"\caption{{{escaped(caption + which)}}}"
        yield from [] if nth else [rf"\label{{tab:hpcml-{at}}}"]
        for below, table in enumerate(on_page):
            yield from ["", r"\medskip"] if below else []
            yield from _tabular(table)
        yield from (
            [r"\end{table}"] if height > _PAGE else ["", r"\medskip", r"\begin{minipage}{\linewidth}\raggedright"]
        )
    yield from (
        ["{\\footnotesize\\raggedright\\noindent"] if height > _PAGE else []
    )  # running text, which pages may break
    yield from (rf"{_running(note)}\par" for note in notes)
    yield from ["}"] if height > _PAGE else [r"\end{minipage}", r"\end{table}"]


def _table_of(part: Part) -> Table | None:
    if isinstance(part, Chart):
        return None if part.repeats_a_table else part.numbers
    return part if isinstance(part, Table) else None


def _without_empty_columns(table: Table) -> Table:
    kept = [at for at in range(len(table.columns)) if at == 0 or any(row[at].whole for row in table.rows)]
    rows = [[row[at] for at in kept] for row in table.rows]
    return replace(table, columns=[table.columns[at] for at in kept], rows=rows)


def _side_by_side(table: Table) -> Iterator[Table]:
    """Yield *table* in parts of so many columns as can be read in the width of a page, each with the first one."""
    name, *columns = [max(longest, _SHORT) for longest in _longest(table)]
    running = _widths(table)
    name = min(name, _LINE // 3) if set(running) == {0} else name  # the longest names are broken
    if name + sum(columns) <= _LEGIBLE * _LINE or (running and set(running) != {0}):
        yield table
        return
    parts, width = [[0]], name
    for at, more in enumerate(columns, start=1):
        if width + more > _LEGIBLE * _LINE and len(parts[-1]) > 1:
            parts.append([0])
            width = name
        parts[-1].append(at)
        width += more
    for nth, chosen in enumerate(parts, start=1):
        rows = [[row[at] for at in chosen] for row in table.rows]
        caption = f"{table.caption} ({nth} of {len(parts)})"
        yield replace(table, columns=[table.columns[at] for at in chosen], rows=rows, caption=caption)


def _pages(table: Table) -> Iterator[tuple[Table, str]]:
    """Yield *table* in parts that a page holds, each with what its caption says of it: " (rows 1 to 40 of 90)"."""
    heights = [_row_height(row, _widths(table)) for row in table.rows]
    starts, height = [0], 0
    for at, more in enumerate(heights):
        if height and height + more > _PAGE:
            starts.append(at)
            height = 0
        height += more
    for start, end in pairwise([*starts, len(table.rows)]):
        which = f" (rows {start + 1} to {end} of {len(table.rows)})" if len(starts) > 1 else ""
        yield replace(table, rows=table.rows[start:end]), which


def _height(table: Table) -> int:
    return sum(_row_height(row, _widths(table)) for row in table.rows)


def _row_height(row: Sequence[Entry], widths: Mapping[int, float]) -> int:
    """Return of how many lines a row is."""
    return max([1, *(math.ceil(len(row[at].whole) / (share * _LINE / _NARROW)) for at, share in widths.items())])


def _lines_of(note: str) -> int:
    return math.ceil(len(note) / (_LINE / _NARROW))


def _longest(table: Table) -> list[int]:
    return [max([0, *(len(row[at].whole) for row in table.rows)]) for at in range(len(table.columns))]


def _is_too_wide(table: Table) -> bool:
    return sum(map(max, _longest(table), [len(title) for title in _titles(table)])) > _LINE


def _titles(table: Table) -> list[str]:
    return [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]


def _widths(table: Table) -> dict[int, float]:
    """Return the shares of the line that the columns of running text of a table that is too wide get."""
    if not _is_too_wide(table) or table.is_transposed:
        return {}
    longest = _longest(table)
    kinds = [not column.is_number and longest[at] > _RUNNING for at, column in enumerate(table.columns)]
    running = {at: min(longest[at], _LINE / 2) for at, is_running in enumerate(kinds) if is_running}
    others = sum(each for at, each in enumerate(longest) if at not in running)
    room = _PARAGRAPHS * max(0.5, 1 - others / _LINE)
    return {at: room * each / sum(running.values()) for at, each in running.items()}


def _tabular(table: Table) -> Iterator[str]:
    """Yield the lines of *table*, which is made as narrow as the text where it is wider, and never wider."""
    widths, titles = _widths(table), _titles(table)
    headings = [escaped(title) for title in titles]
    if _is_too_wide(table):
        headings = [
            _broken(title) if at in widths else _stacked(title, longest)
            for at, (title, longest) in enumerate(zip(titles, _longest(table), strict=True))
        ]
    rows = [
        [_broken(entry.whole) if at in widths else escaped(entry.whole) for at, entry in enumerate(row)]
        for row in table.rows
    ]
    right = [at for at, column in enumerate(table.columns) if column.is_number]
    yield r"\sbox2{%"
    yield from tabular(headings, rows, right=right, widths=widths)
    yield "}"
    yield r"\ifdim\wd2>\linewidth\resizebox{\linewidth}{!}{\usebox2}\else\usebox2\fi"


def _stacked(title: str, longest: int) -> str:
    """Return a heading as LaTeX, in lines that are not longer than what stands below it if words allow it."""
    width, is_solid = max(longest, _SHORT), any(len(word) > _RUNNING for word in title.split())
    lines = textwrap.wrap(title, width, break_long_words=is_solid, break_on_hyphens=False)
    stack = r" \\ ".join(map(escaped, lines))
    return escaped(title) if len(lines) < 2 else rf"\shortstack[l]{{{stack}}}"


def _broken(text: str) -> str:
    """Return *text* as a paragraph of LaTeX, which may go on in a new line behind what joins the words of a name."""
    return rf"\raggedright {_jointed(text)}" if text else ""


def _running(text: str) -> str:
    """Return a line of text as LaTeX, which may break words that are as long as a line of print."""
    return " ".join(_jointed(word) if len(word) > _RUNNING else escaped(word) for word in text.split(" "))


def _jointed(text: str) -> str:
    return " ".join(map(_jointed_word, text.split(" ")))


def _jointed_word(word: str) -> str:
    if len(word) > _RUNNING:
        ends = [0, *(found.end() for found in _SOLID.finditer(word)), len(word)]
        pieces = [word[start:end] for start, end in pairwise(ends)]
    else:
        pieces = [word]
    return r"\allowbreak{}".join(_JOINT.sub(r"\g<0>\\allowbreak{}", escaped(piece)) for piece in pieces)
