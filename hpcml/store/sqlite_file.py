"""A store in one SQLite file: made, checked and upgraded, or refused in one line and left as it was."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from hpcml.errors import StoreError
from hpcml.store.engine import Store
from hpcml.store.mounts import journal_mode_for
from hpcml.store.tables import APPLICATION_ID, REVISION

log = logging.getLogger(__name__)

_BUSY_TIMEOUT_S = 60  # an ingest of a very long run may hold the file for seconds
_MODE_SWITCH_S = 5.0  # SQLite's busy handler does not cover a change of journal mode
_MAGIC = b"SQLite format 3\0"
_WRITE = "hpcml_write"


class SqliteStore(Store):
    """A file that SQLite's own locks guard, since all who use it work on one host."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = _make_engine(path)

    @classmethod
    def open(cls, path: Path) -> SqliteStore:
        """Return the store in the file *path*, made or upgraded where needed."""
        _check_place(path)
        _check_file(path)
        store = cls(path)
        with store.translated():
            _bring_up_to_date(store._engine, path)
            _set_journal_mode(store._engine, path)
        return store

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the store from beginning to end."""
        with self.translated(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection of which each ``begin()`` waits until nobody else writes, and keeps others from it."""
        writer = self._engine.execution_options(**{_WRITE: True})
        with self.translated(), writer.connect() as connection:
            yield connection

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()


def path_of(url: str) -> Path:
    """Return the absolute path that *url* names; a symbolic link in it stays."""
    if "://" not in url:
        return Path(os.path.abspath(Path(url).expanduser()))  # noqa: PTH100 - keeps the user's symbolic links
    scheme = url.split("://", 1)[0]
    if scheme.split("+")[0] != "sqlite":
        raise StoreError(f"the store {scheme}://... is not supported yet: give the path of an SQLite file")
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"the store {url!r} is no URL: write sqlite:///path") from error
    plain = scheme in ("sqlite", "sqlite+pysqlite") and not parsed.query and not parsed.host
    if not plain or parsed.database in (None, "", ":memory:"):
        raise StoreError(f"the store {url!r} names no file: write sqlite:///path (four slashes for an absolute one)")
    return Path(os.path.abspath(str(parsed.database)))  # noqa: PTH100


def _check_place(path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise StoreError(f"the store's folder {folder} does not exist: create it (mkdir -p {folder}) or choose another")
    if path.is_dir():
        raise StoreError(f"the store {path} is a directory: name a file in it")
    if path.exists() and not path.is_file():
        raise StoreError(f"the store {path} is no regular file: choose another path")
    # SQLite writes its journal beside the file, so the folder counts too
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"the store's folder {folder} is not writable for you")


def _check_file(path: Path) -> None:
    """Create *path* if absent; refuse a file that is not ours, before SQLite as much as opens it."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        if _looks_like_ours(path) or _looks_like_ours(path):  # twice: the first creator may have committed in between
            return
        header = _header(path)
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
    if not header.startswith(_MAGIC):
        raise StoreError(f"the store {path} is no database: it was left as it is; choose another path")
    raise StoreError(f"the store {path} is a database of another program: it was left as it is; choose another path")


def _looks_like_ours(path: Path) -> bool:
    header = _header(path)
    if not header:
        return True  # empty: to be filled
    if header.startswith(_MAGIC) and header[68:72] == APPLICATION_ID.to_bytes(4, "big"):  # sqlite.org/fileformat2.html
        return True
    # a first creator is committing, or died so: SQLite finishes or undoes that, then _bring_up_to_date looks again
    return Path(f"{path}-journal").exists()


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def _make_engine(path: Path) -> Engine:
    # no pool: an engine that was forgotten, or forked, holds no file open
    engine = create_engine(
        URL.create("sqlite", database=str(path)), poolclass=NullPool, connect_args={"timeout": _BUSY_TIMEOUT_S}
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: schema changes are transactional too
        connection.execute("PRAGMA foreign_keys = ON")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            # a power cut may take the last commits but never tears the file, and ingest does them again
            connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _bring_up_to_date(engine: Engine, path: Path) -> None:
    with engine.connect() as connection, connection.begin():
        if _revision(connection) == REVISION:
            return
    # Imported here, since Alembic would double the start-up time of every command that finds nothing to upgrade.
    from hpcml.store.upgrade import known_revisions, upgrade  # noqa: PLC0415

    with engine.execution_options(**{_WRITE: True}).connect() as connection, connection.begin():
        revision = _revision(connection)  # again: somebody else may have been faster
        if revision == REVISION:
            return
        if revision is None:
            if inspect(connection).get_table_names():
                raise StoreError(f"the store {path} is a database of another program: it was left as it is")
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        elif revision not in known_revisions():
            raise StoreError(f"the store {path} was written by a newer hpcml (schema {revision}): update hpcml")
        upgrade(connection)
        log.info("upgraded %s from schema %s to %s", path, revision, REVISION)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
    return None if revision is None else str(revision)


def _set_journal_mode(engine: Engine, path: Path) -> None:
    wanted = journal_mode_for(path)
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
