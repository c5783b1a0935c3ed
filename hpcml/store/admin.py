"""Checks and backups of a store, for `hpcml sync`; no other command does them by itself.

The functions take an open `Database`; `torn_parts` alone takes a URL, because it must answer for a file that is too
damaged to be opened.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, func, select

from hpcml.errors import StoreError
from hpcml.runs.atomic import creating
from hpcml.store.database import REVISION, Database
from hpcml.store.journals import MANIFEST
from hpcml.store.schema import METRIC, POINT, RUN
from hpcml.store.sqlite.file import connect_for_reading
from hpcml.store.sqlite.location import check_file, check_place, is_on_server, path_of

_BACKUP = ".backup-"
_SHOWN = 20  # faults of one kind that are told one by one


def torn_parts(url: str) -> list[str]:
    """Return what SQLite finds wrong with the file at *url*, before it is opened as a store; [] for a server.

    `hpcml sync --check` calls it first. It runs SQLite's integrity check (sqlite.org/pragma.html, PRAGMA
    integrity_check) on a read-only connection, and returns one line for each fault, 20 at most. Nothing is changed.

    Raises `StoreError` where no store lies at *url*, or where the file belongs to another program or cannot be opened.
    That the file is damaged is no error here but a returned line.
    """
    if is_on_server(url):
        return []
    path = path_of(url)
    check_place(path)
    if not path.exists() or not path.stat().st_size:
        raise StoreError(f"there is no store at {path} yet: the first command that needs it makes it")
    check_file(path)
    try:
        with closing(connect_for_reading(path.resolve())) as connection:
            found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_SHOWN})")]
            return [] if found == ["ok"] else [line for text in found for line in text.splitlines()]
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
    except sqlite3.DatabaseError as error:
        return [str(error)]


def faults(store: Database) -> Iterator[str]:
    """Yield a line for each contradiction within the store, or between it and a journal.

    `hpcml sync --check` prints the lines. Looked for are rows that refer to rows that are gone, points without a
    metric, and files that are gone or shorter than what was read of them, which are looked at by name and size only. Of
    each kind 20 faults are told one by one, and the rest as a number. An empty iterator means that nothing was found.
    """
    with store.reading() as connection:
        if connection.dialect.name == "sqlite":  # a server never allows them
            yield from _at_most(_broken_references(connection))
        known = select(METRIC.c.id)
        lost = connection.execute(select(func.count()).select_from(POINT).where(POINT.c.metric_id.not_in(known)))
        if count := lost.scalar_one():
            yield f"{count} points belong to no metric"
        yield from _at_most(_shrunk(connection))


def back_up(store: Database, target: Path | None) -> Path:
    """Write the whole store into the new file *target*, by default one beside the store; return its path.

    Other processes may go on writing meanwhile: the backup is one state of the store, and *target* appears only when it
    is whole. An existing *target* is never overwritten.

    Raises `StoreError` for a store on a server, where *target* exists, and where it cannot be written.
    """
    if store.path is None:
        raise StoreError(f"the store {store.name} is backed up by the tools of its server (pg_dump)")
    target = target or _backup_name(store.path)
    if target.exists():
        raise StoreError(f"{target} is there already: it was left as it is")
    with store.reading() as connection:
        source = connection.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        try:
            with creating(target, durable=True) as draft:
                os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                with closing(sqlite3.connect(draft)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")
                    copy.execute("PRAGMA user_version = 0")  # no snapshot, wherever it came from
                    copy.commit()
        except OSError as error:
            raise StoreError(f"the backup {target} cannot be written: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreError(f"the backup {target} cannot be written: {error}") from error
    return target


def _backup_name(path: Path) -> Path:
    """Return an unused name: ``store.db.backup-<schema>-<time>``, in local time; with a number where that is taken."""
    stem = f"{path}{_BACKUP}{REVISION}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path(stem if count == 1 else f"{stem}-{count}") for count in range(1, 1000))
    return next((name for name in names if not name.exists()), Path(stem))


def size_of(store: Database) -> int | None:
    """Return the bytes of the store's file, None for a server.

    The write-ahead log beside it counts too (sqlite.org/wal.html); backups and the working copy of a published store do
    not.
    """
    if store.path is None:
        return None
    files = (store.path, Path(f"{store.path}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def counts(store: Database) -> tuple[int, int]:
    """Return the numbers of runs and of points."""
    with store.reading() as connection:
        runs = connection.execute(select(func.count()).select_from(RUN)).scalar_one()
        return runs, connection.execute(select(func.count()).select_from(POINT)).scalar_one()


def _broken_references(connection: Connection) -> Iterator[str]:
    for table, _, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        yield f"a row of {table} belongs to a {parent} that is not there"


def _shrunk(connection: Connection) -> Iterator[str]:
    for folder, files in connection.execute(select(RUN.c.path, RUN.c.files).order_by(RUN.c.uid)):
        for name, file in sorted(files.items()):
            read, path = 0 if name == MANIFEST else file.get("read", 0), Path(folder, name)
            try:
                size = path.stat().st_size
            except OSError:
                if read and os.path.lexists(Path(folder, MANIFEST)):
                    yield f"{path} is gone, and {read} bytes of it were read"
                continue
            if size < read:
                yield f"{path} has {size} bytes, and {read} were read: it became shorter"


def _at_most(lines: Iterator[str]) -> Iterator[str]:
    more = 0
    for count, line in enumerate(lines):
        if count < _SHOWN:
            yield line
        else:
            more += 1
    if more:
        yield f"... and {more} more of this kind"
