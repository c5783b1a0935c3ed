"""A store in one SQLite file, used by several processes of one host: opening, reading, and what its errors mean.

`SqliteFile` is the base of all stores in a file, `SqliteStore` the one that works in the file directly. Whoever only
reads does not load SQLAlchemy (`hpcml.store.sqlite.engine`).
"""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.errors import StoreError
from hpcml.store.database import Database
from hpcml.store.reading import StoreReader, in_sqlite
from hpcml.store.sqlite.location import Placement, check_file, damaged, is_made

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

BUSY_TIMEOUT_S = 60  # an ingest of a very long run may hold the file for seconds
_MODE_SWITCH_S = 5.0  # SQLite's busy handler does not cover a change of journal mode
_SCANT = 1 << 20  # bytes: less than SQLite may ask for while a few runs are read in
_ITS_FILES = 3  # its log, its shared memory, and a journal
_AT_ONCE_BYTES = 64 << 20  # by which a file of a store may become longer at once
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# by other means than ours: SQLite has no code for it
_CHANGED = re.compile("no such (table|column): |table .* has no column named ")


class FileReader(StoreReader):
    """A state of an SQLite file, through the transaction that *driver* is in."""

    is_server = False

    def __init__(self, driver: sqlite3.Connection) -> None:
        self.driver = driver
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection over the same one of the driver, made when it is first wanted."""
        if self._connection is None:
            from hpcml.store.sqlite.engine import connection_over  # noqa: PLC0415 - who only reads does not load SQLAlchemy

            self._connection = connection_over(self.driver)
        return self._connection

    def close(self) -> None:
        """End the transaction, and let go of the file."""
        if self._connection is not None:
            self._connection.close()
        self.driver.close()

    def _ask(self, sql: str, values: Mapping[str, object]) -> sqlite3.Cursor:
        return self.driver.execute(*in_sqlite(sql, values))


class SqliteFile(Database):
    """The base of all stores in an SQLite file.

    The placement says where the file is and how it is used; kinds of stores add how connections and locks are got.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    @property
    def path(self) -> Path:
        """The path of the file, as the user gave it."""
        return self.placement.path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def used(self) -> str:
        """The file system and how the file is used there."""
        return str(self.placement)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise `StoreError` with one line in place of SQLite's own error, whether SQLAlchemy is around it or not.

        An `IntegrityError` or `ProgrammingError` is a bug of hpcml and keeps its traceback.
        """
        try:
            yield
        except Exception as error:
            told = error if isinstance(error, sqlite3.Error) else getattr(error, "orig", None)
            is_ours = isinstance(told, sqlite3.IntegrityError | sqlite3.ProgrammingError)
            if is_ours or not isinstance(told, sqlite3.DatabaseError):
                raise
            raise StoreError(self._explained(told)) from error

    def _explained(self, error: sqlite3.DatabaseError) -> str:
        """Return one line on *error*, with what to do about it where that is known.

        SQLite's result codes are read without their upper bits (sqlite.org/rescode.html): a full disk and a damaged
        file have advice of their own.
        """
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        may_lack_room = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        lacking = used_up(self.path.parent) if code == sqlite3.SQLITE_FULL or may_lack_room else None
        if code == sqlite3.SQLITE_FULL or lacking is not None:
            undone = f"for the store {self.name}: what was just being read in was undone; free some"
            if lacking == "files":
                return f"no more files can be made {undone} (df -i counts them)"
            return f"no room is left {undone} space"
        if may_lack_room and (most := _limit_bytes(self.path)) is not None:
            limit = f"no file may be longer than {most >> 10} KiB here (ulimit -f)"
            return (
                f"the store {self.name} cannot be used: {limit}: ulimit -f unlimited, in a shell that has no such limit"
            )
        if code in _DAMAGED or _CHANGED.match(str(error)):
            return damaged(self.name, str(error))
        return f"the store {self.name} cannot be used: {error}"


def _limit_bytes(path: Path) -> int | None:
    """Return how long a file may be for this process, where the store in *path* is near that; else None."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    longest = 0
    for file in (path, Path(f"{path}-wal")):
        with suppress(OSError):
            longest = max(longest, file.stat().st_size)
    return None if most == resource.RLIM_INFINITY or most > longest + _AT_ONCE_BYTES else most


def used_up(folder: Path) -> str | None:
    """Return what the disk with *folder* lacks for more of a store, space or room for files of its own.

    None where nothing is lacking, or that cannot be seen.
    """
    # of its log and its shared memory SQLite says only that they could not be opened or written
    with suppress(OSError):
        disk = os.statvfs(folder)
        has_files = disk.f_favail >= _ITS_FILES or not disk.f_files  # some file systems count none
        if disk.f_bavail * disk.f_frsize < _SCANT:
            return "space"
        return None if has_files else "files"
    return None


class SqliteStore(SqliteFile):
    """A store whose file SQLite's own locks protect, since all its users work on one host.

    While one process writes, others wait for up to `BUSY_TIMEOUT_S`; with write-ahead logging readers never wait. On a
    file system that other machines may see, the file is used with a rollback journal instead (sqlite.org/wal.html).
    """

    @classmethod
    def open(cls, placement: Placement) -> SqliteStore:
        """Return the store in this file, made where needed; raises `StoreError`.

        A new file is readable and writable for its owner only (mode 0600). Raised also for a file of another program,
        or of another version of hpcml: it is left as it is.
        """
        check_file(placement.path)
        try:
            os.close(os.open(placement.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"the store {placement.path} cannot be opened: {error.strerror}") from error
        store = cls(placement)
        with store.translated(), closing(store._connect()) as driver:
            if not is_made(driver, placement.path):
                from hpcml.store.sqlite.engine import make_if_empty  # noqa: PLC0415 - loads SQLAlchemy

                make_if_empty(store._engine, placement.path)
            _set_journal_mode(driver, placement)
        return store

    @contextmanager
    def reading(self) -> Iterator[FileReader]:
        """Give one state of the store from beginning to end."""
        with self.translated(), closing(FileReader(self._connect())) as reading:
            reading.driver.execute("BEGIN")
            self._check(reading.driver)
            yield reading

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Return a context manager with a connection; ``begin()`` waits until nobody else writes (BEGIN IMMEDIATE)."""
        from hpcml.store.sqlite.engine import for_writing  # noqa: PLC0415 - who only reads does not load SQLAlchemy

        with self.translated(), for_writing(self._engine).connect() as connection:
            yield connection

    @contextmanager
    def maintaining(self) -> Iterator[Connection]:
        """Return a context manager with a connection in no transaction."""
        from hpcml.store.sqlite.engine import as_it_is  # noqa: PLC0415 - as above

        with self.translated(), as_it_is(self._engine).connect() as connection:
            yield connection

    def close(self) -> None:
        """Let go of the file."""
        if "_engine" in vars(self):
            self._engine.dispose()

    @cached_property
    def _engine(self) -> Engine:
        from hpcml.store.sqlite.engine import make_engine  # noqa: PLC0415 - as above

        return make_engine(self._connect, prepare=_prepare, begin=self._begin)

    def _begin(self, connection: Connection) -> None:
        from hpcml.store.sqlite.engine import begin_as_told, driver_of  # noqa: PLC0415 - as above

        begin_as_told(connection)
        self._check(driver_of(connection))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def _check(self, driver: sqlite3.Connection) -> None:
        """Raise `StoreError` where the file is published from now on; *driver* is in a transaction."""
        if driver.execute("PRAGMA user_version").fetchone()[0]:
            raise StoreError(f"another machine began to publish the store {self.name}: run this command again")


def _prepare(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        # a power cut may take the last commits but never tears the file, and ingest does them again
        connection.execute("PRAGMA synchronous = NORMAL")


def _set_journal_mode(driver: sqlite3.Connection, placement: Placement) -> None:
    """Let *driver*, which is in no transaction, set how the file is changed."""
    # Write-ahead logging needs memory shared by all who use the file, hence one machine (sqlite.org/wal.html).
    wanted = "wal" if placement.is_local else "delete"
    give_up_at = time.monotonic() + _MODE_SWITCH_S
    while driver.execute("PRAGMA journal_mode").fetchone()[0] != wanted and time.monotonic() < give_up_at:
        try:
            driver.execute(f"PRAGMA journal_mode = {wanted}")
        except sqlite3.OperationalError:  # in use by others; either mode is right while one host uses the file
            time.sleep(0.02)
