"""A store that this user may read and not change: a colleague's, or one on a read-only file system."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from sqlalchemy import Connection, event

from hpcml.errors import StoreError
from hpcml.store.placement import Placement
from hpcml.store.sqlite_file import BUSY_TIMEOUT_S, SqliteFile, begin, make_engine, newer, revision_of
from hpcml.store.sqlite_path import Header, check_file
from hpcml.store.tables import REVISION


class ReadOnlyStore(SqliteFile):
    """A file that is shown as it was when somebody last read runs into it."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._engine = make_engine(lambda: connect_for_reading(self.path.resolve()), prepare=lambda _: None)
        event.listen(self._engine, "begin", begin)

    @classmethod
    def open(cls, placement: Placement) -> ReadOnlyStore:
        """Return the store in this file; one with an older or newer schema is refused."""
        check_file(placement.path)
        store = cls(placement)
        with store.reading() as connection:
            check_revision(connection, placement.path)
        return store

    @property
    def is_read_only(self) -> bool:
        """Always."""
        return True

    @property
    def used(self) -> str:
        """The file system, and that it is only read."""
        return f"on {self.placement.file_system or 'an unknown file system'}, read-only for you"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the store from beginning to end."""
        with self.translated(), self._engine.connect() as connection, connection.begin():
            yield connection

    def writing(self) -> NoReturn:
        """Refuse."""
        raise StoreError(f"the store {self.name} is read-only for you: choose one of your own (--store, HPCML_STORE)")

    def maintaining(self) -> NoReturn:
        """Refuse."""
        self.writing()

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()


def check_revision(connection: Connection, path: Path) -> None:
    """Refuse what needs an upgrade that cannot be made, or a later hpcml."""
    revision = revision_of(connection)
    if revision is None:
        raise StoreError(f"there is nothing in the store {path} yet, and it is read-only for you")
    if revision == REVISION:
        return
    from hpcml.store.upgrade import known_revisions  # noqa: PLC0415 - loads Alembic

    if revision not in known_revisions():
        raise StoreError(newer(path, revision))
    raise StoreError(
        f"the store {path} is of an older hpcml, and read-only for you: its owner's hpcml sync upgrades it"
    )


def connect_for_reading(path: Path) -> sqlite3.Connection:
    """Open *path* without ever writing beside it."""
    header, wal, shared = Header.of(path), Path(f"{path}-wal"), Path(f"{path}-shm")
    if header.publication or (header.has_wal and not (wal.exists() and shared.exists())):
        return connect_to_snapshot(path)  # nobody is writing into it; without its shared memory SQLite could not tell
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)


def connect_to_snapshot(path: Path) -> sqlite3.Connection:
    """Open *path*, which nobody changes, without any lock."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
