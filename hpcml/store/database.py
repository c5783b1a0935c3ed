"""`Database`, the interface of every store: an SQLite file, a published file, a PostgreSQL server.

Whoever reads rows takes a `Database` and asks it for a `StoreReader`, and whoever writes them for a connection of
SQLAlchemy; `hpcml.store.opening` makes one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from hpcml.errors import StoreError
from hpcml.store.reading import StoreReader

if TYPE_CHECKING:
    from sqlalchemy import Connection

APPLICATION_ID = 0x68706D6C  # "hpml": how a file says that it is ours before anything is read from it
REVISION = "0001"  # of migrations/versions


class Database(ABC):
    """An open store. Schema and queries are the same for all kinds; how a connection and a lock are got differs.

    Every command gets one from `hpcml.store.opening.open_store` and closes it when it ends. Reading and writing are
    context managers, so that no connection outlives the block in which it is used.

    >>> with store.reading() as reading:  # doctest: +SKIP
    ...     uids = reading.column("SELECT uid FROM run")
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the store in messages: the path, or the URL without its password."""

    @property
    @abstractmethod
    def used(self) -> str:
        """Where the store is and how it is used (the mode), as one line for people."""

    @property
    def is_read_only(self) -> bool:
        """Whether this user may only read; `writing` then raises `StoreError`."""
        return False

    @property
    def read_only(self) -> str:
        """How that is said: in words that a reason may follow."""
        return f"the store {self.name} is read-only for you"

    @property
    def is_shared(self) -> bool:
        """Whether several users and hosts may fill it at once, with directories that the others cannot see."""
        return False

    @abstractmethod
    def reading(self) -> AbstractContextManager[StoreReader]:
        """Return a context manager with a snapshot: one state from beginning to end.

        Whatever others write meanwhile is not seen. Raises `StoreError` where the store cannot be read, also from
        inside the block (`translated`).
        """

    @abstractmethod
    def writing(self) -> AbstractContextManager[Connection]:
        """Return a context manager with a connection for transactions; begin each with ``connection.begin()``.

        A file lets one process write at a time, and waits. On a server each transaction must lock what it writes
        (`hpcml.store.server_locks`). Raises `StoreError` where the store is read-only. A transaction whose block raises
        is undone; those before it stay.

        >>> with store.writing() as connection, connection.begin():  # doctest: +SKIP
        ...     connection.execute(delete(RUN_TAG).where(RUN_TAG.c.run_id == run_id))
        """

    def together(self) -> AbstractContextManager[object]:
        """Return a context manager around several `writing`s, after which others see them; until then they need not.

        Saves a publication for each of them where the store is published as a whole; elsewhere it does nothing. Used
        where one command writes several times (ingest and what follows it, many tags).
        """
        return nullcontext()

    def maintaining(self) -> AbstractContextManager[Connection]:
        """Return a context manager with a connection in no transaction, for what cannot be done in one (VACUUM).

        Raises `StoreError` for a server.
        """
        raise StoreError(f"the store {self.name} is looked after by the tools of its server")

    @abstractmethod
    def close(self) -> None:
        """Close all connections and files.

        The store cannot be used afterwards. Closing it twice does no harm.
        """

    @abstractmethod
    def translated(self) -> AbstractContextManager[None]:
        """Return a context manager that raises `StoreError` with one line in place of the database's own error.

        What is a bug of hpcml (a violated constraint, a misspelt statement) keeps its traceback.
        """
