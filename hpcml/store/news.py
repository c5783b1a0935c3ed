"""What is new in run directories, found out without opening a file in which nothing is: what every answer begins with.

Sizes of journals are compared with the store's cursors, and the size and time of run.json with what was read of it.
`hpcml.store.ingest` reads what is found here; a command that finds nothing does not even load that.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpcml.errors import HpcmlError
from hpcml.runs.journal import read_piece, unread
from hpcml.runs.layout import RunDir, folders_in, is_run
from hpcml.store import rests
from hpcml.store.database import Database
from hpcml.store.journals import find_header, sizes_in
from hpcml.store.loading import Where, is_below
from hpcml.store.origin import mark_of
from hpcml.store.parse import storable
from hpcml.store.reading import StoreReader
from hpcml.store.rests import Folder, Seen

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
    id: int
    is_resting: bool
    state: str
    is_settled: bool
    t_end: float | None

    def may_rest(self, path: str, now: float) -> bool:
        """Whether the run in *path* has come to rest, if nothing is new of it; *now* is in unix seconds."""
        return self.sampled is None and rests.may_rest(
            path, self.uid, now, state=self.state, is_settled=self.is_settled, t_end=self.t_end
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What there is to read: `changed` have more than the store has; `report` is about all others."""

    changed: Sequence[RunDir]
    report: IngestReport
    seen: Sequence[Seen] = ()  # what is worth to be kept of runs at rest (`rests.keep`)
    now: float = 0.0  # when it was looked at, unix seconds


def find_news(store: Database, *roots: Path, is_anew: bool = False, is_brief: bool = False) -> News:
    """Look at all run directories below *roots*; nothing is written, and no unchanged file opened.

    With *is_anew* all are changed. With *is_brief* runs at rest (`hpcml.store.rests`) are counted, not looked at. A run
    that lies below several of *roots* is looked at once.
    """
    now = time.time()
    absolute = [root.absolute() for root in roots]
    with store.reading() as reading:
        kept = rests.kept_below(reading, absolute, now) if is_brief and not is_anew else rests.NOTHING_KEPT
        skipped = {path: folder for path, folder in kept.folders.items() if not folder.is_due}
        which = is_below(*absolute)
        known = _known_runs(reading, which, kept.awake([*skipped.values()]) if skipped else _ANY)
        if woken := {uid for folder in skipped.values() for uid in folder.woken}:
            known |= _known_runs(reading, which, Where("run.uid IN :woken", {"woken": sorted(woken)}))
        look = _Look(known=known, kept=kept.folders, skipped=skipped, is_anew=is_anew, is_brief=is_brief, now=now)
        for root in roots:
            look.go_through(reading, str(root))
    report = IngestReport(runs=look.runs, problems=tuple(look.problems))
    seen = rests.worth_keeping(look.seen, kept.folders, now)
    return News(changed=look.changed, report=report, seen=seen, now=now)


@dataclass(slots=True, kw_only=True)
class _Look:
    """A look at run directories, and what it has found so far."""

    known: Mapping[str, _Known]
    kept: Mapping[str, Folder]  # in which runs rest
    skipped: Mapping[str, Folder]  # those of them whose runs at rest are not looked at
    is_anew: bool
    is_brief: bool
    now: float
    runs: int = 0
    changed: list[RunDir] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    _paths: set[str] = field(default_factory=set)
    _awake: dict[str, list[str]] | None = None
    _resting: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def go_through(self, reading: StoreReader, root: str) -> None:
        """Look at the runs below *root*, which may be a run itself."""
        if is_run(root):
            self._at_alone(reading, root)
            return
        home = mark_of(Path(root)) or ""
        for folder in self._folders_in(root) or ():
            if not self.is_brief or self.is_anew:
                for path in [folder] if is_run(folder) else self._folders_in(folder) or ():
                    if is_run(path):
                        self._at_alone(reading, path)
                continue
            skipped = self.skipped.get(_key(folder))
            if skipped is not None:
                self._at_others(reading, folder, skipped, home)
            elif is_run(folder):
                self._at_alone(reading, folder)
            else:
                self._at_all(reading, folder, home)

    def _at_all(self, reading: StoreReader, folder: str, home: str) -> None:
        seen = Seen(path=_key(folder), home=home, changed_ns=rests.changed_ns(folder), is_whole=True)
        gone = rests.names_resting(reading, self.kept[seen.path]) if seen.path in self.kept else {}
        if (paths := self._folders_in(folder)) is None:
            return
        for path in paths:
            gone.pop(path.rpartition("/")[2], None)
            self._at(path, seen)
        seen.wakened += gone.values()
        self.seen.append(seen)

    def _at_others(self, reading: StoreReader, folder: str, skipped: Folder, home: str) -> None:
        """Look at those runs in *folder* that are not at rest."""
        seen = Seen(path=skipped.path, home=home, changed_ns=rests.changed_ns(folder))
        if seen.changed_ns == skipped.changed_ns:
            if self._awake is None:
                self._awake = rests.by_folder(self.known)
            names = self._awake.get(skipped.path, [])
            self.runs += skipped.resting - sum(self.known[f"{skipped.path}/{name}"].is_resting for name in names)
            for name in sorted(names):
                if is_run(path := f"{folder}/{name}"):
                    self._at(path, seen)
        else:
            resting = rests.names_resting(reading, skipped)
            if (paths := self._folders_in(folder)) is None:
                return
            for path in paths:
                name = path.rpartition("/")[2]
                if resting.pop(name, None) is not None and name not in skipped.woken:
                    self.runs += 1
                else:
                    self._at(path, seen)
            seen.wakened += resting.values()
        self.seen.append(seen)

    def _folders_in(self, folder: str) -> list[str] | None:
        """Return what `folders_in` does; None, and a problem, where the file system does not tell."""
        try:
            return folders_in(folder)
        except OSError as error:
            self.problems.append(f"{UNLISTED}{folder}: {error.strerror}")
            return None

    def _at_alone(self, reading: StoreReader, path: str) -> None:
        """Look at the run in *path*, unless it is at rest: it is counted in its folder, which lies below another root.

        So it is where ``hpcml ingest`` was given an experiment, or a run, and then the folder around it.
        """
        folder, _, name = _key(path).rpartition("/")
        skipped = self.skipped.get(folder)
        if skipped is not None and name not in skipped.woken:
            if folder not in self._resting:
                self._resting[folder] = rests.names_resting(reading, skipped)
            if name in self._resting[folder]:
                return
        self._at(path)

    def _at(self, path: str, seen: Seen | None = None) -> None:
        """Look at the run in *path*, if it is one."""
        if seen is not None and not is_run(path):
            seen.is_known = False  # it may become a run without a change of its folder
            return
        if path in self._paths:
            return
        self._paths.add(path)
        known = self.known.get(_key(path))
        already = len(self.problems)
        has_news = self.is_anew or _has_news(path, known, self.problems)
        if has_news:
            self.changed.append(RunDir(Path(path)))
        else:
            self.runs += 1
        if seen is None:
            return
        if known is None:
            seen.is_known = False
        elif has_news or len(self.problems) > already:  # if it cannot be read, each answer is to say so
            seen.wakened += [known.id] if known.is_resting else []
        elif not known.is_resting and known.may_rest(path, self.now):
            seen.resting.append(known.id)


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


_ANY = Where("run.id IS NOT NULL", {})
_KNOWN = """
SELECT run.path, run.uid, manifest_stamp, is_sampled, file, byte_offset,
run.id, resting_in, state, is_settled, t_end
FROM run LEFT JOIN journal ON journal.run_id = run.id
"""
_SAMPLED = "SELECT run.path, file, byte_offset FROM run JOIN sampler ON sampler.run_id = run.id"


def _known_runs(reading: StoreReader, which: Where, also: Where = _ANY) -> dict[str, _Known]:
    """Return by path what the store has of the runs that meet both conditions."""
    meeting, values = f"WHERE {which.sql} AND {also.sql}", {**which.values, **also.values}
    # Only of runs that may still be sampled; those whose telemetry was read after their end have nothing more.
    sampled: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for path, file, byte_offset in reading.rows(f"{_SAMPLED} {meeting} AND NOT is_sampled", **values):
        sampled[path][file] = byte_offset
    known: dict[str, _Known] = {}
    for rows in reading.each(f"{_KNOWN} {meeting}", **values):
        for path, uid, stamp, is_sampled, file, byte_offset, run_id, resting_in, *ended in rows:
            of_run = known.get(path)
            if of_run is None:
                offsets = None if is_sampled else sampled.get(path, {})
                known[path] = of_run = _Known(uid, stamp, {}, offsets, run_id, resting_in is not None, *ended)
            if file is not None:
                of_run.offsets[file] = byte_offset
    return known
