"""Opening a store that is a file, in the way that suits the place where it lies."""

from __future__ import annotations

import os
from pathlib import Path

from hpcml.errors import StoreError
from hpcml.store.placement import VARIABLE, Mode, Placement, placement_of
from hpcml.store.published import PublishedStore
from hpcml.store.read_only import ReadOnlyStore
from hpcml.store.sqlite_file import SqliteFile, SqliteStore
from hpcml.store.sqlite_path import Header, check_place, only_read, path_of


def open_file(url: str, wanted: str | None) -> SqliteFile:
    """Return the store in the file that *url* names, made or upgraded where needed and allowed.

    *wanted* says how it is used (`placement.Mode`); None means HPCML_STORE_MODE, or else what suits its place.
    """
    path = path_of(url)
    check_place(path)
    placement = _placed(path, wanted)
    if only_read(path):
        return ReadOnlyStore.open(placement)
    if placement.mode is Mode.published:
        return PublishedStore.open(placement)
    if Header.of(path).publication:
        PublishedStore(placement).hand_over()
    return SqliteStore.open(placement)


def place_of(url: str) -> Placement | None:
    """Return how the file that *url* names is used, or would be; None for a store on a server."""
    return None if url.startswith("postgres") else _placed(path_of(url), None)


def _placed(path: Path, wanted: str | None) -> Placement:
    try:
        return placement_of(path, wanted or os.environ.get(VARIABLE) or "auto")
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
