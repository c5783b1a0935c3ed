"""Tables that others published (published_tables.toml), as printed; hpcml measured none of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedColumn:
    """A column: its title without the unit, and whether its cells are numbers."""

    title: str
    unit: str = ""
    is_number: bool = False
    is_derived: bool = False  # computed from two other columns, not printed


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One table; a cell is what was printed, and empty where nothing was, or where it does not apply.

    Raises `ValueError` where a row has not one cell for each column, or a cell of a column of numbers is none.
    """

    key: str
    title: str
    source: str
    columns: Sequence[PublishedColumn]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.key}: {len(row)} cells for {len(self.columns)} columns: {row}")
            for column, cell in zip(self.columns, row, strict=True):
                if column.is_number and cell and _decimal(cell) is None:
                    raise ValueError(f"{self.key}: {column.title} is no number: {cell!r}")

    def numbers(self, title: str) -> list[Decimal | None]:
        """Return the column called *title*, with the digits that it was printed with; None for an empty cell."""
        [at] = [at for at, column in enumerate(self.columns) if column.title == title and column.is_number]
        return [_decimal(row[at]) for row in self.rows]


@cache
def published_tables() -> Sequence[PublishedTable]:
    """Return all tables, in the order of the file."""
    path = Path(__file__).with_name("published_tables.toml")
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(_table(key, row, raw["sources"]) for key, row in raw["tables"].items())


def _table(key: str, raw: Mapping[str, Any], sources: Mapping[str, str]) -> PublishedTable:
    columns = [_column(words, raw.get("numbers", ())) for words in raw["columns"]]
    rows = [_cells(line, len(columns)) for line in raw["rows"].strip().splitlines()]
    if "difference" in raw or "ratio" in raw:
        columns, rows = _with_derived(raw, columns, rows)
    return PublishedTable(
        key=key,
        title=raw["title"],
        source=sources[raw["source"]],
        columns=columns,
        rows=rows,
        notes=raw.get("notes", ()),
    )


def _column(words: str, numbers: Sequence[str]) -> PublishedColumn:
    title, _, unit = words.removesuffix("]").partition(" [")
    return PublishedColumn(title=title, unit=unit, is_number=title in numbers)


def _cells(line: str, n: int) -> list[str]:
    cells = [cell.strip() for cell in re.split(r"(?:^|\s)\|(?=\s|$)", line)]
    return [*cells, *[""] * (n - len(cells))]  # empty ones at the end are not written


def _with_derived(
    raw: Mapping[str, Any], columns: list[PublishedColumn], rows: list[list[str]]
) -> tuple[list[PublishedColumn], list[list[str]]]:
    is_difference = "difference" in raw
    titles = raw["difference" if is_difference else "ratio"]
    first, second = ([column.title for column in columns].index(title) for title in titles)
    values = [_derived(row[first], row[second], is_difference=is_difference) for row in rows]
    column = PublishedColumn(
        title=" ".join((titles[0], "-" if is_difference else "/", titles[1])),
        unit=columns[first].unit if is_difference else "x",
        is_number=True,
        is_derived=True,
    )
    return [*columns, column], [[*row, value] for row, value in zip(rows, values, strict=True)]


def _derived(first: str, second: str, *, is_difference: bool) -> str:
    one, other = _decimal(first), _decimal(second)
    if one is None or other is None:
        return ""
    return f"{one - other:+f}" if is_difference else f"{float(one / other):.3g}"


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
