"""`hpcml query`: one SQL statement of a user, which the database itself restricts to reading, and to a time limit."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from hpcml.errors import StoreError
from hpcml.model.query_results import SqlRows
from hpcml.spelling import did_you_mean
from hpcml.store.database import Database
from hpcml.store.parse import storable
from hpcml.store.views import VIEWS

_READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
_CALLS_BETWEEN_LOOKS = 20_000  # of SQLite's virtual machine: some milliseconds
_UNKNOWN_TABLE = re.compile(r"no such table: (?:main\.)?(\S+)|relation \"(\S+)\" does not exist")
_UNKNOWN_COLUMN = re.compile(r"no such column|column \S+ does not exist")


def ask(store: Database, sql: str, *, limit_s: float) -> SqlRows:
    """Return the rows of *sql*, one statement that only reads; all are of one state of the store.

    After *limit_s* seconds the statement is given up. Raises `StoreError` for what is wrong with it. Values are as JSON
    has them: None, bool, int, float and text; bytes become hexadecimal text. Columns of the same name are told apart
    (``uid``, ``uid:1``). All rows are held in memory, so a question about points wants a LIMIT.

    Raises `StoreError` for an empty text, several statements, one that writes, an unknown table or column (with similar
    names), and for no answer in time. The store cannot be changed by *sql*, whatever it says.

    >>> ask(store, "SELECT state, count(*) AS n FROM runs GROUP BY state", limit_s=10.0).columns  # doctest: +SKIP
    ['state', 'n']
    """
    if not sql.strip(" \t\r\n;"):
        raise StoreError("query: there is no statement to answer")
    if storable(sql) != sql:
        raise StoreError(f"query: {sql!r} holds what is no UTF-8 text, and no database takes: leave that out")
    with store.reading() as connection:
        foreign = connection.dialect.loaded_dbapi
        begun = time.monotonic()
        try:
            with _guarded(connection, limit_s) as cursor:
                if connection.dialect.name == "postgresql":
                    _take_one_statement(cursor.connection.pgconn, sql)
                cursor.execute(sql)
                if cursor.description is None:
                    raise StoreError("query: that is no question: write SELECT ...")
                columns = [str(column[0]) for column in cursor.description]
                return SqlRows(columns=_distinct(columns), rows=[tuple(map(_plain, row)) for row in cursor])
        except (foreign.Error, foreign.Warning) as error:
            raise StoreError(_explained(error, is_late=time.monotonic() - begun >= limit_s, limit_s=limit_s)) from error


def _take_one_statement(server: Any, sql: str) -> None:  # noqa: ANN401 - psycopg's, whose import costs time
    """Raise what the server says of *sql* where that is not one statement, whatever is in the text.

    It parses one at a time (PostgreSQL manual, "Extended Query"), while a text without parameters is sent as a whole.
    What was parsed has no name: nothing of it stays for whom a pool of connections gives this one next.
    """
    from psycopg.errors import error_from_result  # noqa: PLC0415

    answer = server.prepare(b"", sql.encode())
    if answer.error_message:
        raise error_from_result(answer, "utf-8")


@contextmanager
def _guarded(connection: Connection, limit_s: float) -> Iterator[Any]:
    """Yield a cursor of the driver that can only read, and for *limit_s* at most.

    On a server the transaction is READ ONLY with a ``statement_timeout``. In SQLite an authorizer lets only SELECT and
    functions pass (sqlite.org/c3ref/set_authorizer.html), and a progress handler ends what takes too long. What is set
    on the connection is taken back at the end.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql":
        # in this transaction alone; the store's own is READ ONLY already, and once it is, it cannot be taken back
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, round(limit_s * 1000))}")
        cursor = driver.cursor()
        try:
            yield cursor
        finally:
            cursor.close()
        return
    give_up_at = time.monotonic() + limit_s
    driver.execute("PRAGMA query_only = ON")
    driver.text_factory = lambda text: text.decode(errors="replace")  # JSON may name halves of characters
    driver.set_authorizer(_authorize)
    driver.set_progress_handler(lambda: time.monotonic() > give_up_at, _CALLS_BETWEEN_LOOKS)
    cursor = driver.cursor()
    try:
        yield cursor
    finally:
        cursor.close()
        driver.set_progress_handler(None, 0)
        driver.set_authorizer(None)
        driver.text_factory = str
        driver.execute("PRAGMA query_only = OFF")


def _authorize(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    is_loading = action == sqlite3.SQLITE_FUNCTION and "load_extension" in (first, second)
    return sqlite3.SQLITE_OK if action in _READING and not is_loading else sqlite3.SQLITE_DENY


def _plain(value: object) -> object:
    """Return *value* as JSON has it: bytes in hexadecimal, and what is neither number nor text as text."""
    if isinstance(value, Decimal):  # what PostgreSQL makes of sums
        return int(value) if value.is_finite() and value == int(value) else float(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _distinct(columns: Iterable[str]) -> list[str]:
    """Return the names, a second ``uid`` as ``uid:1``: as SQLite names the columns of a view.

    >>> _distinct(["uid", "n", "uid"])
    ['uid', 'n', 'uid:1']
    """
    seen: Counter[str] = Counter()
    names: list[str] = []
    for column in columns:
        name = column
        while name in names:
            seen[column] += 1
            name = f"{column}:{seen[column]}"
        names.append(name)
    return names


def _explained(error: Exception, *, is_late: bool, limit_s: float) -> str:
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    words = " ".join(str(primary or error).split())
    if is_late and re.search("interrupted|statement timeout", words):
        return f"query: no answer within {limit_s:g} s: ask for less, or give it longer (--timeout)"
    if re.search("not authorized|read-only transaction", words):  # SQLite's code is not always that of an authorizer
        return f"query: the store is only read from here: write SELECT ... ({words})"
    if re.search("one statement at a time|multiple commands", words):
        return "query: give one statement at a time"
    if unknown := _UNKNOWN_TABLE.search(words):
        candidates = did_you_mean(unknown[1] or unknown[2], VIEWS) or f"there are {', '.join(VIEWS)}"
        return f"query: {words}; {candidates}"
    return f"query: {words}{'; hpcml query lists the columns' if _UNKNOWN_COLUMN.search(words) else ''}"
