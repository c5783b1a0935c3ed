"""The store looked after: where and how it is kept, checked, made small again, backed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.operations.collect import opened
from hpcml.places import Places
from hpcml.store import maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A store as it is kept. `size_bytes` is None for a server's."""

    name: str
    used: str
    size_bytes: int | None
    runs: int
    points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A store's file before and after, in bytes, and what was removed beside it."""

    name: str
    before: int
    after: int
    removed: Sequence[Path] = ()


def look(places: Places) -> Kept:
    """Return where and how the store is kept, and how much is in it."""
    with opened(places) as store:
        runs, points = maintenance.counts(store)
        return Kept(name=store.name, used=store.used, size_bytes=maintenance.size_of(store), runs=runs, points=points)


def check(places: Places) -> tuple[str, list[str]]:
    """Return the store's name and a line for each thing that is wrong with it; nothing is read in before."""
    if torn := maintenance.torn_parts(places.store_url):
        return places.store_url, torn
    with opened(places) as store:
        return store.name, list(maintenance.faults(store))


def vacuum(places: Places) -> Rewritten:
    """Make the store's file small again."""
    with opened(places, to_write=True) as store:
        before = maintenance.size_of(store) or 0
        maintenance.vacuum(store)
        return Rewritten(name=store.name, before=before, after=maintenance.size_of(store) or 0)


def compact(places: Places) -> Rewritten:
    """Make the store as small as it can be without losing a value."""
    with opened(places, to_write=True) as store:
        before = maintenance.size_of(store) or 0
        removed = maintenance.compact(store)
        return Rewritten(name=store.name, before=before, after=maintenance.size_of(store) or 0, removed=removed)


def back_up(places: Places, target: Path | None) -> tuple[Path, int]:
    """Copy the store into the new file *target*, or one beside it; return which, and its bytes."""
    with opened(places) as store:
        written = maintenance.back_up(store, target)
    return written, written.stat().st_size
