"""A copy of the store in a file of its own, for a tool that reads SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from hpcml.errors import StoreError
from hpcml.store.engine import Store


def copy_into(store: Store, path: Path) -> None:
    """Write the store as it is now into the new file *path*."""
    with store.reading() as connection:
        if connection.dialect.name != "sqlite":
            raise StoreError(
                f"the store {store.name} is no SQLite file: look at its views with a tool for its database"
            )
        driver: Any = connection.connection.dbapi_connection
        try:
            with closing(sqlite3.connect(path)) as copy:
                driver.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, whatever the mode of the other
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot be copied to {path}: {error}") from error


def inner_tables(path: Path) -> list[str]:
    """Return the tables in the store's file *path*: all that is not a view."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
