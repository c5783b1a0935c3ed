"""Tags and notes that people give to runs, for ``hpcml tag``; kept in the runs' journals."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.commands.submit.provenance import user_name
from hpcml.errors import HpcmlError, require
from hpcml.model.records import RunRecord, check_tag
from hpcml.paths import Places
from hpcml.runs.journal import USER
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_run
from hpcml.store.query import get_run
from hpcml_client.journal import JournalWriter

_TAGS = "tags and notes"
_LONGEST_NOTE = 64 << 10  # what is longer belongs into a file


def tag(places: Places, selection: Selection, changes: Sequence[str], *, note: str | None = None) -> list[RunRecord]:
    """Make *changes* (``+paper``, ``-draft``), in their order, to each of the selected runs, and add *note*.

    Returns the runs as they are now. A tag that is given must be one by `check_tag`; any can be taken away.
    Runs that are gone, read-only or another user's raise `ConfigError`, and nothing is written to any. Where a change
    would change nothing, nothing is written. Raises `HpcmlError` where the disk is full, and `ConfigError` for a blank
    note or one of more than 64 Ki characters.
    """
    for change in changes:
        require(len(change) > 1, "a tag has a name: +paper gives it, -paper takes it away")
        if change[0] == "+":
            check_tag(change[1:])
    if note is not None:
        require(note.strip() != "", "a note says something: hpcml tag RUN --note 'what is to be remembered'")
        require(len(note) <= _LONGEST_NOTE, f"a note has {_LONGEST_NOTE} characters at most, this one {len(note)}")
    noted: list[_Told] = [] if note is None else [("noted", {"text": note})]
    with opened(places, to_write=True) as store:
        collect(store, places)
        chosen = select(store, selection)
        wanted = {record.uid: [*_events_for(record, changes), *noted] for record in chosen}
        run_dirs = {record.uid: writable(record, _TAGS) for record in chosen if wanted[record.uid]}
        for record in chosen:
            if wanted[record.uid]:
                _tell(store, record, run_dirs[record.uid], wanted[record.uid])
        return [get_run(store, record.uid) if wanted[record.uid] else record for record in chosen]


_Told = tuple[str, dict[str, str]]


def _events_for(record: RunRecord, changes: Sequence[str]) -> list[_Told]:
    tags, events = set(record.tags), list[_Told]()
    for change in changes:
        name = change[1:]
        if (change[0] == "+") != (name in tags):
            tags ^= {name}
            events.append(("tagged" if change[0] == "+" else "untagged", {"tag": name}))
    return events


def writable(record: RunRecord, what: str) -> RunDir:
    """Return the run's directory, or raise `ConfigError` where its journals cannot take *what* from us."""
    run_dir = RunDir(Path(record.path))
    require(run_dir.manifest.exists(), f"run {record.uid}: {record.path} is gone (hpcml rm {record.uid} forgets it)")
    # what we may write into another's run, they perhaps may not read: it would be lost to them from then on
    is_ours = run_dir.path.stat().st_uid == os.geteuid()
    require(is_ours, f"run {record.uid}: {run_dir.path} belongs to somebody else, who alone adds {what} to it")
    folder = run_dir.journals if run_dir.journals.exists() else run_dir.path
    may_write = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    require(may_write, f"run {record.uid}: {folder} is read-only: it takes no {what}")
    return run_dir


def _tell(store: Database, record: RunRecord, run_dir: RunDir, events: Sequence[_Told]) -> None:
    # Attempt 0, whichever is on: this belongs to none, and must not begin one.
    with JournalWriter.open(str(run_dir.journals), run=record.uid, attempt=0, writer=USER) as journal:
        for name, details in events:
            journal.event(name, {**details, "author": user_name()})
    if journal.dropped:  # known from the end on: until then what there is no room for waits
        raise HpcmlError(f"run {record.uid}: nothing could be written to {run_dir.journals}: is the disk full?")
    ingest_run(store, run_dir)
