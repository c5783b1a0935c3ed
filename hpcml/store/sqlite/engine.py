"""SQLAlchemy over an SQLite file: connections for writing, how transactions begin, and the upgrade of the schema."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect

from hpcml.errors import StoreError
from hpcml.store.database import APPLICATION_ID, REVISION
from hpcml.store.sqlite.backups import keep_before_upgrade
from hpcml.store.sqlite.location import another_programs, newer, revision_of
from hpcml.store.sqlite.new import make_if_empty

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


def bring_up_to_date(engine: Engine, path: Path) -> None:
    """Make or upgrade the schema behind *engine*, after a check and a backup beside *path*.

    All of it is one transaction: a failed upgrade leaves the file as it was. Of several processes that start at once,
    one upgrades and the others find it done. Raises `StoreError` for tables of another program, a newer schema, and
    where no backup can be made.
    """
    with for_writing(engine).connect() as connection, connection.begin():
        revision = revision_of(driver_of(connection))  # somebody else may have been faster
        if revision == REVISION or make_if_empty(driver_of(connection), path):
            return
        # Imported here, since Alembic would double the start-up time of every command that writes.
        from hpcml.store.upgrade import known_revisions, upgrade  # noqa: PLC0415

        if revision is None:
            if inspect(connection).get_table_names():
                raise StoreError(another_programs(path))
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        elif revision not in known_revisions():
            raise StoreError(newer(path, revision))
        else:
            with as_it_is(engine).connect() as another:
                keep_before_upgrade(driver_of(another), path, revision)
        upgrade(connection)
        log.info("upgraded %s from schema %s to %s", path, revision, REVISION)
