"""News of runs that the store knows, where it is a few events in journals that are new: of hundreds read in together.

Such are the ends that hpcml records itself of jobs that nobody will hear of any more: a journal with one event in each
of many runs. What is stored is to the row what `hpcml.store.ingest` stores run by run, which also takes all other news.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from hpcml.errors import HpcmlError, StoreError
from hpcml.runs.layout import RunDir
from hpcml.store.curves import Precedence
from hpcml.store.first_reading import FirstReadings, Journal, journal_row, read_journal
from hpcml.store.journals import sizes_in
from hpcml.store.locks import hold_runs
from hpcml.store.manifest_rows import Description, describe
from hpcml.store.news import IngestReport
from hpcml.store.pieces import chunked, within
from hpcml.store.rows import EventRow, insert_events, refold_all
from hpcml.store.schema import JOURNAL, RUN

_MOST_RUNS = 250  # in one transaction
_MOST_BYTES = 64 << 10  # of new journals of a run: events, and no curves
_TOLD = ("path", "manifest_stamp", "home")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A run as the store has it."""

    id: int
    described: Description
    offsets: Mapping[str, int]  # journal file -> bytes read


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
    described: dict[str, tuple[RunDir, Description]] = {}
    for run_dir in run_dirs:
        try:
            found = describe(run_dir, homes)
        except StoreError:
            raise
        except HpcmlError:
            done.left.append(run_dir)  # whoever reads it alone says what is wrong
            continue
        if found.uid in described:
            done.left.append(run_dir)
        else:
            described[found.uid] = (run_dir, found)
    hold_runs(connection, described)
    known = _known(connection, {uid: found for uid, (_, found) in described.items()})
    new: dict[int, list[Journal]] = {}
    for uid, (run_dir, _) in described.items():
        journals = _new_journals(run_dir, known.get(uid))
        if journals:
            new[known[uid].id] = journals
            done.report += IngestReport(
                runs=1,
                bad_lines=sum(journal.bad_lines for journal in journals),
                lost_records=sum(journal.cursor.lost_records for journal in journals),
            )
        else:
            done.left.append(run_dir)
    if new:
        _write(connection, new, {of.id: of.described for of in known.values() if of.id in new})


def _known(connection: Connection, described: Mapping[str, Description]) -> dict[str, _Known]:
    """Return by uid those runs whose row says what run.json does."""
    columns = (RUN.c.uid, RUN.c.id, RUN.c.resting_in, *(RUN.c[name] for name in _TOLD))
    ids: dict[int, str] = {
        at: uid
        for chunk in chunked(list(described))
        for uid, at, resting_in, *told in connection.execute(select(*columns).where(RUN.c.uid.in_(chunk)))
        if resting_in is None and told == [described[uid].columns[name] for name in _TOLD]
    }
    offsets: defaultdict[int, dict[str, int]] = defaultdict(dict)
    query = select(JOURNAL.c.run_id, JOURNAL.c.file, JOURNAL.c.byte_offset)
    for piece in within(JOURNAL.c.run_id, list(ids)):
        for at, file, offset in connection.execute(query.where(piece)):
            offsets[at][file] = offset
    return {uid: _Known(id=at, described=described[uid], offsets=offsets[at]) for at, uid in ids.items()}


def _new_journals(run_dir: RunDir, known: _Known | None) -> list[Journal]:
    """Return the journals that are new where that is all that is new, and without curves; else []."""
    if known is None:
        return []
    try:
        sizes, samples = sizes_in(str(run_dir.journals)), sizes_in(str(run_dir.telemetry))
        new = {file: size for file, size in sizes.items() if file not in known.offsets}
        is_as_read = {file: size for file, size in sizes.items() if file in known.offsets} == known.offsets
        if samples or not is_as_read or sum(new.values()) > _MOST_BYTES:
            return []
        found = [read_journal(run_dir.journals / file, known.described, _MOST_BYTES) for file in new]
    except HpcmlError:
        return []
    journals = [journal for journal in found if isinstance(journal, Journal) and not journal.stretch.points]
    return journals if len(journals) == len(new) else []


def _write(connection: Connection, new: Mapping[int, Sequence[Journal]], runs: Mapping[int, Description]) -> None:
    rows = [{"run_id": at, "rank": 0, **journal_row(journal)} for at, journals in new.items() for journal in journals]
    connection.execute(insert(JOURNAL), rows)
    columns = (JOURNAL.c.run_id, JOURNAL.c.file, JOURNAL.c.id)
    ids = {  # looked up: SQLite before 3.35, as RHEL 9 has it, knows no RETURNING
        (run_id, file): int(journal_id)
        for piece in within(JOURNAL.c.run_id, list(new))
        for run_id, file, journal_id in connection.execute(select(*columns).where(piece))
    }
    events: list[EventRow] = [
        (ids[run_id, journal.file], ordinal, run_id, *event)
        for run_id, journals in new.items()
        for journal in journals
        for ordinal, event in enumerate(journal.stretch.events)
    ]
    if events:
        insert_events(connection, events)
    _rank(connection, list(new))
    folded = refold_all(connection, runs)
    over = [at for at, of in folded.items() if of.is_over]
    for piece in within(RUN.c.id, over):
        connection.execute(update(RUN).where(piece).values(is_sampled=True))


def _rank(connection: Connection, run_ids: Sequence[int]) -> None:
    """Do what `hpcml.store.journals.rank_journals` does of one run."""
    columns = (JOURNAL.c.id, JOURNAL.c.rank, JOURNAL.c.attempt, JOURNAL.c.writer, JOURNAL.c.t0, JOURNAL.c.file)
    ranked: defaultdict[int, list[tuple[Precedence, int, int]]] = defaultdict(list)
    for piece in within(JOURNAL.c.run_id, run_ids):
        for run_id, at, rank, attempt, writer, t0, file in connection.execute(
            select(JOURNAL.c.run_id, *columns).where(piece)
        ):
            ranked[run_id].append((Precedence.of(attempt=attempt, writer=writer, t0=t0, file=file), at, rank))
    changed: list[dict[str, Any]] = [
        {"at": at, "rank": new}
        for of_run in ranked.values()
        for new, (_, at, rank) in enumerate(sorted(of_run))
        if rank != new
    ]
    if changed:
        connection.execute(update(JOURNAL).where(JOURNAL.c.id == bindparam("at")), changed)
