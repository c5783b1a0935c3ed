"""`StoreReader`, one state of a store, asked in SQL: every text is one that SQLite and PostgreSQL both take.

What is read often is asked in plain SQL, so that an answer does not wait for SQLAlchemy, whose import takes longer than
most of them; what is put together of many parts, and all that is written, goes through SQLAlchemy (`connection`).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcml.store.parse import storable

if TYPE_CHECKING:
    from sqlalchemy import Connection

_LIST = re.compile(r"\b(NOT )?IN :(\w+)")
_VALUE = re.compile(r"(?<!:):(\w+)")
_AT_ONCE = 1000  # rows that are held at a time: Python keeps the memory of that many for the next ones
Row = tuple[Any, ...]


class StoreReader(ABC):
    """One state of a store, from `Database.reading`; whatever others write meanwhile is not seen.

    A value is named in the text by ``:name``; one that follows IN is a list of any length, of whole numbers or of
    texts. Rows are the driver's tuples: a truth is 0 or 1 in SQLite.

    >>> reading.rows("SELECT uid FROM run WHERE state IN :states AND seed = :seed", states=["failed"], seed=0)
    [('20261121-083015-222abcde',)]  # doctest: +SKIP
    """

    is_server: bool

    def rows(self, sql: str, /, **values: object) -> list[Row]:
        """Return all rows of *sql*, one SELECT of our own; what a user wrote belongs into *values*."""
        return self._ask(sql, values).fetchall()  # type: ignore[no-any-return]

    def each(self, sql: str, /, **values: object) -> Iterator[list[Row]]:
        """Yield the rows of *sql* in lists of many, so that no more than those are held."""
        cursor = self._ask(sql, values)
        while rows := cursor.fetchmany(_AT_ONCE):
            yield rows

    def column(self, sql: str, /, **values: object) -> list[Any]:
        """Return the first value of each row."""
        return [row[0] for row in self.rows(sql, **values)]

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """SQLAlchemy's connection to the same state, for a question that is put together of many parts."""

    @abstractmethod
    def _ask(self, sql: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - a cursor of any driver
        """Return a cursor with the answer."""


class OverSqlalchemy(StoreReader):
    """A state seen through a connection of SQLAlchemy: of a server, or inside of what is being written."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_server = connection.dialect.name == "postgresql"

    @property
    def connection(self) -> Connection:
        """The connection."""
        return self._connection

    def _ask(self, sql: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - as above
        text, given = _on_server(sql, values) if self.is_server else in_sqlite(sql, values)
        return self._connection.exec_driver_sql(text, given).cursor


def in_sqlite(sql: str, values: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return *sql* and its *values* as the driver of SQLite takes them."""
    return _sqlite_text(sql), {name: _given(value, json.dumps) for name, value in values.items()}


def _on_server(sql: str, values: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    return _server_text(sql), {name: _given(value, list) for name, value in values.items()}


def _given(value: object, convert: Callable[[list[Any]], object]) -> object:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Collection):
        return convert([storable(each) if isinstance(each, str) else each for each in value])
    return value


@cache
def _sqlite_text(sql: str) -> str:
    """Return *sql* with each list as one value, a JSON text: a statement has room for so many variables only.

    >>> _sqlite_text("SELECT 1 FROM run WHERE uid IN :uids AND id = :id")
    'SELECT 1 FROM run WHERE uid IN (SELECT value FROM json_each(:uids)) AND id = :id'
    """
    return _LIST.sub(r"\1IN (SELECT value FROM json_each(:\2))", sql)


@cache
def _server_text(sql: str) -> str:
    """Return *sql* as psycopg takes it, with arrays for lists and PostgreSQL's own name of SQLite's group_concat.

    >>> _server_text("SELECT 1 FROM run WHERE uid IN :uids AND state NOT IN :states AND id = :id")
    'SELECT 1 FROM run WHERE uid = ANY(%(uids)s) AND state <> ALL(%(states)s) AND id = %(id)s'
    """
    listed = _LIST.sub(lambda found: f"<> ALL(:{found[2]})" if found[1] else f"= ANY(:{found[2]})", sql)
    return _VALUE.sub(r"%(\1)s", listed.replace("%", "%%").replace("group_concat(", "string_agg("))
