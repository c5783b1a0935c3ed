"""Opening the store: a local SQLite file, one on a shared file system, or a PostgreSQL server.

Every command begins here.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcml.errors import TAKES_NOTHING, StoreError
from hpcml.runs import private
from hpcml.store.database import Database
from hpcml.store.sqlite.file import open_direct, open_read_only
from hpcml.store.sqlite.host_copy import open_published
from hpcml.store.sqlite.location import (
    VARIABLE,
    Mode,
    Placement,
    check_place,
    is_on_server,
    only_read,
    path_of,
    placement_of,
)

_PROBE_BYTES = 4097  # a file of less may lie in its inode, which a quota of bytes does not count


def open_store(url: str, mode: str | None = None) -> Database:
    """Return the store at *url*: a path, ``sqlite:///path`` or ``postgresql://...``.

    An absent file is created, readable by its owner only. Any number of processes may do so at once. A file that is no
    hpcml store, is of another version of hpcml, or is not readable, raises `StoreError`. *mode* says
    how a file is used (a name of `location.Mode`, or auto); None means HPCML_STORE_MODE, or else what suits the place
    where it lies. *url* may begin with ``~``. The caller closes the store.

    >>> with closing(open_store("~/runs/store.db")) as store:  # doctest: +SKIP
    ...     records = find_runs(store)

    >>> store = open_store("postgresql://me@db.example/hpcml")  # doctest: +SKIP
    """
    if is_on_server(url):
        from hpcml.store.postgres import open_server  # noqa: PLC0415 - most stores are files

        return open_server(url)
    return open_file(url, mode)


def open_file(url: str, wanted: str | None) -> Database:
    """Return the store in the file that *url* names, made where needed and allowed.

    *wanted* says how it is used (a name of `location.Mode`, or auto); None means HPCML_STORE_MODE, or else what suits
    its place. A file that this user may only read is read, whatever *wanted* says. Raises `StoreError` where there can
    be no store, and for an unknown *wanted*.
    """
    path = path_of(url)
    check_place(path)
    placement = _placed(path, wanted)
    if only_read(path):
        return open_read_only(placement)
    if placement.mode is Mode.published:
        return open_published(placement, os.environ)
    return open_direct(placement)


def refusal_of(folder: Path) -> str | None:
    """Return what *folder* says to new content where it takes nothing; None after other errors, too."""
    probe = folder / ".probe"  # of one name: the next one removes that of a command that was killed here
    try:
        probe.unlink(missing_ok=True)  # of a pipe that somebody put there, nobody may ever come to the other end
        try:
            with private.open_file(probe, "xb", buffering=0) as file:
                file.write(bytes(_PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror if error.errno in TAKES_NOTHING else None
    return None


def place_of(url: str) -> Placement | None:
    """Return how the file that *url* names is used, or would be; None for a store on a server.

    The file is not opened. `hpcml doctor` shows it. Raises `StoreError` for a URL that names no file. Used by `hpcml
    doctor` and `hpcml plan --time`, which must not create a store.
    """
    return None if is_on_server(url) else _placed(path_of(url), None)


def _placed(path: Path, wanted: str | None) -> Placement:
    try:
        return placement_of(path, wanted or os.environ.get(VARIABLE) or "auto")
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
