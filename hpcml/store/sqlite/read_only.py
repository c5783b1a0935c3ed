"""A store that this user may only read: a colleague's, or one on a read-only file system.

Such a store is not made, and what is new in run directories does not get into it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from hpcml.errors import StoreError
from hpcml.store.database import REVISION
from hpcml.store.sqlite.file import BUSY_TIMEOUT_S, FileReader, SqliteFile
from hpcml.store.sqlite.location import Placement, SqliteHeader, check_file, revision_of


class ReadOnlyStore(SqliteFile):
    """A file that is never changed; readers see the state of the last ingest by somebody who may write.

    `hpcml plan --time` opens its store in this way too, since it must change nothing.
    """

    @classmethod
    def open(cls, placement: Placement) -> ReadOnlyStore:
        """Return the store in this file; raises `StoreError` where its schema is of another version.

        Also raised for a file without a schema, which its owner has not filled yet.
        """
        check_file(placement.path)
        store = cls(placement)
        with store.reading() as reading:
            check_revision(reading.driver, placement.path)
        return store

    @property
    def is_read_only(self) -> bool:
        """Always."""
        return True

    @property
    def read_only(self) -> str:
        """Whose doing it is: that of whoever mounted the file system, or of the file's rights."""
        with suppress(OSError):
            if os.statvfs(self.path).f_flag & os.ST_RDONLY:
                return f"the store {self.name} is on a file system that is mounted read-only"
        return super().read_only

    @property
    def used(self) -> str:
        """The file system, and that the store is only read."""
        return f"on {self.placement.file_system or 'an unknown file system'}, read-only for you"

    @contextmanager
    def reading(self) -> Iterator[FileReader]:
        """Give one state of the store from beginning to end."""
        with self.translated(), closing(FileReader(connect_for_reading(self.path.resolve()))) as reading:
            reading.driver.execute("BEGIN")
            yield reading

    def writing(self) -> NoReturn:
        """Raise `StoreError`."""
        raise StoreError(f"{self.read_only}: choose one of your own (--store, HPCML_STORE)")

    def maintaining(self) -> NoReturn:
        """Raise `StoreError`."""
        self.writing()

    def close(self) -> None:
        """Nothing is held open between two readings."""


def check_revision(driver: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreError` where there is no schema, or that of another version: to make it is its owner's business."""
    revision = revision_of(driver)
    if revision is None:
        raise StoreError(f"there is nothing in the store {path} yet, and it is read-only for you")
    if revision != REVISION:
        made = f"was made by another version of hpcml (schema {revision}), and is read-only for you"
        raise StoreError(f"the store {path} {made}: its owner can make it anew")


def connect_for_reading(path: Path) -> sqlite3.Connection:
    """Return a connection to *path* that never writes beside it.

    A snapshot, or a file in write-ahead mode that nobody has open, is read without any lock; everything else is opened
    with SQLite's ``mode=ro`` (sqlite.org/uri.html).
    """
    header, wal, shared = SqliteHeader.of(path), Path(f"{path}-wal"), Path(f"{path}-shm")
    if header.publication or (header.has_wal and not (wal.exists() and shared.exists())):
        return connect_to_snapshot(path)  # nobody is writing into it; without its shared memory SQLite could not tell
    place = f"file:{quote(str(path))}?mode=ro"
    return sqlite3.connect(place, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)


def connect_to_snapshot(path: Path) -> sqlite3.Connection:
    """Return a connection to *path*, which nobody changes, without any lock (SQLite's ``immutable=1``).

    SQLite then neither locks the file nor looks for changes: a change during the reading would give wrong answers
    (sqlite.org/uri.html). A replaced file is not changed, only no longer found under its name.
    """
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True, isolation_level=None)
