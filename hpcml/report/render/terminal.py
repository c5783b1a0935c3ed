"""A document for a terminal, readable in 100 columns; plain text where the output is no terminal."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from hpcml.report.document import (
    Chart,
    Commands,
    Document,
    Entry,
    Findings,
    Paragraph,
    Part,
    Remarks,
    Section,
    Table,
    TableColumn,
    Tone,
)
from hpcml.report.text import safe
from hpcml.report.text_charts import bar, can_draw

_WIDE = 132  # from here on a value and its interval stand in one line
_WORDS_WIDTH = 26  # of a cell: longer ones are wrapped between words
_TITLE_WIDTH = 14
_BAR_WIDTH = 10
_INDENT = 2
_CELL_STYLES: Mapping[Tone, str] = {"good": "green", "bad": "red", "doubt": "yellow"}
_LINE_STYLES: Mapping[Tone, str] = {"bad": "bold red", "faint": "dim", "strong": "bold"}


def as_renderable(document: Document, *, console: Console) -> RenderableType:
    """Return *document* as rich prints it; *console* decides on width, colour and characters.

    Where the console is no terminal, nothing is drawn but text. Charts for HTML are replaced by their numbers.
    """
    parts: list[RenderableType] = [Text(safe(document.title), style="bold")] if document.title else []
    parts += [Text(safe(document.introduction))] if document.introduction else []
    for section in document.sections:
        parts += [*([Text()] if parts else []), *_section(section, console)]
    return Group(*parts)


def as_text(document: Document, *, width: int = 100) -> str:
    """Return *document* as plain text, without colours or drawn lines, in *width* characters."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(as_renderable(document, console=console))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def that_fit(
    titles: Sequence[str], words: Sequence[Sequence[str]], *, width: int, dispensable: Sequence[str]
) -> list[int]:
    """Return the indices of the columns that fit into *width*, with two blanks between them.

    Columns with *dispensable* titles are left out where needed, the first of them first, and of two with one title the
    last; the others stay, even where they do not fit. *words* are the cells, row by row.

    >>> that_fit(["run", "name"], [["a1b2", "resnet50"]], width=10, dispensable=["name"])
    [0]
    """
    shown = list(range(len(titles)))
    for title in dispensable:
        taken = table_width([titles[at] for at in shown], [[line[at] for at in shown] for line in words])
        if taken > width and (called_so := [at for at in shown if titles[at] == title]):
            shown.remove(called_so[-1])
    return shown


def bare_table(console: Console) -> RichTable:
    """Return a table without a frame and two blanks between columns; on a terminal a line is below its heading."""
    if not console.is_terminal:
        return RichTable(box=None, pad_edge=False, show_edge=False)
    return RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)  # the box adds one


def table_width(titles: Sequence[str], words: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in characters, with two blanks between its columns; wide characters count twice."""
    return sum(max(map(cell_len, column)) + 2 for column in zip(titles, *words, strict=True)) - 2


def _section(section: Section, console: Console) -> Iterator[RenderableType]:
    if section.heading:
        yield Text(safe(section.heading), style="bold")
    for part in section.parts:
        yield from _part(part, console, is_closing=not section.heading)
    for one in section.sections:
        yield Text()
        yield from _section(one, console)


def _part(part: Part, console: Console, *, is_closing: bool) -> Iterator[RenderableType]:
    if isinstance(part, Table):
        if part.is_transposed:
            yield from _transposed(part, console)
        else:
            yield from _dense(part, console) if part.is_dense else [_fitted(part, console)]
    elif isinstance(part, Remarks):
        yield from (_line(line, tone, is_flush=is_closing) for line, tone in part.toned())
    elif isinstance(part, Paragraph):
        yield Text(safe(part.text))
    elif isinstance(part, Findings):
        for finding in part.of:
            yield _line(f"{finding.verdict}: {finding.text}", "plain", is_flush=False)
            yield from (Padding(_line(doubt, "plain", is_flush=False), (0, 0, 0, 2)) for doubt in finding.doubts)
    elif isinstance(part, Commands):
        yield from (Text(f"{'':{_INDENT}}{safe(line)}") for line in part.lines)
    elif isinstance(part, Chart) and not part.repeats_a_table:
        yield _fitted(part.numbers, console)


def _line(line: str, tone: Tone, *, is_flush: bool) -> RenderableType:
    """Return a line of remarks: a list's item, but for a conclusion, which has no dash, and where *is_flush*."""
    style = _LINE_STYLES.get(tone, "")
    if is_flush:
        return Text(safe(line), style=style)
    dash = "" if tone == "conclusion" else "- "
    return Padding(Text(f"{dash}{safe(line)}", style=style), (0, 0, 0, _INDENT))


def _fitted(table: Table, console: Console) -> RichTable:
    """Return a table without the columns that do not fit."""
    is_plain = not can_draw(console.encoding)
    columns = [(at, column) for at, column in enumerate(table.columns) if column.on_terminal]
    titles = [_title(column) for _, column in columns]
    lines = [[_word(row[at], column, is_plain=is_plain) for at, column in columns] for row in table.rows]
    spare = sorted((column for _, column in columns if column.spare), key=lambda column: column.spare)
    drawn = bare_table(console)
    shown = that_fit(titles, lines, width=console.width, dispensable=[_title(column) for column in spare])
    for at in shown:
        drawn.add_column(Text(titles[at]), justify="right" if columns[at][1].is_number else "left", overflow="fold")
    for line in lines:
        drawn.add_row(*(Text(line[at], style="cyan" if columns[at][1].is_bar else "") for at in shown))
    return drawn


def _dense(table: Table, console: Console) -> Iterator[RenderableType]:
    """Yield a table with all of its columns; those that do not fit come in further tables, behind the first column.

    Headings, words and, if needed, intervals are wrapped, at blanks alone: no word and no number is broken, but for
    the name of a row that takes half of the width.
    """
    is_wide = console.width >= _WIDE
    columns = [(at, column) for at, column in enumerate(table.columns) if column.on_terminal]
    between = " " if is_wide else "\n"  # a value and its interval
    titles = {at: _wrapped(_title(column), 40 if is_wide else _TITLE_WIDTH) for at, column in columns}
    cells = [
        {at: between.join(_wrapped(safe(word), _WORDS_WIDTH) for word in (row[at].text, row[at].interval) if word)
         for at, _ in columns}
        for row in table.rows
    ]  # fmt: skip
    first = columns[0][0]
    for cell in cells:  # a name that left no room for what is told of it is broken, and nothing else
        if _widest(cell[first]) > console.width // 2:
            cell[first] = _wrapped(cell[first], max(1, console.width // 3), breaks=True)
    widths = {at: max(_widest(text) for text in (titles[at], *(cell[at] for cell in cells))) for at, _ in columns}
    gap = 3 if console.is_terminal else 1
    for number, chosen in enumerate(_that_share_a_line(columns, widths, console.width, gap)):
        if number:
            yield Text()
        # One column of space between columns, which SIMPLE_HEAD brings along: with more, 100 columns do not do.
        edges, padding = (box.SIMPLE_HEAD, 0) if console.is_terminal else (None, (0, 1, 0, 0))
        drawn = RichTable(box=edges, padding=padding, pad_edge=False, show_edge=False)
        for at, column in chosen:
            drawn.add_column(
                Text(titles[at]), justify="right" if column.is_number else "left", no_wrap=True, overflow="fold"
            )
        for row, texts in zip(table.rows, cells, strict=True):
            drawn.add_row(*(Text(texts[at], style=_CELL_STYLES.get(row[at].tone, "")) for at, _ in chosen))
        yield drawn


def _that_share_a_line(
    columns: Sequence[tuple[int, TableColumn]], widths: Mapping[int, int], width: int, gap: int
) -> Iterator[list[tuple[int, TableColumn]]]:
    """Yield *columns* in groups that fit into *width*, each with the first column."""
    first, *others = columns
    chosen, taken = [first], widths[first[0]]
    for each in others:
        more = widths[each[0]] + gap
        if taken + more > width and len(chosen) > 1:
            yield chosen
            chosen, taken = [first], widths[first[0]]
        chosen.append(each)
        taken += more
    yield chosen


def _wrapped(text: str, width: int, *, breaks: bool = False) -> str:
    return "\n".join(textwrap.wrap(text, width=width, break_long_words=breaks, break_on_hyphens=False))


def _widest(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _transposed(table: Table, console: Console) -> Iterator[RenderableType]:
    """Yield a table with a line for each quantity; columns that do not fit come in further tables below."""
    labels = max(len(row[0].text) for row in table.rows) + _INDENT
    titles = [_title(column) for column in table.columns[1:]]
    widths = [max(len(title), *(len(row[at].text) for row in table.rows)) + 2 for at, title in enumerate(titles, 1)]
    first = 0
    while first < len(titles):
        last = first + 1
        while last < len(titles) and labels + sum(widths[first : last + 1]) <= console.width:
            last += 1
        drawn = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
        drawn.add_column("", no_wrap=True)
        for title in titles[first:last]:
            drawn.add_column(Text(title), overflow="fold")
        for row in table.rows:
            entries = row[1 + first : 1 + last]
            if any(entry.text for entry in entries):
                label = Text(f"{'':{_INDENT}}{row[0].text}")
                drawn.add_row(label, *(Text(safe(entry.text)) for entry in entries))
        yield Text()
        yield drawn
        first = last


def _title(column: TableColumn) -> str:
    title = column.title if column.terminal_title is None else column.terminal_title
    return safe(f"{title} ({column.unit})" if column.unit else title)


def _word(entry: Entry, column: TableColumn, *, is_plain: bool) -> str:
    return bar(entry.order, width=_BAR_WIDTH, is_plain=is_plain) if column.is_bar else safe(entry.whole)
