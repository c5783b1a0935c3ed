"""Run directories into the store: as often as one likes, by as many as like, killed at any point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection, select

from hpcml.errors import HpcmlError
from hpcml.journal import Header, parse_chunk
from hpcml.rundir import RunDir, find_run_dirs
from hpcml.store import rows
from hpcml.store.describing import Description, describe, manifest_stamp
from hpcml.store.engine import Store
from hpcml.store.intake import is_usable, storable, take_in
from hpcml.store.tables import JOURNAL, RUN

_BATCH_BYTES = 8 << 20  # of journals in one transaction: about a second during which nobody else can write


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What an ingest found. `new_points` and `bad_lines` count what this one read, not what others had read before."""

    runs: int = 0  # looked at and now in the store as their directories say
    new_points: int = 0
    bad_lines: int = 0
    problems: tuple[str, ...] = ()  # one line for each run or journal that was left out

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(
            runs=self.runs + other.runs,
            new_points=self.new_points + other.new_points,
            bad_lines=self.bad_lines + other.bad_lines,
            problems=self.problems + other.problems,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the store has of a run directory; where this equals what is there, nothing is opened."""

    stamp: str
    offsets: Mapping[str, int]  # journal file -> bytes read


def ingest_run(store: Store, run_dir: RunDir, *, batch_bytes: int = _BATCH_BYTES) -> IngestReport:
    """Bring one run up to date; an unreadable directory raises `HpcmlError`."""
    with store.reading() as connection:
        known = _known_runs(connection, path=_path(run_dir))
    with store.writing() as connection:
        return _ingest(connection, run_dir, known.get(_path(run_dir)), batch_bytes)


def ingest_all(store: Store, root: Path, *, batch_bytes: int = _BATCH_BYTES) -> IngestReport:
    """Bring all runs below *root* up to date; an unreadable directory becomes a line of the report."""
    with store.reading() as connection:
        known = _known_runs(connection)
    report = IngestReport()
    with store.writing() as connection:
        for run_dir in find_run_dirs(root):
            try:
                report += _ingest(connection, run_dir, known.get(_path(run_dir)), batch_bytes)
            except HpcmlError as error:  # not what ails the store itself: that would befall all other runs, too
                report += IngestReport(problems=(str(error),))
    return report


def _ingest(connection: Connection, run_dir: RunDir, known: _Known | None, batch_bytes: int) -> IngestReport:
    if known is not None and known == _Known(stamp=manifest_stamp(run_dir), offsets=_sizes(run_dir)):
        return IngestReport(runs=1)
    described = describe(run_dir)
    report, is_complete = IngestReport(runs=1), False
    while not is_complete:
        with connection.begin():
            batch, is_complete = _ingest_batch(connection, run_dir, described, batch_bytes)
        report += batch
    return replace(report, problems=tuple(dict.fromkeys(report.problems)))  # each batch met them again


def _ingest_batch(
    connection: Connection, run_dir: RunDir, described: Description, budget: int
) -> tuple[IngestReport, bool]:
    """Read a bounded stretch; return what it held, and whether nothing is left."""
    run_id, has_news = rows.ensure_run(connection, described)
    cursors, sizes = rows.read_cursors(connection, run_id), _sizes(run_dir)
    if _is_replaced(run_dir, cursors, sizes):
        rows.forget_journals(connection, run_id)
        cursors, has_news = {}, True
    report, touched, is_complete = IngestReport(), rows.Touched(), True
    for file, size in sizes.items():
        cursor = cursors.get(file)
        offset = cursor.byte_offset if cursor else 0
        if size <= offset:
            continue
        if budget <= 0:
            is_complete = False
            break
        data = _read(run_dir.journals / file, offset, budget)
        chunk = parse_chunk(data, offset=offset)
        if chunk.end == offset:
            continue  # no line is complete yet
        if cursor is None:
            problem = _problem(chunk.header, described.uid)
            if problem is not None or chunk.header is None:
                report += IngestReport(problems=(f"{run_dir.journals / file} {problem}: left out",))
                continue
            cursor, has_news = rows.add_journal(connection, run_id, file, chunk.header), True
        stretch = take_in(chunk.records, t0=cursor.t0, epoch_ms=described.epoch_ms)
        bad_lines = chunk.bad_lines + stretch.bad_lines
        touched.add(stretch.points, rows.write_stretch(connection, run_id, cursor, stretch))
        rows.move_cursor(connection, cursor, to=chunk.end, events=len(stretch.events), bad_lines=bad_lines)
        has_news = has_news or bool(stretch.events)
        report += IngestReport(new_points=sum(map(len, stretch.points.values())), bad_lines=bad_lines)
        budget -= chunk.end - offset
        is_complete = is_complete and offset + len(data) >= size
    rows.write_summaries(connection, run_id, touched)
    if has_news:
        rows.refold(connection, run_id, described.epoch_ms)
    return report, is_complete


def _known_runs(connection: Connection, *, path: str | None = None) -> dict[str, _Known]:
    query = select(RUN.c.path, RUN.c.manifest_stamp, JOURNAL.c.file, JOURNAL.c.byte_offset).outerjoin(
        JOURNAL, JOURNAL.c.run_id == RUN.c.id
    )
    known: dict[str, tuple[str, dict[str, int]]] = {}
    for at, stamp, file, byte_offset in connection.execute(query if path is None else query.where(RUN.c.path == path)):
        offsets = known.setdefault(at, (stamp, {}))[1]
        if file is not None:
            offsets[file] = byte_offset
    return {at: _Known(stamp=stamp, offsets=offsets) for at, (stamp, offsets) in known.items()}


def _path(run_dir: RunDir) -> str:
    return storable(str(run_dir.path.absolute()))


def _sizes(run_dir: RunDir) -> dict[str, int]:
    try:
        return {path.name: path.stat().st_size for path in run_dir.journal_files()}
    except OSError as error:
        raise HpcmlError(f"{run_dir.journals} cannot be read: {error.strerror}") from error


def _is_replaced(run_dir: RunDir, cursors: Mapping[str, rows.Cursor], sizes: Mapping[str, int]) -> bool:
    """Whether a journal that was read is gone, has become shorter, or is another file of the same name."""
    for file, cursor in cursors.items():
        size = sizes.get(file, -1)
        if size < cursor.byte_offset:
            return True
        if size > cursor.byte_offset:
            head = _read(run_dir.journals / file, 0, 1)
            header = parse_chunk(head[: head.find(b"\n") + 1], offset=0).header
            if header is None or storable(header.journal) != cursor.uid:
                return True
    return False


def _problem(header: Header | None, uid: str) -> str | None:
    if header is None or not is_usable(header):
        return "begins with no header that this hpcml can read"
    return None if header.run == uid else f"belongs to run {header.run}"


def _read(path: Path, offset: int, limit: int) -> bytes:
    """Return up to *limit* bytes, or as many more as it takes to reach the end of a line."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(limit)
            while b"\n" not in data and (more := file.read(max(limit, 1 << 16))):
                data += more
            return data
    except OSError as error:
        raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error
