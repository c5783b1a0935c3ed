"""Looking after the store: its place and size, checks, compaction and backup, for ``hpcml store``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands import external_runs
from hpcml.commands.collect import opened
from hpcml.errors import HpcmlError
from hpcml.paths import Places
from hpcml.runs.layout import find_run_dirs
from hpcml.store import admin
from hpcml.store.journals import sizes_in
from hpcml.store.manifest_rows import describe


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """A store as it is kept: `used` says how it is used, `size_bytes` is None for a server's database."""

    name: str
    used: str
    size_bytes: int | None
    runs: int
    points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRewrite:
    """A store's file before and after, in bytes, and what was removed beside it."""

    name: str
    before: int
    after: int
    removed: Sequence[Path] = ()


def look(places: Places) -> StoreSummary:
    """Return where and how the store is kept, how many runs and metric points are in it, and its size."""
    with opened(places) as store:
        runs, points = admin.counts(store)
        return StoreSummary(name=store.name, used=store.used, size_bytes=admin.size_of(store), runs=runs, points=points)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """What is wrong: a line for each fault of the store called `name`, and for each run that cannot be read into it."""

    name: str
    faults: Sequence[str]
    unreadable: Sequence[str]


def check(places: Places) -> StoreCheck:
    """Look for what is wrong with the store, and with the run directories that it is an index of.

    Nothing is read in before, so that a damaged store is looked at as it is.
    """
    unreadable = list(_unreadable(places))
    if torn := admin.torn_parts(places.store_url):
        return StoreCheck(name=places.store_url, faults=torn, unreadable=unreadable)
    with opened(places) as store:
        return StoreCheck(name=store.name, faults=list(admin.faults(store)), unreadable=unreadable)


def _unreadable(places: Places) -> Iterator[str]:
    homes: dict[Path, str | None] = {}
    for root in external_runs.roots(places):
        for run_dir in find_run_dirs(root):
            try:
                describe(run_dir, homes)
                sizes_in(str(run_dir.journals))
            except HpcmlError as error:
                yield str(error)


def vacuum(places: Places) -> StoreRewrite:
    """Give the space of deleted rows back to the file system; return the sizes before and after (0 for a server's).

    Raises `StoreError` where the store is read-only for this user.
    """
    with opened(places, to_write=True) as store:
        before = admin.size_of(store) or 0
        admin.vacuum(store)
        return StoreRewrite(name=store.name, before=before, after=admin.size_of(store) or 0)


def compact(places: Places) -> StoreRewrite:
    """Make the store as small as it can be without losing a value; `StoreError` where it is read-only."""
    with opened(places, to_write=True) as store:
        before = admin.size_of(store) or 0
        removed = admin.compact(store)
        return StoreRewrite(name=store.name, before=before, after=admin.size_of(store) or 0, removed=removed)


def back_up(places: Places, target: Path | None) -> tuple[Path, int]:
    """Copy the store into the new file *target*, or one beside it where that is None; return the file and its bytes."""
    with opened(places) as store:
        written = admin.back_up(store, target)
    return written, written.stat().st_size
