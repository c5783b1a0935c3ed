"""A new store, made from SQL alone: loading SQLAlchemy and Alembic takes a new home's first command 0.3 s.

``new.sql`` beside this file holds the tables, indexes and views that all migrations lead to, in the order in which they
come about, and the number of the last. A test compares it with what the migrations make
(tests/store/test_new_store.py, which also writes it anew).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from hpcml.store.database import APPLICATION_ID, REVISION

log = logging.getLogger(__name__)

STATEMENTS = Path(__file__).with_name("new.sql")


def make_if_empty(driver: sqlite3.Connection, path: Path) -> bool:
    """Make the schema in the file *path* if it holds nothing yet, and tell whether it was so.

    *driver* is in a transaction that keeps others from writing.
    """
    if driver.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
        return False
    driver.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in _statements(STATEMENTS.read_text(encoding="utf-8")):
        driver.execute(statement)
    log.info("made %s with schema %s", path, REVISION)
    return True


def _statements(text: str) -> Iterator[str]:
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.rstrip().removesuffix(";")
            statement = ""
