"""Who waits for whom while writing: on a server by name, for one transaction; in a file nobody else writes anyway.

Several users fill one server at once. Each transaction names what it is about to write, in this order, so that two
never wait for each other: the schema (all who write, together), the metrics' names, one run.
"""

from __future__ import annotations

from enum import IntEnum

from sqlalchemy import Connection

from hpcml.store.tables import APPLICATION_ID

SERVER = "postgresql"
WRITE = "hpcml_write"  # the execution option of a connection whose transactions write


class _Kind(IntEnum):
    SCHEMA = 0
    NAMES = 1
    RUN = 2
    SCHEDULER = 3
    WORDS = 4


def is_server(connection: Connection) -> bool:
    """Whether others may write at the same time."""
    return connection.dialect.name == SERVER


def share_schema(connection: Connection) -> None:
    """Keep the schema as it is."""
    _hold(connection, _Kind.SCHEMA, "", shared=True)


def hold_schema(connection: Connection) -> None:
    """Let nobody else write, or change the schema."""
    _hold(connection, _Kind.SCHEMA, "")


def hold_run(connection: Connection, uid: str) -> None:
    """Let nobody else write the run *uid*, or take a metric's name away."""
    _hold(connection, _Kind.NAMES, "", shared=True)
    _hold(connection, _Kind.RUN, uid)


def hold_run_and_names(connection: Connection, uid: str) -> None:
    """Let nobody else write the run *uid*, and nobody any run that may need a metric's name."""
    _hold(connection, _Kind.NAMES, "")
    _hold(connection, _Kind.RUN, uid)


def hold_scheduler(connection: Connection, scheduler: str) -> None:
    """Let nobody else claim or record a poll of *scheduler*."""
    _hold(connection, _Kind.SCHEDULER, scheduler)


def hold_words(connection: Connection) -> None:
    """Let nobody else write what schedulers said."""
    _hold(connection, _Kind.WORDS, "")


def _hold(connection: Connection, kind: _Kind, name: str, *, shared: bool = False) -> None:
    if not is_server(connection):
        return
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    # these locks are the database's, which may hold a store in each of several schemas
    of_schema = "SELECT {}(%s, hashtext(current_schema() || ' ' || %s))"
    connection.exec_driver_sql(of_schema.format(function), (APPLICATION_ID + kind, name))
