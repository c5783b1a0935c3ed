"""Run directories from elsewhere, brought into the store and taken out of it; they stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.operations import elsewhere
from hpcml.operations.collect import opened
from hpcml.operations.elsewhere import Given
from hpcml.places import Places
from hpcml.store.forgetting import forget_runs
from hpcml.store.ingest import IngestReport, ingest_all
from hpcml.store.missing import runs_below


def adopt(places: Places, paths: Sequence[Path]) -> tuple[list[Given], IngestReport]:
    """Read the runs in *paths* from now on, together with all others; one that holds none refuses all."""
    found = [elsewhere.look_at(places, path) for path in paths]
    with opened(places, to_write=True) as store:
        for given in found:
            if given.is_new:
                elsewhere.note_down(places, given.folder)
        return found, ingest_all(store, *elsewhere.roots(places))


def disown(places: Places, path: Path) -> int:
    """Read the folder *path* no more, take its runs out of the store, and return how many; the folder is left alone."""
    folder, was_given = elsewhere.let_go(places, path)
    if not was_given and (folder.is_relative_to(places.home) or places.home.is_relative_to(folder)):
        raise ConfigError(f"{path} was not given to hpcml ingest; what lies in HPCML_HOME is always read")
    with opened(places, to_write=True) as store:
        # where it was not given now: what an earlier call, killed half-way, had left
        still_read = {uid for root in elsewhere.roots(places) for uid in runs_below(store, root)}
        gone = forget_runs(store, [uid for uid in runs_below(store, folder) if uid not in still_read])
    if not was_given and not gone:
        known = ", ".join(map(str, elsewhere.folders(places))) or "none"
        raise ConfigError(f"{path} was not given to hpcml ingest; known: {known}")
    return gone
