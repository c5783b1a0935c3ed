"""Adding run directories from outside of HPCML_HOME to the store, and removing them from it, for ``hpcml sync --add``.

The directories stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcml.commands import external_runs
from hpcml.commands.collect import opened
from hpcml.commands.external_runs import Given
from hpcml.errors import ConfigError
from hpcml.paths import Places
from hpcml.store.ingest import ingest_all
from hpcml.store.missing import runs_below
from hpcml.store.news import IngestReport
from hpcml.store.rows import forget_runs


def adopt(places: Places, paths: Sequence[Path]) -> tuple[list[Given], IngestReport]:
    """Read the runs in *paths* from now on, together with all others; return what lies in each path, and what was read.

    Raises `ConfigError`, before anything is recorded, if one of them holds no run directory, and `StoreError` where the
    store is read-only.
    """
    found = [external_runs.look_at(places, path) for path in paths]
    with opened(places, to_write=True) as store:
        for given in found:
            if given.is_new:
                external_runs.note_down(places, given.folder)
        return found, ingest_all(store, *external_runs.roots(places))


def disown(places: Places, path: Path) -> int:
    """Read the folder *path* no more and take its runs out of the store; return how many those were.

    The folder is left alone; runs that lie in another folder, too, stay in the store. Raises `ConfigError` for a folder
    that was not given to ``hpcml sync --add``, and for one in HPCML_HOME, which is always read.
    """
    folder, was_given = external_runs.let_go(places, path)
    if not was_given and (folder.is_relative_to(places.home) or places.home.is_relative_to(folder)):
        raise ConfigError(f"{path} was not given to hpcml sync --add; what lies in HPCML_HOME is always read")
    with opened(places, to_write=True) as store:
        # where it was not given now: what an earlier call, killed half-way, had left
        still_read = {uid for root in external_runs.roots(places) for uid in runs_below(store, root)}
        gone = forget_runs(store, [uid for uid in runs_below(store, folder) if uid not in still_read])
    if not was_given and not gone:
        known = ", ".join(map(str, external_runs.folders(places))) or "none"
        raise ConfigError(f"{path} was not given to hpcml sync --add; known: {known}")
    return gone
