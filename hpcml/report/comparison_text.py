"""A comparison on a terminal: readable in 100 columns, plain where nobody is looking."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcml.comparison import Cell, Comparison
from hpcml.report.bars import can_draw
from hpcml.report.comparison_cells import closing, heading, introduction, remarks, row_words, walls
from hpcml.report.comparison_details import Detail, details
from hpcml.report.interval_bars import DRAWN, PLAIN, interval_bars
from hpcml.report.plain_text import safe

_WIDE = 132  # from here on an estimate and its interval stand in one line
_DESIGN_WIDTH = 100  # below it all but the verdict may fold
_TITLE_WIDTH = 14
_FOLDED = (0, 1)
_RIGHT = (6, 7)
_VERDICT = 5
_BAR_WIDTH = 41  # odd: zero has a character of its own
_INDENT = 2
_STYLES = {"equivalent": "green", "better": "green", "non-inferior": "green", "worse": "red", "inconclusive": "yellow"}


def comparison_renderable(comparison: Comparison, *, console: Console) -> RenderableType:
    """Return *comparison* for *console*, which decides on width, colour and lines."""
    parts: list[RenderableType] = [Text(safe(introduction(comparison)))]
    for cell in comparison.cells:
        parts += [Text(), Text(safe(heading(cell)), style="bold"), _table(comparison, cell, console)]
        parts += [*_bars(cell, console), *_details(cell, console)]
        lines = [*remarks(cell, comparison), walls(cell)]
        parts += [_remark(safe(line)) for line in lines if line is not None]
    if (warning := closing(comparison)) is not None:
        parts += [Text(), Text(warning)]
    return Group(*parts)


def comparison_text(comparison: Comparison, *, width: int = 100) -> str:
    """Return *comparison* as plain text, without colour or drawn lines."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(comparison_renderable(comparison, console=console))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _table(comparison: Comparison, cell: Cell, console: Console) -> Table:
    is_wide = console.width >= _WIDE
    # One column of space between columns, which SIMPLE_HEAD brings along: with more, 100 columns do not do.
    drawn, padding = (box.SIMPLE_HEAD, 0) if console.is_terminal else (None, (0, 1, 0, 0))
    table = Table(box=drawn, padding=padding, pad_edge=False, show_edge=False)
    titles = [comparison.by.rpartition(".")[2], "effective", "n", comparison.metric, f"vs {cell.reference} [90\u00a0%]"]
    titles += ["verdict", "step ms", "samples/s", "speed-up [95\u00a0%]"]
    for column, title in enumerate(titles):
        table.add_column(
            Text("\n".join(textwrap.wrap(safe(title), width=40 if is_wide else _TITLE_WIDTH))),
            justify="right" if column in _RIGHT else "left",
            no_wrap=column == _VERDICT or (console.width >= _DESIGN_WIDTH and column not in _FOLDED),
            overflow="fold",
        )
    for row in cell.rows:
        words = row_words(row, cell)
        table.add_row(
            Text(safe(words.level)),
            Text(safe(words.effective)),
            Text(words.counts),
            _estimate(words.mean, words.half_interval, is_wide=is_wide),
            _estimate(words.difference, words.difference_interval, is_wide=is_wide),
            Text(words.verdict, style=_STYLES.get(words.verdict, "")),
            Text(words.step_ms),
            Text(words.samples_per_s),
            _estimate(words.speedup, words.speedup_interval, is_wide=is_wide),
        )
    return table


def _bars(cell: Cell, console: Console) -> Iterator[RenderableType]:
    """Yield the differences on one axis, in plain characters where nobody is looking or others cannot be shown."""
    marks = DRAWN if console.is_terminal and can_draw(console.encoding) else PLAIN
    widest = max(len(safe(row.level)) for row in cell.rows) + _INDENT + 2
    bars = interval_bars(cell, width=min(_BAR_WIDTH, console.width - widest), marks=marks)
    if bars:
        margins = "" if cell.margin is None else f", {marks.margin} the margin"
        yield Text(f"{'':{_INDENT}}differences to {safe(cell.reference)} [90\u00a0%]: {marks.zero} zero{margins}")
    for bar in bars:
        yield Text(
            f"{'':{_INDENT}}{safe(bar.level):{widest - _INDENT}}{bar.text}".rstrip(), no_wrap=True, overflow="crop"
        )


def _details(cell: Cell, console: Console) -> Iterator[RenderableType]:
    """Yield the other quantities, a line for each and a column for each row of the cell; as many as fit beside."""
    found = details(cell)
    if not found:
        return
    labels = max(len(detail.label) for detail in found) + _INDENT
    levels = [safe(row.level) for row in cell.rows]
    widths = [max(len(level), *(len(d.texts[at]) for d in found)) + 2 for at, level in enumerate(levels)]
    first = 0
    while first < len(levels):
        last = first + 1
        while last < len(levels) and labels + sum(widths[first : last + 1]) <= console.width:
            last += 1
        yield Text()
        yield _detail_table(found, levels, range(first, last))
        first = last


def _detail_table(found: Sequence[Detail], levels: Sequence[str], shown: range) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for at in shown:
        table.add_column(Text(levels[at]), overflow="fold")
    for detail in found:
        if any(detail.texts[at] for at in shown):
            table.add_row(Text(f"{'':{_INDENT}}{detail.label}"), *(Text(safe(detail.texts[at])) for at in shown))
    return table


def _estimate(value: str, interval: str, *, is_wide: bool) -> Text:
    return Text((" " if is_wide else "\n").join(part for part in (value, interval) if part))


def _remark(remark: str) -> RenderableType:
    return Padding(Text(f"- {remark}", style="bold red" if remark.startswith("CONFOUNDED") else ""), (0, 0, 0, 2))
