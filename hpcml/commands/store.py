"""Looking after the store: its place and size, checks and backup, for ``hpcml sync``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcml.commands import external_runs
from hpcml.commands.collect import opened
from hpcml.errors import HpcmlError
from hpcml.paths import Places
from hpcml.report.store import StoreCheck
from hpcml.runs.layout import find_run_dirs
from hpcml.store import admin
from hpcml.store.journals import files_in
from hpcml.store.manifest_rows import describe


def check(places: Places) -> StoreCheck:
    """Look for what is wrong with the store, and with the run directories that it is an index of.

    Nothing is read in before, so that a damaged store is looked at as it is.
    """
    unreadable, folders = list(_unreadable(places)), list(map(str, external_runs.folders(places)))
    if torn := admin.torn_parts(places.store_url):
        return StoreCheck(name=places.store_url, faults=torn, unreadable=unreadable, folders=folders)
    with opened(places) as store:
        faults = list(admin.faults(store))
        runs, points = (None, None) if faults else admin.counts(store)
        return StoreCheck(
            name=store.name,
            used=store.used,
            size_bytes=admin.size_of(store),
            runs=runs,
            points=points,
            folders=folders,
            faults=faults,
            unreadable=unreadable,
        )


def _unreadable(places: Places) -> Iterator[str]:
    homes: dict[Path, str | None] = {}
    for root in external_runs.roots(places):
        for run_dir in find_run_dirs(root):
            try:
                describe(run_dir, homes)
                files_in(str(run_dir.journals))
            except HpcmlError as error:
                yield str(error)


def back_up(places: Places, target: Path | None) -> tuple[Path, int]:
    """Copy the store into the new file *target*, or one beside it where that is None; return the file and its bytes."""
    with opened(places) as store:
        written = admin.back_up(store, target)
    return written, written.stat().st_size
