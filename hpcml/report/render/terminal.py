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
    """Return *listing* as a table, nothing without rows.

    A column that is not short is shown where there is room for all. Where *console* is too narrow although texts are
    folded, columns that say the same in each row are said above the
    table, then those to the right are left out, which is said below it. Numbers are never folded.
    """
    if not listing.rows:
        return Group()
    rows = listing.rows[:_MOST_ROWS]
    cells = {column: [safe(column.written(row)) for row in rows] for column in listing.shown()}
    said, hidden = [listing.caption] if listing.caption else [], list[str]()
    if _whole(cells) > console.width:
        cells = {column: words for column, words in cells.items() if column.is_short}
    if _least(listing, cells) > console.width and len(rows) > 1:
        alike = {column: words[0] for column, words in list(cells.items())[1:] if len(set(words)) == 1}
        said += ["in all: " + ", ".join(f"{column.title} {word}" for column, word in alike.items())] if alike else []
        cells = {column: words for column, words in cells.items() if column not in alike}
    while _least(listing, cells) > console.width and len(cells) > 1:
        column, _ = cells.popitem()
        hidden.insert(0, column.title)
    above = [Text(safe("; ".join(said)))] if said else []
    below = [f"not shown, for want of room: {', '.join(hidden)}"] if hidden else []
    if more := len(listing.rows) - len(rows):
        below.append(f"... and {more} more rows: --csv, --json and --md have all")
    return Group(*above, _table(listing, cells, console), *(Text(safe(line), style="dim") for line in below))


def _table(listing: Listing[Any], cells: Mapping[Column[Any], Sequence[str]], console: Console) -> Table:
    if console.is_terminal:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    has_room = _whole(cells) <= console.width
    for column, words in cells.items():
        width = max(map(cell_len, words))
        heading = safe(column.title)
        table.add_column(
            Text(heading if has_room else textwrap.fill(heading, max(width, _HEADING), break_long_words=False)),
            justify="right" if listing.is_number(column) else "left",
            overflow="fold",
            no_wrap=width <= _SOLID or listing.is_number(column),
        )
    for row, *words in zip(listing.rows, *cells.values(), strict=False):
        styles = [_STYLES.get(column.tone_of(row), "") for column in cells]
        table.add_row(*(Text(word, style=style) for word, style in zip(words, styles, strict=True)))
    return table


def _whole(cells: Mapping[Column[Any], Sequence[str]]) -> int:
    """Return how wide a table of these cells is, with two blanks between its columns, where nothing is folded."""
    return sum(max(map(cell_len, [safe(column.title), *words])) + 2 for column, words in cells.items()) - 2


def _least(listing: Listing[Any], cells: Mapping[Column[Any], Sequence[str]]) -> int:
    """Return how wide a table of these cells is at least, with two blanks between its columns."""
    least = -2
    for column, words in cells.items():
        width, longest = max(map(cell_len, words)), max(map(_longest_word, words))
        needed = width if listing.is_number(column) or width <= _SOLID else min(longest, _SOLID)
        least += max(needed, _longest_word(column.title)) + 2
    return least


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split(" ")))


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
