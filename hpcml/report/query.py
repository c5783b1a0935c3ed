"""Rows of an SQL statement (`hpcml query`), and chosen columns of runs (`hpcml runs --columns`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hpcml.report.document import Column, Document, Listing, written
from hpcml.report.text import duration, number

_MOMENTS = ("t_start", "t_end", "at")  # unix seconds
_SPANS = ("age", "wall_s")
_DIGITS = 6


def rows_document(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Document:
    """Return *rows*, each with a value for every one of *columns*; what these are called tells their unit."""
    return Document.of(Listing(columns=[_column(index, name) for index, name in enumerate(columns)], rows=rows))


def views_document(views: Mapping[str, tuple[str, Sequence[str]]]) -> Document:
    """Return the views that can be queried, each with its description and columns; *views* has these two by name."""
    rows = [(name, what, ", ".join(columns)) for name, (what, columns) in views.items()]
    return rows_document(("view", "a row for each", "columns"), rows)


def _column(index: int, name: str) -> Column[Sequence[Any]]:
    return Column(name, name, lambda row: row[index], lambda row: value_words(row[index], name))


def value_words(value: object, name: str = "") -> str:
    """Return *value* as people read it, with six digits; its *name* tells the unit. "" for None.

    Under ``t_start``, ``t_end`` and ``at`` numbers are unix seconds and become dates in the zone of this machine; under
    ``age`` and ``wall_s`` they are spans in seconds.

    >>> value_words(90.0, "wall_s"), value_words(["a", "b"], "tags"), value_words(True)
    ('1m30s', 'a, b', 'true')
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name in _MOMENTS:
            return datetime.fromtimestamp(value, UTC).astimezone().isoformat(sep=" ", timespec="seconds")
        if name in _SPANS:
            return duration(value)
        if isinstance(value, float):
            return number(value, _DIGITS)
    return written(value)
