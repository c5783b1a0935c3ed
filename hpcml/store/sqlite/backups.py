"""Backups of a store in a file, beside it: one is made before each upgrade, and by `hpcml store backup`.

A backup appears under its name only when it is whole.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from hpcml.errors import StoreError
from hpcml.runs.atomic import appear, sync
from hpcml.store.sqlite.location import damaged, has_table

_KEPT = 3
_WORD = ".backup-"
_UNFINISHED = ".unfinished"


def keep_before_upgrade(source: sqlite3.Connection, path: Path, revision: str) -> None:
    """Check the store that *source* sees and copy it beside *path*; raises `StoreError` where either fails.

    An empty store needs no copy. The write lock may be held meanwhile, usually by the caller. The newest three backups
    are kept, and older ones deleted.
    """
    (found,) = source.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreError(damaged(str(path), str(found)))
    if not has_table(source, "run") or source.execute("SELECT 1 FROM run LIMIT 1").fetchone() is None:
        return
    try:
        write_backup(source, backup_name(path, revision))
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the store {path} is not upgraded, since no backup can be made of it: {error}") from error
    thin_out(path, keep=_KEPT)


def backup_name(path: Path, revision: str) -> Path:
    """Return an unused name: ``store.db.backup-<schema>-<time>``.

    The time is local, to the second; a number is added where the name is taken.
    """
    stem = f"{path}{_WORD}{revision}-{time.strftime('%Y%m%d-%H%M%S')}"
    free = Path(stem)
    for count in range(2, 1000):
        if not free.exists():
            break
        free = Path(f"{stem}-{count}")
    return free


def backups_of(path: Path) -> list[Path]:
    """Return the backups beside the store *path*, newest first.

    Unfinished ones are left out. Newest is by the time of the last change of the file.
    """
    found = [file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}{_WORD}")]
    # of one that was killed SQLite's journal may be left, too: ``….unfinished-journal``
    return sorted((file for file in found if not _is_unfinished(file, path)), key=_age)


def write_backup(source: sqlite3.Connection, target: Path) -> None:
    """Copy what *source* sees into the new file *target*, which appears only when it is whole.

    Raises `OSError` or `sqlite3.Error`. The copy is marked as no publication, wherever it came from. Its mode is 0600,
    and it is synced to the disk before it gets its name. What a failed or killed call leaves is removed, at once or by
    the next one.
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
        sync(unfinished)  # its name is SQLite's to work with, and `thin_out`'s to clean up: hence no `creating`
        appear(unfinished, target)
    finally:
        for leftover in (unfinished, Path(f"{unfinished}-journal")):
            leftover.unlink(missing_ok=True)


def thin_out(path: Path, *, keep: int) -> list[Path]:
    """Delete all but the newest *keep* backups beside *path*, and unfinished ones; return what was deleted.

    Unfinished ones go once they are an hour old: a younger one may be another process's at work.
    """
    gone = backups_of(path)[keep:]
    left = [
        file
        for file in path.parent.iterdir()
        if file.name.startswith(f"{path.name}{_WORD}") and _is_unfinished(file, path)
    ]
    gone += [file for file in left if _is_forgotten(file)]
    for file in gone:
        file.unlink(missing_ok=True)
    return gone


def _is_unfinished(file: Path, path: Path) -> bool:
    return _UNFINISHED in file.name.removeprefix(path.name)


def _age(path: Path) -> tuple[float, str]:
    with suppress(OSError):
        return -path.stat().st_mtime, path.name
    return 0.0, path.name


def _is_forgotten(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > 3600
    return False
