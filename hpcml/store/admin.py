"""Checks, compaction, backups and copies of a store, for `hpcml sync`; no other command does them by itself.

The functions take an open `Database`; `torn_parts` alone takes a URL, because it must answer for a file that is too
damaged to be opened.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, func, select

from hpcml.errors import StoreError
from hpcml.store.database import REVISION, Database
from hpcml.store.schema import EVENT, JOURNAL, METRIC, POINT, RUN, SERIES
from hpcml.store.sqlite.backups import backup_name, thin_out, write_backup
from hpcml.store.sqlite.engine import driver_of
from hpcml.store.sqlite.file import SqliteFile
from hpcml.store.sqlite.location import check_file, check_place, is_on_server, path_of
from hpcml.store.sqlite.read_only import connect_for_reading

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

    `hpcml sync --check` prints the lines. Looked for are: rows that refer to rows that are gone (SQLite only: a server
    never allows them), points without a series, metric names without a series, events of one run in a journal of
    another, and journals that are gone or shorter than what was read of them. The files are looked at by name and size
    only.

    Of each kind 20 faults are told one by one, and the rest as a number. All are of one state of the store, which is
    read while the iterator is consumed. An empty iterator means that nothing was found.
    """
    with store.reading() as reading:
        connection = reading.connection
        if not reading.is_server:
            yield from _at_most(_broken_references(connection))
        known = select(SERIES.c.id)
        lost = connection.execute(select(func.count()).select_from(POINT).where(POINT.c.series_id.not_in(known)))
        if count := lost.scalar_one():
            yield f"{count} points belong to no series"
        named = connection.execute(select(METRIC.c.name).where(METRIC.c.id.not_in(select(SERIES.c.metric_id))))
        yield from _at_most(f"no run has the metric {name!r}" for name in named.scalars())
        strays = select(RUN.c.uid, JOURNAL.c.file, func.count()).select_from(EVENT)
        strays = strays.join(JOURNAL, JOURNAL.c.id == EVENT.c.journal_id).join(RUN, RUN.c.id == EVENT.c.run_id)
        strays = strays.where(JOURNAL.c.run_id != EVENT.c.run_id).group_by(RUN.c.uid, JOURNAL.c.file)
        yield from _at_most(
            f"run {uid} has {count} events of {file}, which is another's"
            for uid, file, count in connection.execute(strays)
        )
        yield from _at_most(_shrunk(connection))


def vacuum(store: Database) -> None:
    """Rewrite the file without free pages (sqlite.org/lang_vacuum.html).

    Needs free space for a second copy of the file. Raises `StoreError` for a server, and where the store is read-only.
    """
    with store.maintaining() as connection:
        connection.exec_driver_sql("VACUUM")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def compact(store: Database) -> list[Path]:
    """Make the store as small as possible without losing a value; return the backups that were deleted for it.

    Points are not packed into blobs: no other program, nor any view, could read those. `hpcml sync --compact` calls it.
    Of the backups beside the file only the newest is kept. On a server `vacuum` raises `StoreError` before anything was
    done.
    """
    vacuum(store)
    return thin_out(store.path) if isinstance(store, SqliteFile) else []


def back_up(store: Database, target: Path | None) -> Path:
    """Write the whole store into the new file *target*, by default one beside the store; return its path.

    Other processes may go on writing meanwhile: the backup is one state of the store, and *target* appears only when it
    is whole. An existing *target* is never overwritten.

    Raises `StoreError` for a store on a server, where *target* exists, and where it cannot be written.
    """
    if not isinstance(store, SqliteFile):
        raise StoreError(f"the store {store.name} is backed up by the tools of its server (pg_dump)")
    target = target or backup_name(store.path, REVISION)
    if target.exists():
        raise StoreError(f"{target} is there already: it was left as it is")
    with store.reading() as reading:
        try:
            write_backup(driver_of(reading.connection), target)
        except OSError as error:
            raise StoreError(f"the backup {target} cannot be written: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreError(f"the backup {target} cannot be written: {error}") from error
    return target


def size_of(store: Database) -> int | None:
    """Return the bytes of the store's file, None for a server.

    The write-ahead log beside it counts too (sqlite.org/wal.html); backups and the working copy of a published store do
    not.
    """
    if not isinstance(store, SqliteFile):
        return None
    files = (store.path, Path(f"{store.path}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def counts(store: Database) -> tuple[int, int]:
    """Return the numbers of runs and of points."""
    with store.reading() as reading:
        connection = reading.connection
        runs = connection.execute(select(func.count()).select_from(RUN)).scalar_one()
        return runs, connection.execute(select(func.count()).select_from(POINT)).scalar_one()


def _broken_references(connection: Connection) -> Iterator[str]:
    for table, _, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        yield f"a row of {table} belongs to a {parent} that is not there"


def _shrunk(connection: Connection) -> Iterator[str]:
    read = select(RUN.c.path, JOURNAL.c.file, JOURNAL.c.byte_offset).join(JOURNAL, JOURNAL.c.run_id == RUN.c.id)
    for folder, file, offset in connection.execute(read.order_by(RUN.c.uid, JOURNAL.c.file)):
        path = Path(folder, "journal", file)
        try:
            size = path.stat().st_size
        except OSError:
            if os.path.lexists(Path(folder, "run.json")):
                yield f"{path} is gone, and {offset} bytes of it were read"
            continue
        if size < offset:
            yield f"{path} has {size} bytes, and {offset} were read: it became shorter"


def _at_most(lines: Iterator[str]) -> Iterator[str]:
    more = 0
    for count, line in enumerate(lines):
        if count < _SHOWN:
            yield line
        else:
            more += 1
    if more:
        yield f"... and {more} more of this kind"
