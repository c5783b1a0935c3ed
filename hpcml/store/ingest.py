"""Run directories read into the store; only what is new, safe to repeat, kill and run in parallel.

For each journal the store keeps how many bytes were read (a cursor); rows and cursor change in one transaction. Where
several directories claim to be the same run, `takes_over` decides which is read, always the same one. Summaries of
curves are extended where new points lie behind the old ones, else computed anew (`write_summaries`).

What there is to read `hpcml.store.news` finds out, before every answer. Runs that are new to the store are read
together (`hpcml.store.first_reading`), all others one by one here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sqlalchemy import Connection, delete, func, insert, select, update

from hpcml.errors import HpcmlError, StoreError
from hpcml.runs.journal import Chunk, parse_piece, read_piece, unread
from hpcml.runs.layout import RunDir, is_run
from hpcml.store import journal_rows as cursor_rows
from hpcml.store import parse, rows, telemetry_rows
from hpcml.store.curves import EMPTY, Columns, Precedence, Tally, extend, merge
from hpcml.store.database import Database
from hpcml.store.first_reading import read_first
from hpcml.store.journals import find_header, is_replaced, sizes_in
from hpcml.store.later_reading import read_later
from hpcml.store.loading import load_points
from hpcml.store.manifest_rows import Description, describe
from hpcml.store.news import IngestReport, News, find_news, is_unchanged
from hpcml.store.origin import home_mark_of
from hpcml.store.parse import Stretch, storable, take_in
from hpcml.store.pieces import among, chunked
from hpcml.store.reading import OverSqlalchemy
from hpcml.store.schema import JOURNAL, METRIC, RUN, SERIES, SUMMARY
from hpcml.store.server_locks import hold_run, is_server

# Why a run.json cannot be opened, where that is the file's own state and will be the same the next time.
_UNREADABLE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.EACCES, errno.EPERM}
_BATCH_BYTES = 8 << 20  # of journals in one transaction: about a second during which nobody else can write


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The options of one ingest."""

    roots: Sequence[Path] = ()  # of two copies of a run the one in the earlier counts
    batch_bytes: int = _BATCH_BYTES
    is_anew: bool = False  # from the beginning, whatever the store has


def ingest_run(store: Database, run_dir: RunDir, *, batch_bytes: int = _BATCH_BYTES) -> IngestReport:
    """Bring one run up to date; raises `HpcmlError` for an unreadable directory.

    *batch_bytes* of journals are read in one transaction: it bounds for how long nobody else can write. A run without
    news costs no write, and the report then counts it with zeros. Whatever a killed or failed call had read in whole
    transactions stays; the next call goes on behind it.

    Raises `HpcmlError` where run.json is absent or damaged, or where another directory of the same run counts
    (`takes_over`), and `StoreError` where the store fails or may only be read.
    """
    if (report := is_unchanged(store, run_dir)) is not None:
        return report
    with store.writing() as connection:
        return _ingest(connection, run_dir, describe(run_dir), _Reading(batch_bytes=batch_bytes))


def ingest_runs(store: Database, run_dirs: Sequence[RunDir]) -> IngestReport:
    """Bring these runs up to date, of each of which there is news; one that cannot be read becomes a problem.

    As `ingest_run` of each, and with one connection for all. Raises `StoreError` where the store itself fails.
    """
    with store.writing() as connection:
        later = read_later(connection, run_dirs)
        return later.report + _report_of(connection, later.left, _Reading())


def ingest_all(store: Database, *roots: Path, batch_bytes: int = _BATCH_BYTES, is_anew: bool = False) -> IngestReport:
    """Bring all runs below *roots* up to date; an unreadable directory becomes a line of `IngestReport.problems`.

    *is_anew* reads all from the beginning, as if the store had nothing of them. Where nothing is new, nothing is
    written. Raises `StoreError` where the store itself fails. A run that lies below several of *roots* is read once.
    The order of *roots* matters for copies of a run alone: the one below the earlier root counts.

    >>> report = ingest_all(store, places.runs)  # doctest: +SKIP
    >>> report.runs, report.new_points, report.problems  # doctest: +SKIP
    (12, 48000, ())
    """
    return read_news(store, find_news(store, *roots, is_anew=is_anew), *roots, batch_bytes=batch_bytes, is_anew=is_anew)


def read_news(
    store: Database, news: News, *roots: Path, batch_bytes: int = _BATCH_BYTES, is_anew: bool = False
) -> IngestReport:
    """Read what `find_news` found below *roots*, and return the report of all that it looked at."""
    report = news.report
    if not news.changed:
        return report
    reading = _Reading(roots=[root.absolute() for root in roots], batch_bytes=batch_bytes, is_anew=is_anew)
    with store.writing() as connection:
        left: Sequence[RunDir] = news.changed
        if not is_anew:
            first = read_first(connection, left, batch_bytes=batch_bytes)
            report, left = report + first.report, first.left
            later = read_later(connection, left)
            report, left = report + later.report, later.left
        report += _report_of(connection, left, reading)
        _forget_former(connection, news.changed)
        return report


def _forget_former(connection: Connection, run_dirs: Sequence[RunDir]) -> None:
    """Forget the runs that *run_dirs* were before their run.json said that they are other ones."""
    dirs = {storable(str(run_dir.path.absolute())): run_dir for run_dir in run_dirs}
    former: list[str] = []
    with connection.begin():
        twice = [
            path
            for chunk in among(RUN.c.path, list(dirs))
            for path in connection.execute(
                select(RUN.c.path).where(chunk).group_by(RUN.c.path, RUN.c.home).having(func.count() > 1)
            ).scalars()
        ]
    for path in twice:
        with suppress(HpcmlError):
            uid = describe(dirs[path]).uid
            former += [known for known in rows.uids_in(connection, dirs[path].path.absolute()) if known != uid]
    for uid in former:
        rows.forget_rows(connection, uid)
    if former:
        rows.forget_names(connection)


def _report_of(connection: Connection, run_dirs: Sequence[RunDir], reading: _Reading) -> IngestReport:
    report = IngestReport()
    for run_dir in run_dirs:
        report += _report_of_one(connection, run_dir, reading)
    return report


def _report_of_one(connection: Connection, run_dir: RunDir, reading: _Reading) -> IngestReport:
    try:
        described = describe(run_dir)
        sizes_in(str(run_dir.journals))
    except HpcmlError as error:
        if not os.path.lexists(run_dir.path):  # it was listed a moment ago: somebody removes it
            return IngestReport()
        return IngestReport(problems=(_drop(connection, run_dir, error),))
    try:
        return _ingest(connection, run_dir, described, reading)
    except StoreError:
        raise  # what ails the store itself would befall all other runs, too
    except HpcmlError as error:
        return IngestReport(problems=(str(error),))


def _drop(connection: Connection, run_dir: RunDir, error: HpcmlError) -> str:
    """Forget the run that cannot be read any more, so that a store made anew says the same; return what to say.

    It stays where the file system gave no answer, which may come again, and where the directory itself is gone.
    """
    known = rows.uids_in(connection, run_dir.path.absolute())
    cause = error.__cause__
    says_nothing = isinstance(cause, OSError) and cause.errno not in _UNREADABLE
    if not known or not is_run(str(run_dir.path)):
        return str(error)
    if says_nothing or (is_server(connection) and isinstance(cause, PermissionError)):  # to others it may be readable
        return f"{error}; what was read of it before stands"
    for uid in known:
        rows.forget_rows(connection, uid)
    rows.forget_names(connection)
    return str(error)


def _ingest(connection: Connection, run_dir: RunDir, described: Description, reading: _Reading) -> IngestReport:
    report, is_complete, is_anew = IngestReport(runs=1), False, reading.is_anew
    while not is_complete:
        with connection.begin():
            hold_run(connection, described.uid)
            _check_home(connection, described.uid, run_dir.path.absolute())
            is_anew |= _take_over(connection, run_dir, described, reading.roots)
            if is_anew:
                connection.execute(update(RUN).where(RUN.c.uid == described.uid).values(manifest_stamp=""))
            batch, is_complete = _ingest_batch(connection, run_dir, described, reading.batch_bytes, is_anew=is_anew)
            if is_complete:  # last, so that of a run that has ended all is there that its samplers wrote
                problems, is_complete = telemetry_rows.read_in(
                    connection, run_dir, described, budget=reading.batch_bytes
                )
                batch += IngestReport(problems=tuple(problems))
        report, is_anew = report + batch, False
    return replace(report, problems=tuple(dict.fromkeys(report.problems)))  # each batch met them again


def _check_home(connection: Connection, uid: str, run_dir: Path) -> None:
    """Raise `HpcmlError` where run *uid* is known from a folder that is not visible here: *run_dir* is then a copy.

    A store in a file belongs to one user, who may have moved everything without the marks: there nothing is checked. On
    a server it is called in the transaction that is about to write the run. Nothing is raised for a run that the store
    does not have yet, nor for one without a recorded home.
    """
    if not is_server(connection):
        return
    known = connection.execute(select(RUN.c.path, RUN.c.home).where(RUN.c.uid == uid)).one_or_none()
    if known is None or known.home is None or home_mark_of(run_dir) == known.home:
        return
    if home_mark_of(Path(known.path)) != known.home:
        raise HpcmlError(
            f"{run_dir}: run {uid} is in the store already, from {known.path} of another home, which counts: remove "
            f"the copy (if that home is gone for good: hpcml rm --forget {uid})"
        )


def _take_over(connection: Connection, run_dir: RunDir, described: Description, roots: Sequence[Path]) -> bool:
    before = connection.execute(select(RUN.c.path).where(RUN.c.uid == described.uid)).scalar_one_or_none()
    return before is not None and takes_over(run_dir.path.absolute(), Path(before), described.uid, roots)


def _ingest_batch(
    connection: Connection, run_dir: RunDir, described: Description, budget: int, *, is_anew: bool
) -> tuple[IngestReport, bool]:
    """Read up to *budget* bytes; return what they held, and whether nothing is left.

    The second value is False while lines are left, also where they came during the call. *is_anew* forgets first what
    was read before.
    """
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
        piece = read_piece(run_dir.journals / file, offset, budget)
        if not piece.is_news:  # no line is complete yet
            report += IngestReport(problems=tuple(filter(None, [unread(run_dir.journals / file, piece)])))
            continue
        if cursor is None:
            header = find_header(run_dir.journals / file, described.uid)
            if isinstance(header, str):
                report += IngestReport(problems=(header,))
                continue
            cursor, is_any_added = cursor_rows.add_journal(connection, run_id, file, header), True
        chunk = parse_piece(piece, offset=offset, journal=cursor.uid, quickly=parse.quickly)
        stretch = take_in(chunk.records, t0=cursor.t0, epoch_ms=described.epoch_ms)
        touched.add(stretch.points, rows.write_stretch(connection, run_id, cursor, stretch))
        report += _move_on(connection, cursor, chunk, stretch)
        has_news = has_news or bool(stretch.events)
        budget -= chunk.end - offset
        is_complete = is_complete and piece.at + len(piece.data) >= size
    if is_any_added:
        cursor_rows.rank_journals(connection, run_id)
    write_summaries(connection, run_id, touched, without=without, is_complete=is_complete)
    if has_news or is_any_added:
        rows.refold(connection, run_id, described)
    return report, is_complete


def _move_on(connection: Connection, cursor: cursor_rows.Cursor, chunk: Chunk, stretch: Stretch) -> IngestReport:
    bad_lines = chunk.bad_lines + stretch.bad_lines
    lost = cursor_rows.move_cursor(connection, cursor, to=chunk.end, stretch=stretch, bad_lines=bad_lines)
    return IngestReport(new_points=stretch.n_points, bad_lines=bad_lines, lost_records=lost)


def takes_over(now: Path, before: Path, uid: str, roots: Sequence[Path]) -> bool:
    """Whether run *uid*, stored from directory *before*, is to be read anew from its other directory *now*.

    Of two that exist the one below the earlier of *roots* counts, then the one that is named by the uid, then the
    older. Raises `HpcmlError` where *now* is the one that does not count. False where the directory merely moved.
    *before* counts as gone only where its run.json is not there; one that this user may not look at still exists. Both
    paths are absolute.
    """
    if now == before or not _exists(before / "run.json") or before.samefile(now):
        return False
    if _standing(now, uid, roots) < _standing(before, uid, roots):
        return True
    raise HpcmlError(f"{now} and {before} both say that they are run {uid}, and the latter counts: remove the copy")


def _standing(path: Path, uid: str, roots: Sequence[Path]) -> tuple[int, bool, int, str]:
    root = next((at for at, root in enumerate(roots) if path.is_relative_to(root)), len(roots))
    written_ns = (path / "run.json").stat().st_mtime_ns
    return (root, path.name != uid, written_ns, str(path))


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # not for us to see, which is no proof that it is gone
    return True


class Touched(dict[str, dict[int, Columns]]):
    """The new points of a transaction: metric -> series id -> points.

    `write_summaries` takes it, to see which summaries need a new look.
    """

    def add(self, points: Mapping[str, Columns], series_ids: Mapping[str, int]) -> None:
        """Add the points that one journal brought; *series_ids* by metric."""
        for name, of_metric in points.items():
            self.setdefault(name, {})[series_ids[name]] = of_metric


def without_summary(connection: Connection, run_id: int) -> set[str]:
    """Return the metrics of the run that have points and no summary: an ingest before was killed.

    Their summaries are then made from the whole curve.
    """
    summary = (SUMMARY.c.run_id == SERIES.c.run_id) & (SUMMARY.c.metric_id == SERIES.c.metric_id)
    query = (
        select(METRIC.c.name)
        .join(SERIES, SERIES.c.metric_id == METRIC.c.id)
        .outerjoin(SUMMARY, summary)
        .where(SERIES.c.run_id == run_id, SUMMARY.c.run_id.is_(None))
    )
    return set(connection.execute(query).scalars())


def write_summaries(
    connection: Connection, run_id: int, touched: Touched, *, without: Collection[str], is_complete: bool
) -> None:
    """Bring the summaries of the *touched* metrics up to date, and of those in *without*, which have none.

    A summary that cannot be extended is made anew from the whole curve, but only once everything is read
    (*is_complete*); until then it is absent. Else a long run of many writers would be summed up for each batch of it.
    """
    names = {*touched, *without} if is_complete else set(touched)
    if not names:
        return
    ids, tallies = _ids(connection, run_id), _tallies(connection, run_id)
    latest = _of_latest_attempt(connection, run_id)
    rows = []
    for name in sorted(names):
        new = None
        if name not in without and touched.get(name, {}).keys() <= latest:
            new = _continuation(tallies.get(name, EMPTY), touched.get(name, {}))
        if new is not None:
            tally = tallies.get(name, EMPTY)
        elif is_complete:
            tally, new = EMPTY, _read_curve(connection, run_id, ids[name])
        else:
            continue
        tally = extend(tally, new.steps, new.values)
        rows.append({"run_id": run_id, "metric_id": ids[name], **asdict(tally)})
    for chunk in chunked([ids[name] for name in names]):
        connection.execute(delete(SUMMARY).where(SUMMARY.c.run_id == run_id, SUMMARY.c.metric_id.in_(chunk)))
    if rows:
        connection.execute(insert(SUMMARY), rows)


def _continuation(tally: Tally, by_series: Mapping[int, Columns]) -> Columns | None:
    """Return the new points if one series has them all and they lie behind the *tally*; else None."""
    if len(by_series) != 1:
        return None
    (new,) = by_series.values()
    return new if tally.last_step is None or new.steps[0] > tally.last_step else None


def _of_latest_attempt(connection: Connection, run_id: int) -> set[int]:
    """Return the series of the latest attempt that has a journal: of one before, new points may not count."""
    attempts = (
        select(SERIES.c.id, JOURNAL.c.attempt)
        .join(JOURNAL, JOURNAL.c.id == SERIES.c.journal_id)
        .where(SERIES.c.run_id == run_id)
    )
    known = [(int(at), int(attempt)) for at, attempt in connection.execute(attempts)]
    latest = max((attempt for _, attempt in known), default=None)
    return {at for at, attempt in known if attempt == latest}


def _ids(connection: Connection, run_id: int) -> dict[str, int]:
    query = select(METRIC.c.name, METRIC.c.id).join(SERIES, SERIES.c.metric_id == METRIC.c.id)
    return {row.name: int(row.id) for row in connection.execute(query.where(SERIES.c.run_id == run_id).distinct())}


def _tallies(connection: Connection, run_id: int) -> dict[str, Tally]:
    columns = [column for column in SUMMARY.c if column.name not in ("run_id", "metric_id")]
    query = select(METRIC.c.name, *columns).join(SUMMARY, SUMMARY.c.metric_id == METRIC.c.id)
    return {
        name: Tally(**{column.name: number for column, number in zip(columns, numbers, strict=True)})
        for name, *numbers in connection.execute(query.where(SUMMARY.c.run_id == run_id))
    }


def _read_curve(connection: Connection, run_id: int, metric_id: int) -> Columns:
    query = (
        select(SERIES.c.id, JOURNAL.c.attempt, JOURNAL.c.writer, JOURNAL.c.t0, JOURNAL.c.file)
        .join(JOURNAL, JOURNAL.c.id == SERIES.c.journal_id)
        .where(SERIES.c.run_id == run_id, SERIES.c.metric_id == metric_id)
    )
    series = connection.execute(query).all()
    points = load_points(OverSqlalchemy(connection), [row.id for row in series])
    return merge(
        [
            (Precedence.of(attempt=attempt, writer=writer, t0=t0, file=file), points.get(series_id, Columns()))
            for series_id, attempt, writer, t0, file in series
        ]
    )
