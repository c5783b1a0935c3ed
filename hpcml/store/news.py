"""What is new in run directories, found out without opening a file in which nothing is: what every answer begins with.

Sizes of journals are compared with the store's cursors, and the size and time of run.json with what was read of it.
`hpcml.store.ingest` reads what is found here; a command that finds nothing does not even load that.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, select

from hpcml.errors import HpcmlError
from hpcml.runs.journal import read_piece, unread
from hpcml.runs.layout import RunDir, run_paths
from hpcml.store.database import Database
from hpcml.store.journals import find_header, sizes_in
from hpcml.store.loading import is_below
from hpcml.store.parse import storable
from hpcml.store.schema import JOURNAL, RUN, SAMPLER


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
    with store.reading() as connection:
        known = _known_runs(connection, is_below(*(root.absolute() for root in roots)))
    problems: list[str] = []
    runs, changed = 0, []
    for path in _each_once(roots):
        try:
            if is_anew or _has_news(path, known.get(_key(path)), problems):
                changed.append(RunDir(Path(path)))
            else:
                runs += 1
        except HpcmlError as error:
            problems.append(str(error))
    return News(changed=changed, report=IngestReport(runs=runs, problems=tuple(problems)))


def is_unchanged(store: Database, run_dir: RunDir) -> IngestReport | None:
    """Return the report of a run that has nothing new; None where it has. Raises `HpcmlError` without run.json."""
    path = str(run_dir.path)
    with store.reading() as connection:
        known = _known_runs(connection, RUN.c.path == _key(path)).get(_key(path))
    problems: list[str] = []
    return None if _has_news(path, known, problems) else IngestReport(runs=1, problems=tuple(problems))


# Paths are texts here: making a `Path` of each would take most of the time of a look at ten thousand runs.


def _each_once(roots: Sequence[Path]) -> Iterator[str]:
    seen: set[str] = set()
    for root in roots:
        for path in run_paths(str(root)):
            if path not in seen:
                seen.add(path)
                yield path


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
    """Whether there is anything to write, found out without writing; why a file is left out is added to *problems*."""
    if known is None or known.stamp != manifest_stamp(path):
        return True
    if _has_more(f"{path}/journal", known.uid, known.offsets, problems):
        return True
    return known.sampled is not None and _has_more(f"{path}/telemetry", known.uid, known.sampled, problems)


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


def _known_runs(connection: Connection, which: ColumnElement[bool]) -> dict[str, _Known]:
    columns = (RUN.c.path, RUN.c.uid, RUN.c.manifest_stamp, RUN.c.is_sampled, JOURNAL.c.file, JOURNAL.c.byte_offset)
    query = select(*columns).outerjoin(JOURNAL, JOURNAL.c.run_id == RUN.c.id)
    sampled = _telemetry_offsets(connection, which)
    known: dict[str, _Known] = {}
    cursor = connection.execute(query.where(which)).cursor
    assert cursor is not None
    for at, uid, stamp, is_sampled, file, byte_offset in iter(
        cursor.fetchone, None
    ):  # the driver's tuples: a quarter of the time
        of_run = known.get(at)
        if of_run is None:
            known[at] = of_run = _Known(uid, stamp, {}, None if is_sampled else sampled.get(at, {}))
        if file is not None:
            of_run.offsets[file] = byte_offset
    return known


def _telemetry_offsets(connection: Connection, which: ColumnElement[bool]) -> dict[str, dict[str, int]]:
    """Return by path of the run, then by file, how many bytes were read; only for runs that may still be sampled.

    Ingest compares them with the sizes of the files. Runs whose telemetry was read after their end are absent, so that
    nobody looks for more.
    """
    query = select(RUN.c.path, SAMPLER.c.file, SAMPLER.c.byte_offset).join(SAMPLER, SAMPLER.c.run_id == RUN.c.id)
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for path, file, offset in connection.execute(query.where(which, ~RUN.c.is_sampled)):
        found[path][file] = offset
    return found
