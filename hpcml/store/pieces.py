"""Many ids in statements: a statement has room for so many variables, and for so long a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, literal_column

_MAX_VARIABLES = 900  # SQLite before 3.32 takes 999 in one statement
_MAX_NUMBERS = 10_000  # a statement of a tenth of the million bytes that SQLite takes

T = TypeVar("T")


def within(column: Column[Any], ids: Sequence[int]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that *column* is one of *ids*, in pieces for one statement each.

    The numbers stand in the statement's text: ten times fewer statements than with a variable for each.
    """
    for at in range(0, len(ids), _MAX_NUMBERS):
        among = ",".join(map(str, map(int, ids[at : at + _MAX_NUMBERS])))
        yield column.op("IN", is_comparison=True)(literal_column(f"({among})"))


def chunked(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield *items* in pieces that fit the variables of one statement.

    >>> [len(piece) for piece in chunked(range(1000))]
    [900, 100]
    """
    for at in range(0, len(items), _MAX_VARIABLES):
        yield items[at : at + _MAX_VARIABLES]
