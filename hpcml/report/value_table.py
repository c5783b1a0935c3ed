"""Rows of values under headings, whatever they are: for the terminal, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcml.codec import encode
from hpcml.report.plain_text import duration, json_ready, markdown_table, number, safe, safe_markdown
from hpcml.report.spreadsheet import csv_cell

_MOMENTS = ("t_start", "t_end", "at")  # unix seconds
_SPANS = ("age", "wall_s")
_LISTS = ("tag", "tags", "note", "notes")
_DIGITS = 6
_LONGEST = 60  # of a cell, where a row is a line; in the other forms it is whole


def value_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    console: Console,
    standing: bool = False,
    dispensable: Sequence[str] = (),
    digits: int = _DIGITS,
) -> RenderableType:
    """Return *rows* as a table.

    Where *console* is too narrow for it, *dispensable* columns are left out, the first of them first; with *standing*
    it becomes a block for each row.
    """
    titles, words = list(map(safe, headings)), _in_words(headings, rows, digits)
    shown = that_fit(titles, words, width=console.width, dispensable=dispensable)
    titles, words = [titles[at] for at in shown], [[line[at] for at in shown] for line in words]
    if standing and _width(titles, words) > console.width:
        words = [[_cut(word) for word in line] for line in words]
        if _width(titles, words) > console.width:
            return _blocks(titles, _in_words(headings, rows, digits))
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    for at, title in enumerate(titles):
        is_number = all(isinstance(row[shown[at]], int | float | None) for row in rows)
        table.add_column(Text(title), justify="right" if is_number and rows else "left", overflow="fold")
    for line in words:
        table.add_row(*map(Text, line))
    return table


def value_markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the same as a Markdown table."""
    numbers = [at for at in range(len(headings)) if all(isinstance(row[at], int | float | None) for row in rows)]
    cells = [
        [safe_markdown(value_words(value, heading)) for heading, value in zip(headings, row, strict=True)]
        for row in rows
    ]
    return "\n".join([*markdown_table([safe_markdown(heading) for heading in headings], cells, right=numbers), ""])


def value_csv(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the same as CSV, every number whole; lists as JSON."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([csv_cell(heading) for heading in headings])
    for row in rows:
        writer.writerow([csv_cell(_packed(encode(value))) for value in row])
    return target.getvalue()


def value_json(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a JSON list with an object for each row; its keys are the headings."""
    return as_json([dict(zip(headings, map(encode, row), strict=True)) for row in rows])


def as_json(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return encoded *value* as JSON text, with what JSON has no number for as text."""
    return json.dumps(json_ready(value), indent=2, allow_nan=False) + "\n"


def value_words(value: object, heading: str = "", digits: int = _DIGITS) -> str:
    """Return *value* as a person reads it, its unit by its *heading*; "" for None."""
    value = encode(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and heading in _MOMENTS:
        return datetime.fromtimestamp(value).astimezone().isoformat(sep=" ", timespec="seconds")
    if isinstance(value, int | float) and heading in _SPANS:
        return duration(value)
    if isinstance(value, list) and heading in _LISTS:
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return number(value, digits)
    return "" if value is None else str(_packed(value))


def that_fit(
    titles: Sequence[str], words: Sequence[Sequence[str]], *, width: int, dispensable: Sequence[str]
) -> list[int]:
    """Return the columns that there is room for in *width*, two blanks between them."""
    shown = list(range(len(titles)))
    for title in dispensable:
        taken = _width([titles[at] for at in shown], [[line[at] for at in shown] for line in words])
        if taken > width and title in titles:
            shown.remove(titles.index(title))
    return shown


def width_of(headings: Sequence[str], rows: Sequence[Sequence[object]], *, digits: int = _DIGITS) -> int:
    """Return how many columns of a terminal the table takes, where nothing is folded."""
    return _width(list(map(safe, headings)), _in_words(headings, rows, digits))


def _in_words(headings: Sequence[str], rows: Sequence[Sequence[object]], digits: int) -> list[list[str]]:
    return [[safe(value_words(each, name, digits)) for name, each in zip(headings, row, strict=True)] for row in rows]


def _packed(value: object) -> object:
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, list | dict) else value


def _cut(word: str) -> str:
    return word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…"


def _width(titles: Sequence[str], words: Sequence[Sequence[str]]) -> int:
    return sum(max(map(cell_len, column)) + 2 for column in zip(titles, *words, strict=True)) - 2


def _blocks(titles: Sequence[str], words: Sequence[Sequence[str]]) -> Group:
    blocks: list[RenderableType] = []
    for at, line in enumerate(words):
        block = Table(box=None, pad_edge=False, show_header=False)
        block.add_column(no_wrap=True, style="dim")
        block.add_column(overflow="fold")
        for title, word in zip(titles, line, strict=True):
            if word:
                block.add_row(Text(title), Text(word))
        blocks += [Text(f"{'' if at == 0 else chr(10)}row {at + 1}", style="bold"), block]
    return Group(*blocks)
