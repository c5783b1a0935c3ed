"""Run directories read into the store: only those that changed, safe to repeat, kill and run in parallel.

A run is read outside of any transaction, then some hundred are written in one. Whatever kills the process leaves whole
runs; what others have written meanwhile of the same runs is as right as what is written here, and the next ingest reads
on from either. Where several directories claim to be the same run, `takes_over` decides which is read, always the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import bindparam, select, update

from hpcml.errors import HpcmlError
from hpcml.runs.layout import RunDir, is_run
from hpcml.store.database import Database, chunked
from hpcml.store.news import IngestReport, News, find_news, key_of
from hpcml.store.origin import home_mark_of
from hpcml.store.rows import earlier_of, forget_path, known_runs, write_runs
from hpcml.store.run_reader import RunRows, StoredRun, read_growth, read_run
from hpcml.store.schema import RUN

# Why a run.json cannot be opened, where that is the file's own state and will be the same the next time.
_UNREADABLE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.EACCES, errno.EPERM}
_TOGETHER = 200  # runs in one transaction: about a second during which nobody else can write
_POINTS_TOGETHER = 200_000

Tell = Callable[[int], None]  # how many runs were read


def ingest_run(store: Database, run_dir: RunDir) -> IngestReport:
    """Bring one run up to date; raises `HpcmlError` for an unreadable directory, and for a copy that does not count."""
    work = _Work(store=store, is_strict=True)
    return work.read([run_dir])


def ingest_runs(store: Database, run_dirs: Sequence[RunDir]) -> IngestReport:
    """Bring these runs up to date; one that cannot be read becomes a problem."""
    return _Work(store=store).read(run_dirs)


def ingest_all(store: Database, *roots: Path, is_anew: bool = False) -> IngestReport:
    """Bring all runs below *roots* up to date; an unreadable directory becomes a line of `IngestReport.problems`.

    *is_anew* reads all from the beginning, as if the store had nothing of them. Where nothing is new, nothing is
    written. Raises `StoreError` where the store itself fails. A run that lies below several of *roots* is read once.
    The order of *roots* matters for copies of a run alone: the one below the earlier root counts.

    >>> report = ingest_all(store, places.runs)  # doctest: +SKIP
    >>> report.runs, report.new_points, report.problems  # doctest: +SKIP
    (12, 48000, ())
    """
    return read_news(store, find_news(store, *roots, is_anew=is_anew), *roots, is_anew=is_anew)


def read_news(
    store: Database, news: News, *roots: Path, is_anew: bool = False, tell: Tell | None = None
) -> IngestReport:
    """Read what `find_news` found below *roots*, and return the report of all that it looked at."""
    if news.closable and news.is_any:
        with store.writing() as connection:
            close = update(RUN).where(RUN.c.path == bindparam("at"), RUN.c.closed_ns.is_(None))
            values = [{"at": path, "ns": changed} for path, changed in news.closable.items()]
            connection.execute(close.values(closed_ns=bindparam("ns")), values)
    if not news.changed:
        return news.report
    work = _Work(store=store, roots=[root.absolute() for root in roots], is_anew=is_anew, tell=tell)
    return news.report + work.read(news.changed)


@dataclass(slots=True, kw_only=True)
class _Work:
    """An ingest of some run directories."""

    store: Database
    roots: Sequence[Path] = ()  # of two copies of a run the one in the earlier counts
    is_anew: bool = False
    is_strict: bool = False  # the first error is raised
    tell: Tell | None = None
    _homes: dict[Path, str | None] = field(default_factory=dict)
    _rows: list[RunRows] = field(default_factory=list)
    _report: IngestReport = field(default_factory=IngestReport)

    def read(self, run_dirs: Sequence[RunDir]) -> IngestReport:
        done = 0
        for chunk in chunked(run_dirs, _TOGETHER):
            known = {} if self.is_anew else self._known_at([key_of(str(run_dir.path)) for run_dir in chunk])
            for run_dir in chunk:
                self._take(run_dir, known.get(key_of(str(run_dir.path))))
                if sum(one.n_points for one in self._rows) > _POINTS_TOGETHER:
                    self._write()
            self._write()
            done += len(chunk)
            if self.tell is not None:
                self.tell(done)
        return self._report

    def _known_at(self, paths: Sequence[str]) -> dict[str, StoredRun]:
        """Return by path the runs that were read from it and may have grown."""
        with self.store.reading() as connection:
            uids = [
                uid
                for chunk in chunked(paths)
                for uid in connection.execute(select(RUN.c.uid).where(RUN.c.path.in_(chunk))).scalars()
            ]
            return {known.path: known for known in known_runs(connection, uids).values()}

    def _take(self, run_dir: RunDir, known: StoredRun | None) -> None:
        try:
            self._rows.append(self._read_one(run_dir, known))
        except HpcmlError as error:
            if self.is_strict:
                raise
            self._drop(run_dir, error)

    def _read_one(self, run_dir: RunDir, known: StoredRun | None) -> RunRows:
        if known is not None:
            with self.store.reading() as connection:
                earlier = earlier_of(connection, known)
            if (grown := read_growth(run_dir, self._homes, known, earlier)) is not None:
                return grown
        return read_run(run_dir, self._homes)

    def _write(self) -> None:
        """Write what was read; a run that others have written meanwhile is read again, and whole."""
        while self._rows:
            rows, self._rows = self._rows, []
            with self.store.writing() as connection:
                known = known_runs(connection, [one.uid for one in rows], to_write=True)
                stale: list[RunRows] = []
                good: dict[str, RunRows] = {}
                for one in rows:
                    if one.grows is not None and known.get(one.uid) != one.grows:
                        stale.append(one)
                    elif self._counts(one, known.get(one.uid), good):
                        good[one.uid] = one
                write_runs(connection, list(good.values()))
            for one in good.values():
                self._report += _report_of(one, None if self.is_anew else known.get(one.uid))
            for one in stale:
                self._take(RunDir(Path(one.run["path"])), None)

    def _counts(self, one: RunRows, before: StoredRun | None, good: Mapping[str, RunRows]) -> bool:
        """Whether *one* counts, and not another directory of the same run, which is known *before* or *good* so far."""
        now, home = Path(one.run["path"]), one.run["home"]
        try:
            if before is not None and self.store.is_shared:
                _check_home(one.uid, home, before, now)
            other = good[one.uid].run["path"] if one.uid in good else before.path if before is not None else None
            if other is not None:
                takes_over(now, Path(other), one.uid, self.roots)
        except HpcmlError as error:
            if self.is_strict:
                raise
            self._report += IngestReport(problems=(str(error),))
            return False
        return True

    def _drop(self, run_dir: RunDir, error: HpcmlError) -> None:
        """Forget the run that cannot be read any more, so that a store made anew says the same, and say so.

        It stays where the file system gave no answer, which may come again, and where the directory itself is gone.
        """
        if not os.path.lexists(run_dir.path):  # it was listed a moment ago: somebody removes it
            return
        cause = error.__cause__
        says_nothing = isinstance(cause, OSError) and cause.errno not in _UNREADABLE
        path, told = key_of(str(run_dir.path)), str(error)
        if is_run(str(run_dir.path)) and self._known_at([path]):
            may_be_seen = self.store.is_shared and isinstance(cause, PermissionError)  # by others
            if says_nothing or may_be_seen:
                told = f"{error}; what was read of it before stands"
            else:
                with self.store.writing() as connection:
                    forget_path(connection, path, home_mark_of(run_dir.path))
        self._report += IngestReport(problems=(told,))


def _report_of(one: RunRows, before: StoredRun | None) -> IngestReport:
    """Return what was read of a run beyond what was known of it *before*."""
    stored = [] if before is None else [file for file in before.files.values() if isinstance(file, dict)]
    read = [file for name, file in one.files.items() if name.startswith("journal/")]
    return IngestReport(
        runs=1,
        new_points=max(0, sum(file.points for file in read) - sum(file.get("points", 0) for file in stored)),
        bad_lines=one.run["bad_lines"] - (0 if before is None else before.bad_lines),
        lost_records=one.run["lost_records"] - (0 if before is None else before.lost_records),
        problems=tuple(dict.fromkeys(file.problem for file in one.files.values() if file.problem)),
    )


def _check_home(uid: str, home: str | None, known: StoredRun, now: Path) -> None:
    """Raise `HpcmlError` where run *uid* is known from a folder that is not visible here: *now* is then a copy.

    A store in a file belongs to one user, who may have moved everything without the marks: there nothing is checked.
    """
    if known.home is not None and home != known.home and home_mark_of(Path(known.path)) != known.home:
        raise HpcmlError(
            f"{now}: run {uid} is in the store already, from {known.path} of another home, which counts: remove "
            f"the copy (if that home is gone for good: hpcml rm --forget {uid})"
        )


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
