"""Locks for writing on a server, by name and for one transaction; in an SQLite file they are not needed.

Several users fill one server at once. Each transaction locks what it is about to write, always in this order so that
two never wait for each other: the names of metrics, one run. They are PostgreSQL's advisory locks, released at the end
of the transaction. The lock of PostgreSQL takes two 4-byte numbers (PostgreSQL manual, "Advisory Lock Functions"): the
first says what is locked, the second is a hash of the schema and the name. Two names with the same hash wait for each
other now and then, which costs time and is never wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import TYPE_CHECKING

from hpcml.store.database import APPLICATION_ID

if TYPE_CHECKING:
    from sqlalchemy import Connection

SERVER = "postgresql"


_HOLD_ALL = (  # of a list without a sort, whose rows come in its order
    "SELECT count(pg_advisory_xact_lock(%s, hashtext(current_schema() || ' ' || uid))) FROM unnest(%s::text[]) AS uid"
)


class _Kind(IntEnum):
    """The kinds of locks, in the order in which a transaction takes them; the numbers are those on the server."""

    SCHEMA = 0
    NAMES = 1
    RUN = 2
    SCHEDULER = 3
    WORDS = 4


def is_server(connection: Connection) -> bool:
    """Whether the database is a server, on which others may write at the same time."""
    return connection.dialect.name == SERVER


def hold_schema(connection: Connection) -> None:
    """Lock the schema, which is about to be made."""
    _hold(connection, _Kind.SCHEMA, "")


def hold_run(connection: Connection, uid: str) -> None:
    """Lock the run *uid*, and share the lock of names and settings, none of which may be deleted meanwhile.

    Ingests of different runs go on side by side. The locks end with the transaction.
    """
    _hold(connection, _Kind.NAMES, "", shared=True)
    _hold(connection, _Kind.RUN, uid)


def hold_runs(connection: Connection, uids: Collection[str]) -> None:
    """Do what `hold_run` does, of many runs at once; in the order of their uids, so that two never wait for each other.

    No other run may be locked by the transaction already.
    """
    if not is_server(connection) or not uids:
        return
    _hold(connection, _Kind.NAMES, "", shared=True)
    connection.exec_driver_sql(_HOLD_ALL, (APPLICATION_ID + _Kind.RUN, sorted(uids)))


def hold_names(connection: Connection) -> None:
    """Lock the names of metrics and the settings of runs, so that those that nobody uses can be deleted."""
    _hold(connection, _Kind.NAMES, "")


def hold_scheduler(connection: Connection, scheduler: str) -> None:
    """Lock the polls of *scheduler* (`hpcml.store.scheduler_polls`)."""
    _hold(connection, _Kind.SCHEDULER, scheduler)


def hold_words(connection: Connection) -> None:
    """Lock what schedulers reported of jobs."""
    _hold(connection, _Kind.WORDS, "")


def _hold(connection: Connection, kind: _Kind, name: str, *, shared: bool = False) -> None:
    if not is_server(connection):
        return
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    # these locks are the database's, which may hold a store in each of several schemas
    of_schema = "SELECT {}(%s, hashtext(current_schema() || ' ' || %s))"
    connection.exec_driver_sql(of_schema.format(function), (APPLICATION_ID + kind, name))
