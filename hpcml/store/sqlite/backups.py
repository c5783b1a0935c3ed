"""Backups of a store in a file, beside it, by `hpcml sync --backup`.

A backup appears under its name only when it is whole.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from hpcml.runs.atomic import appear, sync

_WORD = ".backup-"
_UNFINISHED = ".unfinished"


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


def thin_out(path: Path) -> list[Path]:
    """Delete all but the newest backup beside *path*, and unfinished ones; return what was deleted.

    Unfinished ones go once they are an hour old: a younger one may be another process's at work.
    """
    gone = backups_of(path)[1:]
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
