"""Published stores as the tests of this room use them: several hosts, little patience."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hpcml.runs.lock import Patience
from hpcml.store.sqlite.location import placement_of
from hpcml.store.sqlite.published import PublishedStore

QUICK = Patience(heartbeat_s=0.1, silence_s=1.0, poll_s=0.02)


def published(path: Path, scratch: Path, *, wait_s: float = 300.0, patience: Patience = QUICK) -> PublishedStore:
    """Open the store in *path*, published, on a host whose own disk is *scratch*."""
    scratch.mkdir(exist_ok=True)
    placement = placement_of(path, "published")
    return PublishedStore.open(placement, environ={"XDG_RUNTIME_DIR": str(scratch)}, patience=patience, wait_s=wait_s)


def keep(store: PublishedStore, text: str, *, times: int = 1) -> None:
    """Write something into the store that a run is not needed for."""
    with store.writing() as connection:
        for count in range(times):
            with connection.begin():
                connection.exec_driver_sql("INSERT INTO metric (name) VALUES (?)", (f"{text}{count or ''}",))


def kept(store: PublishedStore) -> list[str]:
    """Return what was written, as the store shows it."""
    with store.reading() as reading:
        connection = reading.connection
        return sorted(connection.exec_driver_sql("SELECT name FROM metric").scalars())


def kept_in(path: Path) -> list[str]:
    """Return what any other program finds in the file."""
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
        return sorted(name for (name,) in connection.execute("SELECT name FROM metric"))
