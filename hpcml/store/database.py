"""`Database`, an open store: an SQLite file, a host's copy of one, a file that is only read, a PostgreSQL server.

All are asked and written by the same statements of SQLAlchemy; `hpcml.store.opening` makes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcml.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

APPLICATION_ID = 0x68706D6C  # "hpml": how a file says that it is ours before anything is read from it
REVISION = "0002"  # of migrations/versions
_AT_ONCE = 500  # values in one statement: databases have room for so many only
T = TypeVar("T")
to_json = json.JSONEncoder(separators=(",", ":")).encode  # as SQLite itself writes it
of_json = lru_cache(maxsize=5000)(json.loads)  # of many runs most documents are alike; nobody may change one


@dataclass(slots=True, kw_only=True)
class Database:
    """An open store. Every command gets one from `hpcml.store.opening.open_store` and closes it when it ends.

    Reading and writing are context managers, so that no connection outlives the block in which it is used.

    >>> with store.reading() as connection:  # doctest: +SKIP
    ...     uids = connection.execute(select(RUN.c.uid)).scalars().all()
    """

    name: str  # in messages: the path, or the URL without its password
    used: str  # where the store is and how it is used, as one line for people
    engine: Engine
    explained: Callable[[Exception], StoreError | None]  # None: a bug of hpcml, which keeps its traceback
    path: Path | None = None  # of a store in a file
    read_only: str | None = None  # why it cannot be written; None: it can
    is_shared: bool = False  # several users and hosts may fill it at once, from folders that the others cannot see
    publish: Callable[[], None] | None = None  # called at the end where anything was written
    reading_options: Mapping[str, Any] = field(default_factory=dict)  # of SQLAlchemy's connections
    writing_options: Mapping[str, Any] = field(default_factory=dict)
    on_close: Callable[[], None] | None = None
    is_changed: bool = False

    @property
    def is_read_only(self) -> bool:
        """Whether this user may only read; `writing` then raises `StoreError`."""
        return self.read_only is not None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the store from beginning to end, whatever others write meanwhile.

        Raises `StoreError` where the store cannot be read, also from inside the block.
        """
        with self.explaining(), self.engine.execution_options(**self.reading_options).connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection in a transaction, which ends with the block; a block that raises undoes it.

        A file lets one process write at a time, and waits; on a server rows are locked. Raises `StoreError` where the
        store is read-only.
        """
        if self.read_only is not None:
            raise StoreError(f"{self.read_only}: choose one of your own (--store, HPCML_STORE)")
        with self.explaining(), self.engine.execution_options(**self.writing_options).begin() as connection:
            yield connection
        self.is_changed = True

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise `StoreError` with one line in place of the database's own error."""
        try:
            yield
        except Exception as error:
            if isinstance(error, StoreError) or (explained := self.explained(error)) is None:
                raise
            raise explained from error

    def close(self) -> None:
        """Publish what was written, where that is to be done, and let go of all connections and files."""
        if self.publish is not None and self.is_changed:
            self.is_changed = False
            self.publish()
        self.engine.dispose()
        if self.on_close is not None:
            self.on_close()


def chunked(items: Sequence[T], size: int = _AT_ONCE) -> Iterator[Sequence[T]]:
    """Yield *items* in pieces of *size*, by default of as many as one statement has room for.

    >>> [len(piece) for piece in chunked(range(1100))]
    [500, 500, 100]
    """
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
