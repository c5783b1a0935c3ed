"""Opening the store, whatever keeps it: a file on this machine, a file that many hosts share, a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError, IntegrityError, ProgrammingError

from hpcml.errors import StoreError


class Store(ABC):
    """Where the rows are. Schema and queries are the same for all; how one gets at them is not."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it: the path, or the URL without its password."""

    @property
    @abstractmethod
    def used(self) -> str:
        """Where it is and how it is used, for people."""

    @property
    def is_read_only(self) -> bool:
        """Whether it may be looked at only; `writing` then raises `StoreError`."""
        return False

    @property
    def is_shared(self) -> bool:
        """Whether users and hosts that know nothing of each other may fill it together."""
        return False

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """Give a connection that sees one state of the store from beginning to end."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Connection]:
        """Give a connection of which each ``begin()`` keeps others from writing what it is about to write."""

    def together(self) -> AbstractContextManager[object]:
        """Let others see what is written inside no earlier than need be, where that costs less."""
        return nullcontext()

    def maintaining(self) -> AbstractContextManager[Connection]:
        """Give a connection that begins no transaction, for what cannot be done in one."""
        raise StoreError(f"the store {self.name} is looked after by the tools of its server")

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
            raise StoreError(self.explained(error)) from error

    def explained(self, error: DatabaseError) -> str:
        """Return one line on what the database complains of."""
        return f"the store {self.name} cannot be used: {error.orig}"


def open_store(url: str, mode: str | None = None) -> Store:
    """Return the store at *url*: a path, ``sqlite:///path`` or ``postgresql://...``.

    An absent file is created, readable by its owner only; an older schema is upgraded. Any number of processes may do
    so at once. What is no store of ours, or of a newer hpcml, or not readable, raises `StoreError`. *mode* says how a
    file is used (`placement.Mode`); None means HPCML_STORE_MODE, or else what suits the place where it lies.
    """
    if url.startswith("postgres") and "://" in url:
        from hpcml.store.postgres import PostgresStore  # noqa: PLC0415

        return PostgresStore.open(url)
    from hpcml.store.opening import open_file  # noqa: PLC0415 - only the driver that is used is loaded

    return open_file(url, mode)
