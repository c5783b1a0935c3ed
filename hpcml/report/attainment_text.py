"""What runs attained, on a terminal: a table with bars for each cell, and beneath it what others published."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcml.attainment import Attainment
from hpcml.report import attainment_words as words
from hpcml.report.bars import can_draw
from hpcml.report.plain_text import safe
from hpcml.report.value_table import that_fit


def attainment_renderable(attainment: Attainment, *, console: Console) -> RenderableType:
    """Return *attainment* for *console*, which decides on width, colour, lines and bars."""
    parts: list[RenderableType] = [Text(safe(words.introduction(attainment)))] if attainment.attained else []
    for heading, rows in words.cells(attainment):
        titles, lines = words.table(rows, is_plain=not can_draw(console.encoding))
        right = words.right_aligned(titles)
        parts += [Text(), Text(safe(heading), style="bold"), _table(titles, lines, right, console)]
        parts += [_remark(line) for line in words.remarks(rows)]
    parts += [Text(safe(remark)) for remark in attainment.remarks]
    if attainment.published:
        parts += [*([Text()] if parts else []), Text(words.PUBLISHED_TITLE, style="bold")]
        lines = words.published_lines(attainment.published)
        parts.append(_table(words.PUBLISHED_HEADINGS, lines, (3, 4), console))
        parts += [_remark(line) for line in words.published_remarks(attainment.published)]
    return Group(*parts)


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[int], console: Console) -> Table:
    lines = [[safe(word) for word in line] for line in lines]
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    shown = that_fit(titles, lines, width=console.width, dispensable=words.DISPENSABLE)
    for at in shown:
        table.add_column(Text(titles[at]), justify="right" if at in right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(line[at], style="cyan" if titles[at] == words.BAR_TITLE else "") for at in shown))
    return table


def _remark(remark: str) -> RenderableType:
    return Padding(Text(f"- {safe(remark)}"), (0, 0, 0, 2))
