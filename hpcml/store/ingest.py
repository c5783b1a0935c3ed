"""Run directories into the store: as often as one likes, by as many as like, killed at any point."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, select, update

from hpcml.errors import HpcmlError, StoreError
from hpcml.journal import Chunk, parse_chunk
from hpcml.rundir import RunDir, find_run_dirs
from hpcml.store import cursors as cursor_rows
from hpcml.store import rows, samples
from hpcml.store.copies import takes_over
from hpcml.store.describing import Description, describe, manifest_stamp
from hpcml.store.engine import Store
from hpcml.store.homes import check_home
from hpcml.store.intake import Stretch, storable, take_in
from hpcml.store.journal_files import find_header, is_replaced, read_stretch, sizes_in
from hpcml.store.locks import hold_run
from hpcml.store.paths import is_below
from hpcml.store.summaries import Touched, without_summary, write_summaries
from hpcml.store.tables import JOURNAL, RUN

_BATCH_BYTES = 8 << 20  # of journals in one transaction: about a second during which nobody else can write


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What an ingest found. All but `runs` counts what this one read, not what others had read before."""

    runs: int = 0  # looked at and now in the store as their directories say
    new_points: int = 0
    bad_lines: int = 0
    lost_records: int = 0
    problems: tuple[str, ...] = ()  # one line for each run or journal that was left out

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(
            runs=self.runs + other.runs,
            new_points=self.new_points + other.new_points,
            bad_lines=self.bad_lines + other.bad_lines,
            lost_records=self.lost_records + other.lost_records,
            problems=self.problems + other.problems,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the store has of a run directory; where this equals what is there, nothing is opened."""

    uid: str
    stamp: str
    offsets: Mapping[str, int]  # journal file -> bytes read
    sampled: Mapping[str, int] | None  # the same of the telemetry; None: that was read after the run's end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How run directories are read this time."""

    roots: Sequence[Path] = ()  # of two copies of a run the one in the earlier counts
    batch_bytes: int = _BATCH_BYTES
    is_anew: bool = False  # from the beginning, whatever the store has


def ingest_run(store: Store, run_dir: RunDir, *, batch_bytes: int = _BATCH_BYTES) -> IngestReport:
    """Bring one run up to date; an unreadable directory raises `HpcmlError`."""
    with store.reading() as connection:
        known = _known_runs(connection, RUN.c.path == _path(run_dir)).get(_path(run_dir))
    problems: list[str] = []
    if not _has_news(run_dir, known, problems):
        return IngestReport(runs=1, problems=tuple(problems))
    with store.writing() as connection:
        return _ingest(connection, run_dir, _Reading(batch_bytes=batch_bytes))


def ingest_all(store: Store, *roots: Path, batch_bytes: int = _BATCH_BYTES, is_anew: bool = False) -> IngestReport:
    """Bring all runs below *roots* up to date; an unreadable directory becomes a line of the report.

    *is_anew* reads all from the beginning, as if the store had nothing of them. Where nothing is new, nothing is
    written.
    """
    reading = _Reading(roots=[root.absolute() for root in roots], batch_bytes=batch_bytes, is_anew=is_anew)
    with store.reading() as connection:
        known = _known_runs(connection, is_below(*reading.roots))
    problems: list[str] = []
    runs, changed = 0, []
    for run_dir in _each_once(roots):
        try:
            if is_anew or _has_news(run_dir, known.get(_path(run_dir)), problems):
                changed.append(run_dir)
            else:
                runs += 1
        except HpcmlError as error:
            problems.append(str(error))
    report = IngestReport(runs=runs, problems=tuple(problems))
    if not changed:
        return report
    with store.writing() as connection:
        for run_dir in changed:
            try:
                report += _ingest(connection, run_dir, reading)
            except StoreError:
                raise  # what ails the store itself would befall all other runs, too
            except HpcmlError as error:
                report += IngestReport(problems=(str(error),))
    return report


def _each_once(roots: Sequence[Path]) -> Iterator[RunDir]:
    seen: set[str] = set()
    for root in roots:
        for run_dir in find_run_dirs(root):
            if (path := str(run_dir.path)) not in seen:
                seen.add(path)
                yield run_dir


def _has_news(run_dir: RunDir, known: _Known | None, problems: list[str]) -> bool:
    """Tell whether there is anything to write, without writing; what is left out is added to *problems*."""
    if known is None or known.stamp != manifest_stamp(run_dir):
        return True
    if _has_more(run_dir.journals, known.uid, known.offsets, problems):
        return True
    return known.sampled is not None and _has_more(run_dir.telemetry, known.uid, known.sampled, problems)


def _has_more(folder: Path, uid: str, offsets: Mapping[str, int], problems: list[str]) -> bool:
    """Tell whether the files of *folder* differ from what was read of them, down to *offsets*."""
    sizes = sizes_in(str(folder))
    if offsets == sizes:
        return False
    if any(sizes.get(file, -1) < offset for file, offset in offsets.items()):
        return True
    for file, size in sizes.items():
        offset = offsets.get(file, 0)
        if size > offset and b"\n" in read_stretch(folder / file, offset, 1):
            if file in offsets:
                return True
            problem = find_header(folder / file, uid)
            if not isinstance(problem, str):
                return True
            problems.append(problem)
    return False


def _ingest(connection: Connection, run_dir: RunDir, reading: _Reading) -> IngestReport:
    described = describe(run_dir)
    report, is_complete, is_anew = IngestReport(runs=1), False, reading.is_anew
    while not is_complete:
        with connection.begin():
            hold_run(connection, described.uid)
            check_home(connection, described.uid, run_dir.path.absolute())
            is_anew |= _take_over(connection, run_dir, described, reading.roots)
            if is_anew:
                connection.execute(update(RUN).where(RUN.c.uid == described.uid).values(manifest_stamp=""))
            batch, is_complete = _ingest_batch(connection, run_dir, described, reading.batch_bytes, is_anew=is_anew)
            if is_complete:  # last, so that of a run that has ended all is there that its samplers wrote
                problems, is_complete = samples.read_in(connection, run_dir, described, budget=reading.batch_bytes)
                batch += IngestReport(problems=tuple(problems))
        report, is_anew = report + batch, False
    return replace(report, problems=tuple(dict.fromkeys(report.problems)))  # each batch met them again


def _take_over(connection: Connection, run_dir: RunDir, described: Description, roots: Sequence[Path]) -> bool:
    before = connection.execute(select(RUN.c.path).where(RUN.c.uid == described.uid)).scalar_one_or_none()
    return before is not None and takes_over(run_dir.path.absolute(), Path(before), described.uid, roots)


def _ingest_batch(
    connection: Connection, run_dir: RunDir, described: Description, budget: int, *, is_anew: bool
) -> tuple[IngestReport, bool]:
    """Read a bounded stretch; return what it held, and whether nothing is left."""
    run_id, has_news = rows.ensure_run(connection, described)
    cursors, sizes = cursor_rows.read_cursors(connection, run_id), sizes_in(str(run_dir.journals))
    read = {file: (cursor.byte_offset, cursor.uid) for file, cursor in cursors.items()}
    if is_anew or is_replaced(run_dir.journals, described.uid, read, sizes):
        rows.forget_journals(connection, run_id)
        cursors, has_news = {}, True
    without = without_summary(connection, run_id)
    report, touched, is_complete, is_any_added = IngestReport(), Touched(), True, False
    for file, size in sizes.items():
        cursor = cursors.get(file)
        offset = cursor.byte_offset if cursor else 0
        if size <= offset:
            continue
        if budget <= 0:
            is_complete = False
            break
        data = read_stretch(run_dir.journals / file, offset, budget)
        if b"\n" not in data:
            continue  # no line is complete yet
        if cursor is None:
            header = find_header(run_dir.journals / file, described.uid)
            if isinstance(header, str):
                report += IngestReport(problems=(header,))
                continue
            cursor, is_any_added = cursor_rows.add_journal(connection, run_id, file, header), True
        chunk = parse_chunk(data, offset=offset, journal=cursor.uid)
        stretch = take_in(chunk.records, t0=cursor.t0, epoch_ms=described.epoch_ms)
        touched.add(stretch.points, rows.write_stretch(connection, run_id, cursor, stretch))
        report += _move_on(connection, cursor, chunk, stretch)
        has_news = has_news or bool(stretch.events)
        budget -= chunk.end - offset
        is_complete = is_complete and offset + len(data) >= size
    if is_any_added:
        cursor_rows.rank_journals(connection, run_id)
    write_summaries(connection, run_id, touched, without=without, is_complete=is_complete)
    if has_news or is_any_added:
        rows.refold(connection, run_id, described)
    return report, is_complete


def _move_on(connection: Connection, cursor: cursor_rows.Cursor, chunk: Chunk, stretch: Stretch) -> IngestReport:
    bad_lines = chunk.bad_lines + stretch.bad_lines
    lost = cursor_rows.move_cursor(connection, cursor, to=chunk.end, stretch=stretch, bad_lines=bad_lines)
    new_points = sum(map(len, stretch.points.values()))
    return IngestReport(new_points=new_points, bad_lines=bad_lines, lost_records=lost)


def _known_runs(connection: Connection, which: ColumnElement[bool]) -> dict[str, _Known]:
    columns = (RUN.c.path, RUN.c.uid, RUN.c.manifest_stamp, RUN.c.is_sampled, JOURNAL.c.file, JOURNAL.c.byte_offset)
    query = select(*columns).outerjoin(JOURNAL, JOURNAL.c.run_id == RUN.c.id)
    sampled = samples.offsets(connection, which)
    known: dict[str, _Known] = {}
    offsets: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for at, uid, stamp, is_sampled, file, byte_offset in connection.execute(query.where(which)):
        if at not in known:
            of_samplers = None if is_sampled else sampled.get(at, {})
            known[at] = _Known(uid=uid, stamp=stamp, offsets=offsets[at], sampled=of_samplers)
        if file is not None:
            offsets[at][file] = byte_offset
    return known


def _path(run_dir: RunDir) -> str:
    return storable(os.path.abspath(run_dir.path))  # noqa: PTH100 - the same, in a fifth of the time
