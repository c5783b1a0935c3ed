"""A store in one SQLite file that several processes of one host work in: made and upgraded, or left as it was."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect
from sqlalchemy.exc import DatabaseError

from hpcml.errors import StoreError
from hpcml.store.engine import Store
from hpcml.store.placement import Placement
from hpcml.store.sqlite_path import another_programs, check_file
from hpcml.store.tables import APPLICATION_ID, REVISION

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 60  # an ingest of a very long run may hold the file for seconds
_MODE_SWITCH_S = 5.0  # SQLite's busy handler does not cover a change of journal mode
_WRITE = {"hpcml_write": True}
_PLAIN = {"hpcml_plain": True}
_SCANT = 1 << 16  # bytes: less than SQLite asks for at once
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteFile(Store):
    """What all stores in an SQLite file have in common."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    @property
    def path(self) -> Path:
        """Where the file is, as the user names it."""
        return self.placement.path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def used(self) -> str:
        """The file system and how the file is used there."""
        return str(self.placement)

    def explained(self, error: DatabaseError) -> str:
        """Return one line on *error*, and what to do about it where we know that."""
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(self.path.parent)):
            return f"no room is left for the store {self.name}: what was just being read in was undone; free some space"
        if code in _DAMAGED:
            return damaged(self.name, str(error.orig))
        return super().explained(error)


def _is_full(folder: Path) -> bool:
    # of its log and its shared memory SQLite says only that they could not be written
    with suppress(OSError):
        return shutil.disk_usage(folder).free < _SCANT
    return False


def damaged(name: str, how: str) -> str:
    """Return one line on a file that SQLite cannot read, and the way out."""
    anew = f"rm -f {name} {name}-* and hpcml sync make it anew"
    return f"the store {name} is damaged ({how}): hpcml store check says more; {anew}"


class SqliteStore(SqliteFile):
    """A file that SQLite's own locks guard, since all who use it work on one host."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._engine = make_engine(lambda: sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S), prepare=_prepare)

        @event.listens_for(self._engine, "begin")
        def _begin(connection: Connection) -> None:
            begin(connection)
            if connection.exec_driver_sql("PRAGMA user_version").scalar_one():
                raise StoreError(f"another machine began to publish the store {self.name}: run this command again")

    @classmethod
    def open(cls, placement: Placement) -> SqliteStore:
        """Return the store in this file, made or upgraded where needed."""
        check_file(placement.path)
        try:
            os.close(os.open(placement.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"the store {placement.path} cannot be opened: {error.strerror}") from error
        store = cls(placement)
        with store.translated():
            bring_up_to_date(store._engine, placement.path)
            _set_journal_mode(store._engine, placement)
        return store

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the store from beginning to end."""
        with self.translated(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection of which each ``begin()`` waits until nobody else writes, and keeps others from it."""
        with self.translated(), for_writing(self._engine).connect() as connection:
            yield connection

    @contextmanager
    def maintaining(self) -> Iterator[Connection]:
        """Give a connection outside of any transaction."""
        with self.translated(), self._engine.execution_options(**_PLAIN).connect() as connection:
            yield connection

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()


def make_engine(connect: Callable[[], sqlite3.Connection], *, prepare: Callable[[sqlite3.Connection], None]) -> Engine:
    """Return an engine that holds no file open while it is not used: also one that was forgotten, or forked."""
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: schema changes are transactional too
        connection.execute("PRAGMA foreign_keys = ON")
        prepare(connection)

    return engine


def for_writing(engine: Engine) -> Engine:
    """Return *engine* with connections whose transactions keep others from writing."""
    return engine.execution_options(**_WRITE)


def as_it_is(engine: Engine) -> Engine:
    """Return *engine* with connections that begin no transaction by themselves."""
    return engine.execution_options(**_PLAIN)


def begin(connection: Connection) -> None:
    """Begin what the options of *connection* ask for."""
    options = connection.get_execution_options()
    if not options.get("hpcml_plain", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("hpcml_write", False) else "BEGIN")


def revision_of(connection: Connection) -> str | None:
    """Return the schema that the store has; None if it has none of ours."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
    return None if revision is None else str(revision)


def bring_up_to_date(engine: Engine, path: Path) -> None:
    """Make the schema in the file behind *engine*, or upgrade it, after a check and a backup beside *path*."""
    with engine.connect() as connection, connection.begin():
        if revision_of(connection) == REVISION:
            return
    # Imported here, since Alembic would double the start-up time of every command that finds nothing to upgrade.
    from hpcml.store.backups import keep_before_upgrade  # noqa: PLC0415
    from hpcml.store.upgrade import known_revisions, upgrade  # noqa: PLC0415

    with for_writing(engine).connect() as connection, connection.begin():
        revision = revision_of(connection)  # again: somebody else may have been faster
        if revision == REVISION:
            return
        if revision is None:
            if inspect(connection).get_table_names():
                raise StoreError(another_programs(path))
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        elif revision not in known_revisions():
            raise StoreError(newer(path, revision))
        else:
            keep_before_upgrade(engine, path, revision)
        upgrade(connection)
        log.info("upgraded %s from schema %s to %s", path, revision, REVISION)


def newer(path: Path, revision: str) -> str:
    """Return what is said of a store that a later version has made."""
    return f"the store {path} was written by a newer hpcml (schema {revision}): update hpcml"


def _prepare(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        # a power cut may take the last commits but never tears the file, and ingest does them again
        connection.execute("PRAGMA synchronous = NORMAL")


def _set_journal_mode(engine: Engine, placement: Placement) -> None:
    # Write-ahead logging needs memory shared by all who use the file, hence one machine (sqlite.org/wal.html).
    wanted = "wal" if placement.is_local else "delete"
    give_up_at = time.monotonic() + _MODE_SWITCH_S
    connection = engine.raw_connection()  # outside of any transaction, where alone the mode can change
    try:
        cursor = connection.cursor()
        while cursor.execute("PRAGMA journal_mode").fetchone()[0] != wanted and time.monotonic() < give_up_at:
            try:
                cursor.execute(f"PRAGMA journal_mode = {wanted}")
            except sqlite3.OperationalError:  # in use by others; either mode is right while one host uses the file
                time.sleep(0.02)
        cursor.close()
    finally:
        connection.close()
