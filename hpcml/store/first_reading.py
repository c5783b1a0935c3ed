"""Runs that the store does not have yet, read in by the hundred: rows of many runs in one statement for each table.

A run's files are read and its rows made before anything is locked; then a transaction writes those of a whole group.
What is stored is to the row what `hpcml.store.ingest` stores run by run, which also takes all that does not go here:
runs that the store knows, long ones, and telemetry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, select

from hpcml.errors import HpcmlError
from hpcml.runs.journal import Header, parse_chunk, parse_piece, read_piece, unread
from hpcml.runs.layout import RunDir
from hpcml.store import parse
from hpcml.store.curves import EMPTY, Columns, Precedence, Tally, extend, merge
from hpcml.store.facts import Happening, JournalStart
from hpcml.store.journal_rows import Cursor
from hpcml.store.journals import find_header, sizes_in
from hpcml.store.manifest_rows import Description, describe
from hpcml.store.news import IngestReport
from hpcml.store.parse import Stretch, storable, take_in
from hpcml.store.rows import TELLING, EventRow, add_metrics, folded, insert_anywhere, insert_events, write_points
from hpcml.store.schema import JOURNAL, METRIC, RUN, RUN_FACT, RUN_NOTE, RUN_TAG, RUN_USAGE, RUN_WORK, SERIES, SUMMARY
from hpcml.store.server_locks import hold_runs, is_server
from hpcml.store.setting_rows import Groups, write_settings

_MOST_RUNS = 250  # in one transaction: a quarter of a second during which nobody else can write
_LONG_BYTES = 1 << 20  # of journals: their points take the time, and not the run

_NEXT_IDS = "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)"
_TALLY = tuple(each.name for each in fields(Tally))


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """All that one journal of a run says."""

    file: str
    header: Header
    end: int  # bytes that were read
    bad_lines: int
    stretch: Stretch

    @property
    def cursor(self) -> Cursor:
        """Where reading goes on; the id is not known yet."""
        stretch = self.stretch
        return Cursor(
            id=0,
            uid=storable(self.header.journal),
            t0=self.header.t0,
            byte_offset=self.end,
            events=len(stretch.events),
            records=stretch.records,
            next_seq=0 if stretch.last_seq is None else stretch.last_seq + 1,
        )

    @property
    def start(self) -> JournalStart:
        """Who wrote it and since when."""
        header = self.header
        return JournalStart(file=self.file, writer=storable(header.writer), attempt=header.attempt, t0=header.t0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstReading:
    """A run as its directory has it, not yet written."""

    run_dir: RunDir
    described: Description
    journals: Sequence[Journal]
    problems: Sequence[str]
    size: int  # bytes of journals
    has_telemetry: bool


@dataclass(slots=True, kw_only=True)
class FirstReadings:
    """What became of the directories: `report` of those that were written, `left` are for `hpcml.store.ingest`."""

    report: IngestReport
    left: list[RunDir]


def read_first(connection: Connection, run_dirs: Iterable[RunDir], *, batch_bytes: int) -> FirstReadings:
    """Write the runs among *run_dirs* that the store does not have, and are short, in transactions of many runs.

    *connection* is for writing, and in no transaction. *batch_bytes* bounds the journals of one transaction. A run that
    cannot be read becomes a line of the report's problems.
    """
    done = FirstReadings(report=IngestReport(), left=[])
    for group in _groups(run_dirs, batch_bytes, done):
        with connection.begin():
            hold_runs(connection, {reading.described.uid for reading in group})
            known = _known(connection, group)
            new: dict[str, _FirstReading] = {}
            for reading in group:
                if reading.described.uid in known or reading.described.uid in new:
                    done.left.append(reading.run_dir)  # another directory may say that it is the same run
                else:
                    new[reading.described.uid] = reading
            _write(connection, list(new.values()))
        for reading in new.values():
            done.report += _report_of(reading)
            if reading.has_telemetry:
                done.left.append(reading.run_dir)
    return done


def _groups(run_dirs: Iterable[RunDir], batch_bytes: int, done: FirstReadings) -> Iterator[list[_FirstReading]]:
    group: list[_FirstReading] = []
    size = 0
    homes: dict[Path, str | None] = {}
    for run_dir in run_dirs:
        try:
            reading = _read(run_dir, min(batch_bytes, _LONG_BYTES), homes)
        except HpcmlError:
            reading = None  # whoever reads it alone says what is wrong
        if reading is None:
            done.left.append(run_dir)
            continue
        if group and (len(group) == _MOST_RUNS or size + reading.size > batch_bytes):
            yield group
            group, size = [], 0
        group.append(reading)
        size += reading.size
    if group:
        yield group


def _read(run_dir: RunDir, most_bytes: int, homes: dict[Path, str | None]) -> _FirstReading | None:
    """Read the run's files; None where its journals are longer than *most_bytes*."""
    described, folder = describe(run_dir, homes), str(run_dir.journals)
    sizes = sizes_in(folder)
    if (size := sum(sizes.values())) > most_bytes:
        return None
    journals, problems = [], []
    for file in sizes:
        found = read_journal(f"{folder}/{file}", described, most_bytes)
        if isinstance(found, Journal):
            journals.append(found)
        elif found is not None:
            problems.append(found)
    has_telemetry = bool(sizes_in(f"{run_dir.path}/telemetry"))
    return _FirstReading(
        run_dir=run_dir,
        described=described,
        journals=journals,
        problems=problems,
        size=size,
        has_telemetry=has_telemetry,
    )


def read_journal(path: str, described: Description, most_bytes: int) -> Journal | str | None:
    """Return what the journal says, or one line about why it is left out; None where no line is complete yet."""
    piece = read_piece(path, 0, most_bytes)
    if not piece.is_news:
        return unread(path, piece)
    beginning = piece.data[: piece.data.index(b"\n") + 1] if piece.at == 0 else b""
    first = parse_chunk(beginning, offset=0).header
    header = first if first is not None and first.run == described.uid else find_header(path, described.uid)
    if isinstance(header, str):
        return header
    chunk = parse_piece(piece, offset=0, journal=storable(header.journal), quickly=parse.quickly)
    stretch = take_in(chunk.records, t0=header.t0, epoch_ms=described.epoch_ms)
    bad_lines = chunk.bad_lines + stretch.bad_lines
    return Journal(file=path.rpartition("/")[2], header=header, end=chunk.end, bad_lines=bad_lines, stretch=stretch)


def _report_of(reading: _FirstReading) -> IngestReport:
    journals = reading.journals
    return IngestReport(
        runs=0 if reading.has_telemetry else 1,  # else it is counted when that is read
        new_points=sum(journal.stretch.n_points for journal in journals),
        bad_lines=sum(journal.bad_lines for journal in journals),
        lost_records=sum(journal.cursor.lost_records for journal in journals),
        problems=() if reading.has_telemetry else tuple(dict.fromkeys(reading.problems)),
    )


def _known(connection: Connection, group: Sequence[_FirstReading]) -> set[str]:
    uids = [reading.described.uid for reading in group]
    return set(connection.execute(select(RUN.c.uid).where(RUN.c.uid.in_(uids))).scalars())


def _write(connection: Connection, readings: Sequence[_FirstReading]) -> None:
    """Write the rows of *readings*, in the caller's transaction; the store has none of them."""
    journals = [journal for reading in readings for journal in reading.journals]
    new = _NewRows(
        metric_ids=_metric_ids(connection, readings),
        run_ids=free_ids(connection, RUN, len(readings)),
        journal_ids=free_ids(connection, JOURNAL, len(journals)),
        series_ids=free_ids(connection, SERIES, sum(len(journal.stretch.points) for journal in journals)),
    )
    for reading in readings:
        new.add(reading)
    for table in (RUN, JOURNAL, SERIES, SUMMARY, RUN_FACT, RUN_TAG, RUN_NOTE, RUN_USAGE, RUN_WORK):
        insert_anywhere(connection, table, new.of[table])
    write_settings(connection, new.settings)
    if new.events:
        insert_events(connection, new.events)
    if new.points:
        write_points(connection, new.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewRows:
    """The rows of many runs; their ids are free (`free_ids`)."""

    metric_ids: Mapping[str, int]
    run_ids: Iterator[int]
    journal_ids: Iterator[int]
    series_ids: Iterator[int]
    of: defaultdict[Table, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    settings: dict[int, Groups] = field(default_factory=dict)
    events: list[EventRow] = field(default_factory=list)
    points: list[tuple[int, Columns]] = field(default_factory=list)

    def add(self, reading: _FirstReading) -> None:
        """Add all rows of a run."""
        run_id, described = next(self.run_ids), reading.described
        starts = [journal.start for journal in reading.journals]
        new = folded(described, starts, list(_happenings(reading, starts)))
        about = {"uid": described.uid, **described.columns, **new.columns}
        is_sampled = new.is_over and not reading.has_telemetry
        self.of[RUN].append({"id": run_id, **about, "is_sampled": is_sampled})
        self.settings[run_id] = described.settings
        self.of[RUN_FACT] += ({"run_id": run_id, "key": key, "value": value} for key, value in new.facts.items())
        for table, found in new.lists.items():
            self.of[table] += ({**values, "run_id": run_id, "position": at} for at, values in enumerate(found))
        for table, values in new.measured.items():
            self.of[table].append({**values, "run_id": run_id})
        curves: defaultdict[str, list[tuple[Precedence, Columns]]] = defaultdict(list)
        precedences = [start.precedence for start in starts]
        ranks = {precedence.file: rank for rank, precedence in enumerate(sorted(precedences))}
        for journal, precedence in zip(reading.journals, precedences, strict=True):
            self._add_journal(run_id, journal, ranks[journal.file])
            for metric, columns in journal.stretch.points.items():
                curves[metric].append((precedence, columns))
        for metric, series in curves.items():
            self.of[SUMMARY].append(_summary_row(run_id, self.metric_ids[metric], series))

    def _add_journal(self, run_id: int, journal: Journal, rank: int) -> None:
        journal_id, stretch = next(self.journal_ids), journal.stretch
        self.of[JOURNAL].append({"id": journal_id, "run_id": run_id, "rank": rank, **journal_row(journal)})
        self.events.extend((journal_id, at, run_id, *event) for at, event in enumerate(stretch.events))
        for metric, columns in stretch.points.items():
            series_id = next(self.series_ids)
            keys = {"id": series_id, "run_id": run_id, "journal_id": journal_id}
            self.of[SERIES].append({**keys, "metric_id": self.metric_ids[metric]})
            self.points.append((series_id, columns))


def free_ids(connection: Connection, table: Table, n: int) -> Iterator[int]:
    """Return *n* ids for new rows of *table*: from its sequence on a server, else counted on, as nobody else writes."""
    if is_server(connection):
        ids = connection.exec_driver_sql(_NEXT_IDS, (table.name, n)).scalars()
        return iter([int(at) for at in ids])
    return count(int(connection.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one()) + 1)


def _metric_ids(connection: Connection, readings: Sequence[_FirstReading]) -> dict[str, int]:
    wanted = {name for reading in readings for journal in reading.journals for name in journal.stretch.points}
    query = select(METRIC.c.name, METRIC.c.id)
    known = {name: int(at) for name, at in connection.execute(query)}
    if missing := sorted(wanted - known.keys()):
        add_metrics(connection, missing)
        known = {name: int(at) for name, at in connection.execute(query)}
    return known


def journal_row(journal: Journal) -> dict[str, Any]:
    """Return the row of *journal* but for its run and its rank."""
    cursor, header = journal.cursor, journal.header
    told = {name: getattr(cursor, name) for name in ("uid", "t0", "byte_offset", "events", "records", "next_seq")}
    who = {"writer": storable(header.writer), "attempt": header.attempt, "host": storable(header.host)}
    missing = {"bad_lines": journal.bad_lines, "lost_records": cursor.lost_records}
    return {"file": journal.file, **told, **who, **missing}


def _summary_row(run_id: int, metric_id: int, series: Sequence[tuple[Precedence, Columns]]) -> dict[str, Any]:
    curve = merge(series)
    tally = extend(EMPTY, curve.steps, curve.values)
    return {"run_id": run_id, "metric_id": metric_id, **{name: getattr(tally, name) for name in _TALLY}}


def _happenings(reading: _FirstReading, starts: Sequence[JournalStart]) -> Iterator[Happening]:
    """Yield the events that say something of the run, as they will stand in the store."""
    epoch_ms = reading.described.epoch_ms
    for journal, start in zip(reading.journals, starts, strict=True):
        details = journal.stretch.details
        for ordinal, (t_ms, name, _) in enumerate(journal.stretch.events):
            if name in TELLING:
                at = (epoch_ms + t_ms) / 1000
                yield Happening(journal=start, ordinal=ordinal, at=at, name=name, details=details[ordinal])
