"""A store in one SQLite file: opening it to work in it, or to read it only, and what SQLite's errors mean."""

from __future__ import annotations

import logging
import os
import re
import resource
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, create_engine, event

from hpcml.errors import StoreError
from hpcml.store.database import APPLICATION_ID, REVISION, Database, of_json, to_json
from hpcml.store.sqlite.location import Placement, SqliteHeader, another_programs, check_file, damaged

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 60  # an ingest of a very long run may hold the file for seconds
_MODE_SWITCH_S = 5.0  # SQLite's busy handler does not cover a change of journal mode
_SCANT = 1 << 20  # bytes: less than SQLite may ask for while a few runs are read in
_ITS_FILES = 3  # its log, its shared memory, and a journal
_AT_ONCE_BYTES = 64 << 20  # by which a file of a store may become longer at once
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WRITES = {"is_writing": True}  # the option of a connection whose transactions keep others from writing
_SIDES = ("-wal", "-shm", "-journal")
# by other means than ours: SQLite has no code for it
_CHANGED = re.compile("no such (table|column): |table .* has no column named ")


def open_direct(placement: Placement, *, name: str = "") -> Database:
    """Return the store in a file that SQLite's own locks protect, made where needed; raises `StoreError`.

    While one process writes, others wait; with write-ahead logging readers never wait. A new file is readable and
    writable for its owner only. One that another version of hpcml made is set aside, since a store can be made anew
    from the run directories. A file of another program is left as it is.
    """
    path = placement.path
    check_file(path)
    engine = _make_engine(lambda: _connect(path))
    store = Database(
        name=name or str(path),
        used=str(placement),
        engine=engine,
        explained=_explainer(name or str(path), path),
        path=path,
        writing_options=_WRITES,
    )
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
    with store.explaining():
        _set_aside_others(path)
        with closing(_connect(path)) as driver:
            if revision_of(driver) is None:
                _make(engine, path)
            if driver.execute("PRAGMA user_version").fetchone()[0] and name == "":
                driver.execute("PRAGMA user_version = 0")  # it was published until now
            _set_journal_mode(driver, placement)
    return store


def open_read_only(placement: Placement) -> Database:
    """Return the store in a file that is never changed; readers see it as it was at the last ingest of somebody else.

    Raises `StoreError` where there is no schema, or that of another version: to make it is its owner's business.
    """
    path = placement.path
    check_file(path)
    read_only = f"the store {path} is read-only for you"
    with suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            read_only = f"the store {path} is on a file system that is mounted read-only"
    store = Database(
        name=str(path),
        used=f"on {placement.file_system or 'an unknown file system'}, read-only for you",
        engine=_make_engine(lambda: connect_for_reading(path.resolve())),
        explained=_explainer(str(path), path),
        path=path,
        read_only=read_only,
    )
    with store.explaining(), closing(connect_for_reading(path.resolve())) as driver:
        revision = revision_of(driver)
    if revision is None:
        raise StoreError(f"there is nothing in the store {path} yet, and it is read-only for you")
    if revision != REVISION:
        made = f"was made by another version of hpcml (schema {revision}), and is read-only for you"
        raise StoreError(f"the store {path} {made}: its owner can make it anew")
    return store


def connect_for_reading(path: Path) -> sqlite3.Connection:
    """Return a connection to *path* that never writes beside it.

    A snapshot, or a file in write-ahead mode that nobody has open, is read without any lock (SQLite's ``immutable=1``);
    everything else is opened with ``mode=ro`` (sqlite.org/uri.html).
    """
    header, wal, shared = SqliteHeader.of(path), Path(f"{path}-wal"), Path(f"{path}-shm")
    # nobody is writing into it; without its shared memory SQLite could not tell
    is_still = header.is_published or (header.has_wal and not (wal.exists() and shared.exists()))
    place = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if is_still else ''}"
    return sqlite3.connect(place, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)


def revision_of(driver: sqlite3.Connection) -> str | None:
    """Return the schema version of the store; None if the file has no schema of ours.

    It is the number in Alembic's own table.
    """
    has_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if driver.execute(has_table).fetchone() is None:
        return None
    found = driver.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if found is None else str(found[0])


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)


def _make_engine(connect: Callable[[], sqlite3.Connection]) -> Engine:
    """Return an engine that holds no file open while it is not used, not even after a fork."""
    engine = create_engine(
        "sqlite://", creator=connect, poolclass=NullPool, json_serializer=to_json, json_deserializer=of_json
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: schema changes are transactional too
        connection.execute("PRAGMA foreign_keys = ON")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            # a power cut may take the last commits but never tears the file, and ingest does them again
            connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # whoever writes takes the lock at once (sqlite.org/lang_transaction.html)
        is_writing = connection.get_execution_options().get("is_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")

    return engine


def _make(engine: Engine, path: Path) -> None:
    """Make the schema where there is none; of several processes that start at once, one makes it."""
    with engine.execution_options(**_WRITES).begin() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        if revision_of(driver) is not None:  # somebody else was faster
            return
        # Imported here, since Alembic would double the start-up time of every command.
        from hpcml.store.create import create_schema  # noqa: PLC0415

        if driver.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone() is not None:
            raise StoreError(another_programs(path))
        driver.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        create_schema(connection)
        log.info("made %s with schema %s", path, REVISION)


def _set_aside_others(path: Path) -> None:
    """Move a store that another version of hpcml made out of the way; of several processes one does so."""
    with closing(_connect(path)) as driver:
        if revision_of(driver) in (None, REVISION):
            return
        opened = path.stat().st_ino
        driver.execute("BEGIN EXCLUSIVE")
        revision = revision_of(driver)
        if path.stat().st_ino != opened or revision == REVISION:  # somebody else was faster
            return
        aside = Path(f"{path}.schema-{revision}")
        log.warning("%s was made by another version of hpcml: it is %s now, and made anew", path, aside)
        for side in ("", *_SIDES):
            with suppress(FileNotFoundError):
                Path(f"{path}{side}").rename(f"{aside}{side}")
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


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


def _explainer(name: str, path: Path) -> Callable[[Exception], StoreError | None]:
    """Return a function that makes one line of SQLite's own error, whether SQLAlchemy is around it or not.

    An `IntegrityError` or `ProgrammingError` is a bug of hpcml and stays as it is.
    """

    def explained(error: Exception) -> StoreError | None:
        cause: Any = error if isinstance(error, sqlite3.Error) else getattr(error, "orig", None)
        if isinstance(cause, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            return None
        return StoreError(_explained(name, path, cause)) if isinstance(cause, sqlite3.DatabaseError) else None

    return explained


def _explained(name: str, path: Path, error: sqlite3.DatabaseError) -> str:
    """Return one line on *error*, with what to do about it where that is known.

    SQLite's result codes are read without their upper bits (sqlite.org/rescode.html): a full disk and a damaged file
    have advice of their own.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    may_lack_room = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    lacking = used_up(path.parent) if code == sqlite3.SQLITE_FULL or may_lack_room else None
    if code == sqlite3.SQLITE_FULL or lacking is not None:
        undone = f"for the store {name}: what was just being read in was undone; free some"
        if lacking == "files":
            return f"no more files can be made {undone} (df -i counts them)"
        return f"no room is left {undone} space"
    if may_lack_room and (most := _limit_bytes(path)) is not None:
        limit = f"no file may be longer than {most >> 10} KiB here (ulimit -f)"
        return f"the store {name} cannot be used: {limit}: ulimit -f unlimited, in a shell that has no such limit"
    if code in _DAMAGED or _CHANGED.match(str(error)):
        return damaged(name, str(error))
    return f"the store {name} cannot be used: {error}"


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
