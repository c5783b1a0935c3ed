"""News of runs that the store knows, where it is a few events in journals that are new: of hundreds read in together.

Such are the ends that hpcml records itself of jobs that nobody will hear of any more: a journal with one event in each
of many runs. What is stored is to the row what `hpcml.store.ingest` stores run by run, which also takes all other news.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from hpcml.errors import HpcmlError
from hpcml.runs.layout import RunDir
from hpcml.store.facts import ANNOTATING, JournalStart
from hpcml.store.first_reading import FirstReadings, Journal, free_ids, journal_row, read_journal
from hpcml.store.journals import sizes_in
from hpcml.store.manifest_rows import Description, as_json, describe, marked
from hpcml.store.news import IngestReport, manifest_stamp
from hpcml.store.parse import storable
from hpcml.store.pieces import chunked, within
from hpcml.store.reading import OverSqlalchemy
from hpcml.store.rows import EventRow, insert_anywhere, insert_events, refold_all
from hpcml.store.schema import JOURNAL, RUN, RUN_FACT
from hpcml.store.server_locks import hold_runs
from hpcml.store.settings import load_settings

_MOST_RUNS = 250  # in one transaction
_MOST_BYTES = 64 << 10  # of new journals of a run: events, and no curves
_TOLD = ("path", "manifest_stamp", "home")
_TOLD_BY_BOTH = frozenset({*ANNOTATING, "facts", "framework"})  # by journals and by run.json


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A run directory, and what tells whether the store's row is of it and of its run.json."""

    run_dir: RunDir
    told: Sequence[str | None]

    @classmethod
    def of(cls, run_dir: RunDir, homes: dict[Path, str | None]) -> _Place:
        """Look at *run_dir*; raise `HpcmlError` where its run.json is out of reach."""
        path = run_dir.path if run_dir.path.is_absolute() else run_dir.path.absolute()
        told = [storable(str(path)), manifest_stamp(str(path)), marked(path, homes)]
        return cls(run_dir=run_dir, told=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A run as the store has it."""

    id: int
    described: Description
    journals: dict[int, JournalStart] = field(default_factory=dict)  # by row id
    offsets: dict[str, int] = field(default_factory=dict)  # journal file -> bytes read
    ranks: dict[int, int] = field(default_factory=dict)


def read_later(connection: Connection, run_dirs: Sequence[RunDir]) -> FirstReadings:
    """Read in those of *run_dirs* whose news is short, in transactions of many runs; the others are left.

    *connection* is for writing, and in no transaction.
    """
    done = FirstReadings(report=IngestReport(), left=[])
    homes: dict[Path, str | None] = {}
    for at in range(0, len(run_dirs), _MOST_RUNS):
        with connection.begin():
            _read_group(connection, run_dirs[at : at + _MOST_RUNS], homes, done)
    return done


def _read_group(
    connection: Connection, run_dirs: Sequence[RunDir], homes: dict[Path, str | None], done: FirstReadings
) -> None:
    found: dict[str, _Place] = {}
    for run_dir in run_dirs:
        with suppress(HpcmlError):  # whoever reads it alone says what is wrong
            found.setdefault(storable(run_dir.uid), _Place.of(run_dir, homes))
    hold_runs(connection, found)
    known = _known(connection, found)
    new: list[tuple[_Known, Sequence[Journal]]] = []
    written: set[RunDir] = set()
    for uid, place in found.items():
        journals = _new_journals(place.run_dir, known.get(uid))
        described = _described(known[uid], place.run_dir, journals, homes) if journals else None
        if described is not None:
            new.append((replace(known[uid], described=described), journals))
            written.add(place.run_dir)
    if new:
        _write(connection, new)
        read = [journal for _, journals in new for journal in journals]
        done.report += IngestReport(
            runs=len(new),
            bad_lines=sum(journal.bad_lines for journal in read),
            lost_records=sum(journal.cursor.lost_records for journal in read),
        )
    done.left += [run_dir for run_dir in run_dirs if run_dir not in written]  # in order: of two copies the first counts


def _known(connection: Connection, found: Mapping[str, _Place]) -> dict[str, _Known]:
    """Return by uid those runs whose run.json, there, is the one that was read."""
    columns = (RUN.c.uid, RUN.c.id, *(RUN.c[name] for name in _TOLD))
    ids = {
        at: uid
        for chunk in chunked(list(found))
        for uid, at, *told in connection.execute(select(*columns).where(RUN.c.uid.in_(chunk))).all()
        if told == found[uid].told
    }
    known = {at: _Known(id=at, described=described) for at, described in _as_stored(connection, list(ids)).items()}
    names = ("run_id", "id", "rank", "byte_offset", "file", "writer", "attempt", "t0")
    query = select(*(JOURNAL.c[name] for name in names))
    for piece in within(JOURNAL.c.run_id, list(known)):
        for run_id, at, rank, offset, file, writer, attempt, t0 in connection.execute(query.where(piece)).all():
            run = known[run_id]
            run.journals[at] = JournalStart(file=file, writer=writer, attempt=attempt, t0=t0)
            run.offsets[file], run.ranks[at] = offset, rank
    return {ids[at]: run for at, run in known.items()}


_REFOLDED = ("precision", "planned_numerics", "planned_scheduler")
_ASKED = frozenset({"precision.observe", "cluster.co2_g_per_kwh", "cluster.co2_source"})
_SOFTWARE = ("code", "packages")


def _as_stored(connection: Connection, run_ids: Sequence[int]) -> dict[int, Description]:
    """Return by row id what `describe` says of runs, as far as it takes to fold events.

    Their run.json must be the one that was read. What it says of tags stands in the rows with what people say.
    """
    settings = load_settings(OverSqlalchemy(connection), run_ids, _ASKED)
    texts = {id(of): _grouped(of) for of in settings.values()}
    facts: dict[int, dict[str, str]] = {at: {} for at in run_ids}
    software = select(RUN_FACT.c.run_id, RUN_FACT.c.key, RUN_FACT.c.value).where(RUN_FACT.c.key.in_(_SOFTWARE))
    for piece in within(RUN_FACT.c.run_id, run_ids):
        for at, key, value in connection.execute(software.where(piece)).all():
            facts[at][key] = json.loads(value)
    columns = select(RUN.c.id, RUN.c.uid, RUN.c.epoch_ms, *(RUN.c[name] for name in _REFOLDED))
    return {
        at: Description(
            uid=uid,
            epoch_ms=epoch_ms,
            columns=dict(zip(_REFOLDED, told, strict=True)),
            settings=texts[id(settings[at])],
            tags=None,
            facts=facts[at],
        )
        for piece in within(RUN.c.id, run_ids)
        for at, uid, epoch_ms, *told in connection.execute(columns.where(piece)).all()
    }


def _grouped(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    groups: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for key, value in settings.items():
        groups[key.partition(".")[0]][key] = as_json(value)
    return groups


def _described(
    known: _Known, run_dir: RunDir, journals: Sequence[Journal], homes: dict[Path, str | None]
) -> Description | None:
    """Return what run.json says, read again where the rows have only what it says with what such *journals* say."""
    if not any(name in _TOLD_BY_BOTH for journal in journals for _, name, _ in journal.stretch.events):
        return known.described
    try:
        return describe(run_dir, homes)
    except HpcmlError:
        return None


def _new_journals(run_dir: RunDir, known: _Known | None) -> list[Journal]:
    """Return the journals that are new where that is all that is new, and without curves; else []."""
    if known is None:
        return []
    folder = str(run_dir.journals)
    try:
        sizes, samples = sizes_in(folder), sizes_in(str(run_dir.telemetry))
        new = {file: size for file, size in sizes.items() if file not in known.offsets}
        is_as_read = {file: size for file, size in sizes.items() if file in known.offsets} == known.offsets
        if samples or not is_as_read or sum(new.values()) > _MOST_BYTES:
            return []
        found = [read_journal(f"{folder}/{file}", known.described, _MOST_BYTES) for file in new]
    except HpcmlError:
        return []
    journals = [journal for journal in found if isinstance(journal, Journal) and not journal.stretch.points]
    return journals if len(journals) == len(new) else []


def _write(connection: Connection, new: Sequence[tuple[_Known, Sequence[Journal]]]) -> None:
    ids = free_ids(connection, JOURNAL, sum(len(journals) for _, journals in new))
    rows: list[dict[str, Any]] = []
    events: list[EventRow] = []
    moved: list[dict[str, Any]] = []
    for run, journals in new:
        read = {next(ids): journal for journal in journals}
        run.journals.update({at: journal.start for at, journal in read.items()})
        ranks = _ranks(run.journals)
        moved += ({"at": at, "rank": ranks[at]} for at, rank in run.ranks.items() if ranks[at] != rank)
        for at, journal in read.items():
            rows.append({"id": at, "run_id": run.id, "rank": ranks[at], **journal_row(journal)})
            events += ((at, ordinal, run.id, *event) for ordinal, event in enumerate(journal.stretch.events))
    insert_anywhere(connection, JOURNAL, rows)
    if moved:
        connection.execute(update(JOURNAL).where(JOURNAL.c.id == bindparam("at")), moved)
    if events:
        insert_events(connection, events)
    folded = refold_all(connection, {run.id: run.described for run, _ in new}, {run.id: run.journals for run, _ in new})
    over = [at for at, of in folded.items() if of.is_over]
    for piece in within(RUN.c.id, over):
        connection.execute(update(RUN).where(piece).values(is_sampled=True))


def _ranks(journals: Mapping[int, JournalStart]) -> dict[int, int]:
    """Return the ranks of a run's journals, by row id, as `hpcml.store.journal_rows.rank_journals` writes them."""
    ordered = sorted((journal.precedence, at) for at, journal in journals.items())
    return {at: rank for rank, (_, at) in enumerate(ordered)}
