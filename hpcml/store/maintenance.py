"""A store looked over, made small again, and copied: what a person asks for, and no command does by itself."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, func, select

from hpcml.errors import StoreError
from hpcml.store.backups import backup_name, thin_out, write_backup
from hpcml.store.engine import Store
from hpcml.store.read_only import connect_for_reading
from hpcml.store.sqlite_file import SqliteFile
from hpcml.store.sqlite_path import check_file, check_place, path_of
from hpcml.store.tables import EVENT, JOURNAL, METRIC, POINT, REVISION, RUN, SERIES

_SHOWN = 20  # faults of one kind that are told one by one


def torn_parts(url: str) -> list[str]:
    """Return what SQLite finds wrong with the file at *url*, before anything else is made of it; [] for a server."""
    if url.startswith("postgres"):
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


def faults(store: Store) -> Iterator[str]:
    """Yield a line for each thing in the store that contradicts another, or a journal."""
    with store.reading() as connection:
        if connection.dialect.name == "sqlite":
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


def vacuum(store: Store) -> None:
    """Give back what is free in the file, and lay what belongs together side by side."""
    with store.maintaining() as connection:
        connection.exec_driver_sql("VACUUM")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def compact(store: Store) -> list[Path]:
    """Make the store as small as it can be without losing a value; return the backups that are gone for it.

    Points are not packed into blobs: no other program, nor any view, could read those.
    """
    vacuum(store)
    return thin_out(store.path, keep=1) if isinstance(store, SqliteFile) else []


def back_up(store: Store, target: Path | None) -> Path:
    """Write all that is in the store into the new file *target*, or one beside the store; return which."""
    if not isinstance(store, SqliteFile):
        raise StoreError(f"the store {store.name} is backed up by the tools of its server (pg_dump)")
    target = target or backup_name(store.path, REVISION)
    if target.exists():
        raise StoreError(f"{target} is there already: it was left as it is")
    try:
        with store.reading() as connection:
            source = connection.connection.driver_connection
            assert isinstance(source, sqlite3.Connection)
            write_backup(source, target)
    except OSError as error:
        raise StoreError(f"the backup {target} cannot be written: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StoreError(f"the backup {target} cannot be written: {error}") from error
    return target


def size_of(store: Store) -> int | None:
    """Return the bytes of the store's file, None for a server's."""
    if not isinstance(store, SqliteFile):
        return None
    files = (store.path, Path(f"{store.path}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def counts(store: Store) -> tuple[int, int]:
    """Return how many runs and how many points there are."""
    with store.reading() as connection:
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
