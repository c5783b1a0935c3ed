"""A document for a terminal: rich lays it out; plain text where the output is no terminal."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcml.report.document import (
    Column,
    Commands,
    Document,
    Figure,
    Findings,
    Listing,
    Pairs,
    Paragraph,
    Part,
    Remarks,
    Section,
    Tone,
)
from hpcml.report.text import safe

_INDENT = 2
_HEADING = 10  # characters that a line of a heading has at least
_SOLID = 16  # characters of a text that is not folded
_MOST_ROWS = 1000  # more than anybody reads in a terminal
_STYLES: Mapping[Tone, str] = {
    "good": "green",
    "bad": "red",
    "doubt": "yellow",
    "faint": "dim",
    "strong": "bold",
    "conclusion": "bold",
}


def as_renderable(document: Document, *, console: Console) -> RenderableType:
    """Return *document* as rich prints it; *console* decides on width and colour. A figure is its numbers."""
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


def listing_renderable(listing: Listing[Any], *, console: Console) -> RenderableType:
    """Return a table of the short columns, nothing without rows; *console* decides on what is folded, numbers never.

    Columns that say the same in each row are then said above the table; where that is not enough, each row is a block.
    """
    if not listing.rows:
        return Group()
    columns, caption = listing.shown(is_short=True), listing.caption
    rows = listing.rows[:_MOST_ROWS]
    words = [[safe(column.written(row)) for column in columns] for row in rows]
    if _least(words) > console.width and len(rows) > 1:
        alike = [index for index in range(1, len(columns)) if len({line[index] for line in words}) == 1]
        said = ", ".join(f"{columns[index].title} {words[0][index]}" for index in alike)
        caption = "; ".join(filter(None, [caption, f"in all: {said}" if said else ""]))
        columns = [column for index, column in enumerate(columns) if index not in alike]
        words = [[word for index, word in enumerate(line) if index not in alike] for line in words]
    more = len(listing.rows) - len(rows)
    below = [Text(f"... and {more} more rows: --csv, --json and --md have all")] if more else []
    above = [Text(safe(caption))] if caption else []
    if _least(words) > console.width:
        blocks = (_pairs({column.title: word for column, word in zip(columns, line, strict=True)}) for line in words)
        return Group(*above, *(part for block in blocks for part in (block, Text())), *below)
    return Group(*above, _table(listing, columns, words, console), *below)


def _table(
    listing: Listing[Any], columns: Sequence[Column[Any]], words: Sequence[Sequence[str]], console: Console
) -> Table:
    if console.is_terminal:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        cells = [line[index] for line in words]
        width = max(map(cell_len, cells), default=0)
        table.add_column(
            Text(textwrap.fill(safe(column.title), max(width, _HEADING), break_long_words=False)),
            justify="right" if listing.is_number(column) else "left",
            overflow="fold",
            no_wrap=width <= _SOLID or not any(" " in cell for cell in cells),
        )
    for row, line in zip(listing.rows, words, strict=False):
        styles = [_STYLES.get(column.tone_of(row), "") for column in columns]
        table.add_row(*(Text(word, style=style) for word, style in zip(line, styles, strict=True)))
    return table


def _least(words: Sequence[Sequence[str]]) -> int:
    """Return how wide a table of these cells is at least, with two blanks between its columns."""
    longest = [max(max(map(cell_len, cell.split(" "))) for cell in cells) for cells in zip(*words, strict=True)]
    widths = [max(map(cell_len, cells)) for cells in zip(*words, strict=True)]
    return sum(max(word, min(width, _SOLID)) + 2 for word, width in zip(longest, widths, strict=True)) - 2


def _section(section: Section, console: Console) -> Iterator[RenderableType]:
    if section.heading:
        yield Text(safe(section.heading), style="bold")
    for part in section.parts:
        yield from _part(part, console, is_closing=not section.heading)
    for one in section.sections:
        yield Text()
        yield from _section(one, console)


def _part(part: Part, console: Console, *, is_closing: bool) -> Iterator[RenderableType]:
    if isinstance(part, Listing):
        yield listing_renderable(part, console=console)
        yield from (_line(note, "plain", is_flush=is_closing) for note in part.notes)
    elif isinstance(part, Remarks):
        yield from (_line(line, tone, is_flush=is_closing) for line, tone in part.toned())
    elif isinstance(part, Paragraph):
        yield Text(safe(part.text), style=_STYLES.get(part.tone, ""))
    elif isinstance(part, Pairs):
        yield Padding(_pairs(part.known), (0, 0, 0, _INDENT))
    elif isinstance(part, Findings):
        for finding in part.findings:
            yield _line(f"{finding.verdict}: {finding.text}", "plain", is_flush=False)
            yield from (Padding(_line(doubt, "plain", is_flush=False), (0, 0, 0, 2)) for doubt in finding.doubts)
    elif isinstance(part, Commands):
        yield from (Text(f"{'':{_INDENT}}{safe(line)}") for line in part.lines)
    elif isinstance(part, Figure) and not part.repeats_a_table:
        yield listing_renderable(part.numbers, console=console)


def _pairs(pairs: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in pairs.items():
        if text:
            table.add_row(Text(safe(label)), Text(safe(text)))
    return table


def _line(line: str, tone: Tone, *, is_flush: bool) -> RenderableType:
    """Return a line of remarks: a list's item, but for a conclusion, which has no dash, and where *is_flush*."""
    style = "" if tone == "conclusion" else "bold red" if tone == "bad" else _STYLES.get(tone, "")
    if is_flush:
        return Text(safe(line), style=style)
    dash = "" if tone == "conclusion" else "- "
    return Padding(Text(f"{dash}{safe(line)}", style=style), (0, 0, 0, _INDENT))
