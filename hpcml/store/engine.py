"""Opening the store, whatever keeps it: a file on this machine, a file that many hosts share, a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError, IntegrityError, ProgrammingError

from hpcml.errors import StoreError


class Store(ABC):
    """Where the rows are. Schema and queries are the same for all; how one gets at them is not."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it: the path, or the URL without its password."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """Give a connection that sees one state of the store from beginning to end."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Connection]:
        """Give a connection of which each ``begin()`` keeps others from writing what it is about to write."""

    @abstractmethod
    def close(self) -> None:
        """Let go of whatever is held open."""

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what the database complains of into one line; what is our own bug stays as it is."""
        try:
            yield
        except (IntegrityError, ProgrammingError):
            raise
        except DatabaseError as error:
            raise StoreError(f"the store {self.name} cannot be used: {error.orig}") from error


def open_store(url: str) -> Store:
    """Return the store at *url*: a path or ``sqlite:///path``.

    An absent file is created, readable by its owner only; an older schema is upgraded. Any number of processes may do
    so at once. What is no store of ours, or of a newer hpcml, or not both readable and writable, raises `StoreError`.
    """
    from hpcml.store.sqlite_file import SqliteStore, path_of  # noqa: PLC0415 - only the driver that is used is loaded

    return SqliteStore.open(path_of(url))
