"""Copies of a store that can be gone back to: whole or not there."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Engine, inspect
from sqlalchemy.exc import DatabaseError

from hpcml.errors import StoreError
from hpcml.store.sqlite_file import as_it_is, damaged

_KEPT = 3
_WORD = ".backup-"
_UNFINISHED = ".unfinished"


def keep_before_upgrade(engine: Engine, path: Path, revision: str) -> None:
    """Check the store behind *engine* and copy it beside *path*; without either there is no upgrade.

    An empty store needs no copy. Others may hold the write lock meanwhile, as the caller usually does.
    """
    with as_it_is(engine).connect() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if found != "ok":
            raise StoreError(damaged(str(path), str(found)))
        if not inspect(connection).has_table("run"):
            return
        if connection.exec_driver_sql("SELECT 1 FROM run LIMIT 1").scalar_one_or_none() is None:
            return
        source = connection.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        try:
            write_backup(source, backup_name(path, revision))
        except (OSError, DatabaseError, sqlite3.Error) as error:
            raise StoreError(f"the store {path} is not upgraded, since no backup can be made of it: {error}") from error
    thin_out(path, keep=_KEPT)


def backup_name(path: Path, revision: str) -> Path:
    """Return a name that is free now: ``store.db.backup-<schema>-<time>``."""
    stem = f"{path}{_WORD}{revision}-{time.strftime('%Y%m%d-%H%M%S')}"
    free = Path(stem)
    for count in range(2, 1000):
        if not free.exists():
            break
        free = Path(f"{stem}-{count}")
    return free


def backups_of(path: Path) -> list[Path]:
    """Return the backups beside the store *path*, newest first."""
    found = [file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}{_WORD}")]
    return sorted((file for file in found if not file.name.endswith(_UNFINISHED)), key=_age)


def write_backup(source: sqlite3.Connection, target: Path) -> None:
    """Copy what *source* sees into the new file *target*, which appears when it is whole. Raises `OSError` or SQLite's.

    The copy is no publication, wherever it came from.
    """
    unfinished = Path(f"{target}{_UNFINISHED}")
    unfinished.unlink(missing_ok=True)
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(unfinished)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("PRAGMA user_version = 0")
            copy.commit()
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        _appear(unfinished, target)
    finally:
        for leftover in (unfinished, Path(f"{unfinished}-journal")):
            leftover.unlink(missing_ok=True)


def thin_out(path: Path, *, keep: int) -> list[Path]:
    """Remove all but the newest backups beside *path*, and what killed ones left; return what is gone."""
    gone = backups_of(path)[keep:]
    left = [
        file
        for file in path.parent.iterdir()
        if file.name.startswith(f"{path.name}{_WORD}") and _UNFINISHED in file.name
    ]
    gone += [file for file in left if _is_forgotten(file)]
    for file in gone:
        file.unlink(missing_ok=True)
    return gone


def _appear(unfinished: Path, target: Path) -> None:
    try:
        os.link(unfinished, target)  # unlike a rename, it never replaces what somebody else put there
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists():
            raise
        unfinished.rename(target)


def _age(path: Path) -> tuple[float, str]:
    with suppress(OSError):
        return -path.stat().st_mtime, path.name
    return 0.0, path.name


def _is_forgotten(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > 3600
    return False
