"""What is new in run directories, found out without opening a file in which nothing is: what every answer begins with.

Sizes of journals are compared with the store's cursors, and the size and time of run.json with what was read of it.
`hpcml.store.ingest` reads what is found here; a command that finds nothing does not even load that.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpcml.errors import HpcmlError
from hpcml.runs.journal import read_piece, unread
from hpcml.runs.layout import RunDir, folders_in, is_run
from hpcml.store.database import Database
from hpcml.store.journals import find_header, sizes_in
from hpcml.store.loading import Where, is_below
from hpcml.store.parse import storable
from hpcml.store.reading import StoreReader

UNLISTED = "the runs in "  # begins the problem that a folder of runs could not be listed


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """The result of an ingest; all but `runs` counts what this one read, not what others had read before.

    Reports add up: the sum of two is the report of both.

    >>> (IngestReport(runs=1, new_points=3) + IngestReport(runs=2)).runs
    3
    """

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


class _Known(NamedTuple):  # and no dataclass: one is made for every run before each answer
    """What the store has of a run directory; where this equals what is there, no file is opened."""

    uid: str
    stamp: str
    offsets: dict[str, int]  # journal file -> bytes read
    sampled: Mapping[str, int] | None  # the same of the telemetry; None: that was read after the run's end


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What there is to read: `changed` have more than the store has; `report` is about all others."""

    changed: Sequence[RunDir]
    report: IngestReport


def find_news(store: Database, *roots: Path, is_anew: bool = False) -> News:
    """Look at all run directories below *roots*; nothing is written, and no unchanged file opened.

    With *is_anew* all are changed. A run that lies below several of *roots* is looked at once.
    """
    with store.reading() as reading:
        known = _known_runs(reading, is_below(*(root.absolute() for root in roots)))
    look = _Look(known=known, is_anew=is_anew)
    for root in roots:
        look.go_through(str(root))
    return News(changed=look.changed, report=IngestReport(runs=look.runs, problems=tuple(look.problems)))


@dataclass(slots=True, kw_only=True)
class _Look:
    """A look at run directories, and what it has found so far."""

    known: Mapping[str, _Known]
    is_anew: bool
    runs: int = 0
    changed: list[RunDir] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _paths: set[str] = field(default_factory=set)

    def go_through(self, root: str) -> None:
        """Look at the runs below *root*, which may be a run itself."""
        if is_run(root):
            self._at(root)
            return
        for folder in self._folders_in(root):
            for path in [folder] if is_run(folder) else self._folders_in(folder):
                if is_run(path):
                    self._at(path)

    def _folders_in(self, folder: str) -> list[str]:
        """Return what `folders_in` does; nothing, and a problem, where the file system does not tell."""
        try:
            return folders_in(folder)
        except OSError as error:
            self.problems.append(f"{UNLISTED}{folder}: {error.strerror}")
            return []

    def _at(self, path: str) -> None:
        """Look at the run in *path*."""
        if path in self._paths:
            return
        self._paths.add(path)
        if self.is_anew or _has_news(path, self.known.get(_key(path)), self.problems):
            self.changed.append(RunDir(Path(path)))
        else:
            self.runs += 1


def is_unchanged(store: Database, run_dir: RunDir) -> IngestReport | None:
    """Return the report of a run that has nothing new; None where it has, or its run.json cannot be reached."""
    path = str(run_dir.path)
    with store.reading() as reading:
        known = _known_runs(reading, Where("run.path = :path", {"path": _key(path)})).get(_key(path))
    problems: list[str] = []
    return None if _has_news(path, known, problems) else IngestReport(runs=1, problems=tuple(problems))


# Paths are texts here: making a `Path` of each would take most of the time of a look at ten thousand runs.


def _key(path: str) -> str:
    return storable(os.path.abspath(path))  # noqa: PTH100 - the same, in a fifth of the time


def manifest_stamp(path: str) -> str:
    """Return a text that changes whenever run.json of the run in *path* does: its size and time, without reading it.

    Ingest calls it for every run before each answer. Raises `HpcmlError` where run.json is absent or out of reach.
    """
    try:
        status = os.stat(f"{path}/run.json")  # noqa: PTH116 - as above
    except OSError as error:
        why = "is gone" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise HpcmlError(f"{path}/run.json {why}") from error
    return f"{status.st_size}-{status.st_mtime_ns}"


def _has_news(path: str, known: _Known | None, problems: list[str]) -> bool:
    """Whether there is anything to write, found out without writing; why a file is left out is added to *problems*.

    What cannot be reached is news: whoever reads it says so.
    """
    try:
        if known is None or known.stamp != manifest_stamp(path):
            return True
        if _has_more(f"{path}/journal", known.uid, known.offsets, problems):
            return True
        return known.sampled is not None and _has_more(f"{path}/telemetry", known.uid, known.sampled, problems)
    except HpcmlError:
        return True


def _has_more(folder: str, uid: str, offsets: Mapping[str, int], problems: list[str]) -> bool:
    """Whether the files of *folder* differ from what was read of them, up to the bytes in *offsets*."""
    sizes = sizes_in(folder)
    if offsets == sizes:
        return False
    if any(sizes.get(file, -1) < offset for file, offset in offsets.items()):
        return True
    for file, size in sizes.items():
        offset = offsets.get(file, 0)
        if size <= offset:
            continue
        file_path = Path(folder) / file
        piece = read_piece(file_path, offset, 1)
        if not piece.is_news:
            problems += filter(None, [unread(file_path, piece)])
        else:
            if file in offsets:
                return True
            problem = find_header(file_path, uid)
            if not isinstance(problem, str):
                return True
            problems.append(problem)
    return False


_KNOWN = """
SELECT run.path, run.uid, manifest_stamp, is_sampled, file, byte_offset
FROM run LEFT JOIN journal ON journal.run_id = run.id
"""
_SAMPLED = "SELECT run.path, file, byte_offset FROM run JOIN sampler ON sampler.run_id = run.id"


def _known_runs(reading: StoreReader, which: Where) -> dict[str, _Known]:
    """Return by path what the store has of the runs that meet the condition."""
    meeting, values = f"WHERE {which.sql}", which.values
    # Only of runs that may still be sampled; those whose telemetry was read after their end have nothing more.
    sampled: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for path, file, byte_offset in reading.rows(f"{_SAMPLED} {meeting} AND NOT is_sampled", **values):
        sampled[path][file] = byte_offset
    known: dict[str, _Known] = {}
    for rows in reading.each(f"{_KNOWN} {meeting}", **values):
        for path, uid, stamp, is_sampled, file, byte_offset in rows:
            of_run = known.get(path)
            if of_run is None:
                known[path] = of_run = _Known(uid, stamp, {}, None if is_sampled else sampled.get(path, {}))
            if file is not None:
                of_run.offsets[file] = byte_offset
    return known
