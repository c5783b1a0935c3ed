"""Many ids, and many rows, in statements, which have room for so many variables only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Text, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

_MAX_VARIABLES = 900  # SQLite before 3.32 takes 999 in one statement
_MAX_NUMBERS = 10_000  # the answers to more are better had one after the other

T = TypeVar("T")


class _Numbers(FunctionElement[int]):
    """The whole numbers of a text that is a JSON list, as rows: one variable, and one statement, for any of them."""

    inherit_cache = True


class _Texts(FunctionElement[str]):
    """The same of texts."""

    inherit_cache = True


@compiles(_Numbers, "sqlite")
@compiles(_Texts, "sqlite")
def _in_sqlite(element: _Numbers | _Texts, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    return f"(SELECT value FROM json_each({compiler.process(element.clauses, **options)}))"  # noqa: S608 - a variable


@compiles(_Numbers, "postgresql")
def _in_postgres(element: _Numbers, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's own
    texts = f"json_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS json))"
    return f"(SELECT CAST({texts} AS integer))"


@compiles(_Texts, "postgresql")
def _texts_in_postgres(element: _Texts, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    return f"(SELECT json_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS json)))"


def within(column: Column[Any], ids: Sequence[int]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that *column* is one of *ids*, in pieces for one statement each."""
    for piece in chunked(ids, _MAX_NUMBERS):
        yield column.op("IN", is_comparison=True)(_Numbers(literal(json.dumps(list(piece)), Text)))


def among(column: Column[Any], texts: Sequence[str]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that *column* is one of *texts*, in pieces for one statement each."""
    for piece in chunked(texts, _MAX_NUMBERS):
        yield column.op("IN", is_comparison=True)(_Texts(literal(json.dumps(list(piece)), Text)))


def chunked(items: Sequence[T], size: int = _MAX_VARIABLES) -> Iterator[Sequence[T]]:
    """Yield *items* in pieces of *size*, by default of as many as fit the variables of one statement.

    >>> [len(piece) for piece in chunked(range(1000))]
    [900, 100]
    """
    for at in range(0, len(items), size):
        yield items[at : at + size]


def insert_rows(connection: Connection, into: str, values: Sequence[object], width: int, *, over: str = "") -> None:
    """Insert rows of *width* columns *into* an SQLite table, whose values follow each other in *values*.

    *into* names the table and its columns, *over* is what is done with rows that are there already (ON CONFLICT). Many
    rows in one statement take half the time of a statement for each of them.
    """
    row = f"({', '.join('?' * width)})"
    size = _MAX_VARIABLES // width * width
    whole = len(values) // size * size
    if whole:
        many = f"INSERT INTO {into} VALUES {', '.join([row] * (size // width))} {over}"  # noqa: S608 - our own
        connection.exec_driver_sql(many, [tuple(values[at : at + size]) for at in range(0, whole, size)])
    if rest := tuple(values[whole:]):
        few = f"INSERT INTO {into} VALUES {', '.join([row] * (len(rest) // width))} {over}"  # noqa: S608 - our own
        connection.exec_driver_sql(few, rest)
