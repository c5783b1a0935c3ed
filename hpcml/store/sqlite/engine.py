"""SQLAlchemy over an SQLite file: connections for writing, how transactions begin, and how the schema is made."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect

from hpcml.errors import StoreError
from hpcml.store.database import APPLICATION_ID, REVISION
from hpcml.store.sqlite.location import another_programs, is_made

log = logging.getLogger(__name__)

_WRITE = {"hpcml_write": True}
_PLAIN = {"hpcml_plain": True}


def make_engine(
    connect: Callable[[], sqlite3.Connection],
    *,
    prepare: Callable[[sqlite3.Connection], None],
    begin: Callable[[Connection], None],
) -> Engine:
    """Return an engine that holds no file open while it is not used, not even after a fork.

    *connect* opens the file anew for each connection, and *prepare* is called with the new connection, for pragmas.
    Foreign keys are checked. *begin* begins each transaction (`begin_as_told`).
    """
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: schema changes are transactional too
        connection.execute("PRAGMA foreign_keys = ON")
        prepare(connection)

    event.listen(engine, "begin", begin)
    return engine


def for_writing(engine: Engine) -> Engine:
    """Return *engine* with connections whose transactions keep others from writing."""
    return engine.execution_options(**_WRITE)


def as_it_is(engine: Engine) -> Engine:
    """Return *engine* with connections that begin no transaction by themselves."""
    return engine.execution_options(**_PLAIN)


def begin_as_told(connection: Connection) -> None:
    """Begin the transaction that the options of *connection* name.

    Plain connections begin nothing (`as_it_is`), those for writing take the
    lock at once (BEGIN IMMEDIATE, sqlite.org/lang_transaction.html), all others begin as readers.
    """
    options = connection.get_execution_options()
    if not options.get("hpcml_plain", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("hpcml_write", False) else "BEGIN")


def driver_of(connection: Connection) -> sqlite3.Connection:
    """Return the driver's own connection below *connection*."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def connection_over(driver: sqlite3.Connection) -> Connection:
    """Return a connection that goes on in the transaction that *driver* is in; closing it closes *driver* too."""
    ready = [driver, sqlite3.connect(":memory:")]
    engine = create_engine("sqlite://", creator=ready.pop, poolclass=NullPool)
    engine.connect().close()  # SQLAlchemy rolls back on the first connection that it sees
    return engine.connect()


def make_if_empty(engine: Engine, path: Path) -> None:
    """Make the schema in the file *path*, behind *engine*, where there is none, in one transaction.

    Of several processes that start at once, one makes it and the others find it done. Raises `StoreError` for tables of
    another program, and for a schema of another version.
    """
    with for_writing(engine).connect() as connection, connection.begin():
        if is_made(driver_of(connection), path):  # somebody else was faster
            return
        # Imported here, since Alembic would double the start-up time of every command that writes.
        from hpcml.store.create import create_schema  # noqa: PLC0415

        if inspect(connection).get_table_names():
            raise StoreError(another_programs(path))
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        create_schema(connection)
        log.info("made %s with schema %s", path, REVISION)
