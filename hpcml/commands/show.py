"""Everything recorded of one run, for ``hpcml show``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands.collect import collect, opened
from hpcml.errors import HpcmlError
from hpcml.model.query_results import Timeline
from hpcml.model.records import Known, RunRecord, StoredEvent
from hpcml.model.secrets import masked
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.store import query
from hpcml.store.scheduler_words import read_words
from hpcml.store.telemetry import timelines


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One run with everything recorded of it.

    `word` is what its scheduler said last and when (unix seconds), None if it was never asked; `code` is the folder of
    the copy of its code, None without a copy. `overrides` are the settings that were typed for it, None where that was
    not recorded; `argv` is the command line of a program of the user's own, None for a recipe; `image` is what the
    program was started in, None without a container.
    """

    record: RunRecord
    events: Sequence[StoredEvent]
    timelines: Sequence[Timeline]
    word: tuple[Known, float] | None
    code: str | None
    overrides: Sequence[str] | None
    argv: Sequence[str] | None
    image: str | None


def show_run(places: Places, reference: str) -> Shown:
    """Return everything recorded of the run that *reference* means; `StoreError` where it means none or several."""
    with opened(places) as store:
        collect(store, places)
        record = query.get_run(store, reference)
        code = RunDir(Path(record.path)).code
        overrides, argv, image = _asked(record)
        return Shown(
            record=record,
            events=query.events(store, record.uid),
            timelines=timelines(store, record.uid),
            word=read_words(store, [record.uid]).get(record.uid),
            code=str(code.resolve()) if code.exists() else None,
            overrides=overrides,
            argv=argv,
            image=image,
        )


def _asked(record: RunRecord) -> tuple[list[str] | None, list[str] | None, str | None]:
    """Return the settings that were typed for the run, the command line of a user's own program, and the image."""
    try:
        manifest = read_manifest(RunDir(Path(record.path)).manifest)
    except HpcmlError:  # its directory is gone or damaged, or another tool ran it: the store alone answers
        return None, None, None
    is_own = manifest.run.workload.command is not None
    typed = manifest.provenance.overrides
    image = manifest.plan.image
    return (
        None if typed is None else masked(typed),
        masked(manifest.plan.program) if is_own else None,
        None if image is None else image.path,
    )


def events_of(places: Places, reference: str) -> list[StoredEvent]:
    """Return the events of a run, in the order of their times; `StoreError` as in `show_run`."""
    with opened(places) as store:
        collect(store, places)
        return query.events(store, query.get_run(store, reference).uid)
