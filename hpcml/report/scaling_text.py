"""A scaling study on a terminal: a table with bars and the conclusions for each cell, plain where nobody is looking."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcml.report import scaling_words as words
from hpcml.report.bars import can_draw
from hpcml.report.plain_text import safe
from hpcml.report.value_table import that_fit
from hpcml.scaling import Scaling, ScalingCell


def scaling_renderable(scaling: Scaling, *, console: Console) -> RenderableType:
    """Return *scaling* for *console*, which decides on width, colour, lines and bars."""
    parts: list[RenderableType] = [Text(safe(words.introduction(scaling)))]
    for cell in scaling.cells:
        parts += [Text(), Text(safe(words.heading(cell)), style="bold"), _table(cell, console)]
        parts += [Padding(Text(safe(sentence)), (0, 0, 0, 2)) for sentence in cell.sentences]
        parts += [_remark(safe(line)) for line in words.remarks(cell)]
    if scaling.pays_from or scaling.remarks:
        parts.append(Text())
    parts += [Text(safe(sentence), style="bold") for sentence in scaling.pays_from]
    parts += [Text(safe(remark)) for remark in scaling.remarks]
    return Group(*parts)


def _table(cell: ScalingCell, console: Console) -> Table:
    titles, lines = words.table(cell, is_plain=not can_draw(console.encoding))
    lines = [[safe(word) for word in line] for line in lines]
    right = {titles[at] for at in words.right_aligned(titles)}
    drawn = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=drawn, pad_edge=False, show_edge=False)
    shown = that_fit(titles, lines, width=console.width, dispensable=words.DISPENSABLE)
    for at in shown:
        table.add_column(Text(titles[at]), justify="right" if titles[at] in right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(line[at], style="cyan" if titles[at] == words.BAR_TITLE else "") for at in shown))
    return table


def _remark(remark: str) -> RenderableType:
    return Padding(Text(f"- {remark}", style="bold red" if remark.startswith("CONFOUNDED") else "dim"), (0, 0, 0, 2))
