"""A plain listing, headings with rows of values, as table, Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcml.codec import encode
from hpcml.report.render.data import csv_text, json_text
from hpcml.report.render.markdown import markdown_table, safe_markdown
from hpcml.report.render.terminal import bare_table, table_width, that_fit
from hpcml.report.text import duration, number, safe

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
    """Return *rows* as a table for *console*.

    Each row has a value for every heading; a value is written as `value_words` says, with *digits* significant digits.
    Where the console is too narrow, *dispensable* columns are left out, the first of them first; with *standing* long
    cells are cut instead, and where that is not enough each row becomes a block.
    """
    titles, words = list(map(safe, headings)), _in_words(headings, rows, digits)
    shown = that_fit(titles, words, width=console.width, dispensable=dispensable)
    titles, words = [titles[at] for at in shown], [[line[at] for at in shown] for line in words]
    if standing and table_width(titles, words) > console.width:
        words = [[_cut(word) for word in line] for line in words]
        if table_width(titles, words) > console.width:
            return _blocks(titles, _in_words(headings, rows, digits))
    table = bare_table(console)
    for at, title in enumerate(titles):
        is_number = all(isinstance(row[shown[at]], int | float | None) for row in rows)
        table.add_column(Text(title), justify="right" if is_number and rows else "left", overflow="fold")
    for line in words:
        table.add_row(*map(Text, line))
    return table


def value_markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return *rows* as a Markdown table; a column that has numbers alone is aligned to the right."""
    numbers = [at for at in range(len(headings)) if all(isinstance(row[at], int | float | None) for row in rows)]
    cells = [
        [safe_markdown(value_words(value, heading)) for heading, value in zip(headings, row, strict=True)]
        for row in rows
    ]
    return "\n".join([*markdown_table([safe_markdown(heading) for heading in headings], cells, right=numbers), ""])


def value_csv(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return *rows* as CSV with all digits of numbers; lists as JSON."""
    return csv_text(headings, ([_packed(encode(value)) for value in row] for row in rows))


def value_json(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a JSON list with an object for each row; its keys are the headings."""
    return json_text([dict(zip(headings, map(encode, row), strict=True)) for row in rows])


def value_words(value: object, heading: str = "", digits: int = _DIGITS) -> str:
    """Return *value* as people read it; its *heading* tells the unit. "" for None.

    Under ``t_start``, ``t_end`` and ``at`` numbers are unix seconds and become dates in the zone of this machine; under
    ``age`` and ``wall_s`` they are spans in seconds; ``tags`` and ``notes`` are lists. Others are written as they are.

    >>> value_words(90.0, "wall_s"), value_words(["a", "b"], "tags"), value_words(True)
    ('1m30s', 'a, b', 'true')
    """
    value = encode(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and heading in _MOMENTS:
        return datetime.fromtimestamp(value, UTC).astimezone().isoformat(sep=" ", timespec="seconds")
    if isinstance(value, int | float) and heading in _SPANS:
        return duration(value)
    if isinstance(value, list) and heading in _LISTS:
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return number(value, digits)
    return "" if value is None else str(_packed(value))


def width_of(headings: Sequence[str], rows: Sequence[Sequence[object]], *, digits: int = _DIGITS) -> int:
    """Return the width of the table in characters, where no cell is wrapped."""
    return table_width(list(map(safe, headings)), _in_words(headings, rows, digits))


def _in_words(headings: Sequence[str], rows: Sequence[Sequence[object]], digits: int) -> list[list[str]]:
    return [[safe(value_words(each, name, digits)) for name, each in zip(headings, row, strict=True)] for row in rows]


def _packed(value: object) -> object:
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, list | dict) else value


def _cut(word: str) -> str:
    return word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…"


def _blocks(titles: Sequence[str], words: Sequence[Sequence[str]]) -> Group:
    """Return each row as a block, with a line for each value that is not empty."""
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
