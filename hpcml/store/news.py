"""What is new in run directories, found out without opening a file: what every answer begins with.

The sizes of the files are compared with those that were read. A run that has ended for good is not looked into at all
until a journal is added to it; `hpcml sync --all` looks at every file. `hpcml.store.ingest` reads what is found here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import select

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.layout import RunDir, folders_in, is_run
from hpcml.store.database import Database
from hpcml.store.journals import MANIFEST, Seen, changed_ns
from hpcml.store.loading import is_below
from hpcml.store.parse import storable
from hpcml.store.schema import RUN

UNLISTED = "the runs in "  # begins the problem that a folder of runs could not be listed
_WORTH_CLOSING = 100  # runs: for fewer nobody is kept from writing


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


class _Read(NamedTuple):
    """What the store has of a run directory."""

    files: Mapping[str, Any] | None  # None: it has ended for good
    closed_ns: int | None
    has_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What there is to read: `changed` have more than the store has; `report` is about all others.

    `closable` are those, by path, that have ended and in which nothing was written for long: nobody need look into them
    any more. By each stands when its folder of journals changed last.
    """

    changed: Sequence[RunDir]
    closable: Mapping[str, int]
    report: IngestReport

    @property
    def is_any(self) -> bool:
        """Whether there is something to be written."""
        return bool(self.changed) or len(self.closable) >= _WORTH_CLOSING


def find_news(store: Database, *roots: Path, is_anew: bool = False) -> News:
    """Look at all run directories below *roots*; nothing is written, and no file opened.

    With *is_anew* all are changed. A run that lies below several of *roots* is looked at once.
    """
    columns = (RUN.c.path, RUN.c.closed_ns, RUN.c.files, RUN.c.state, RUN.c.is_settled)
    below = is_below(*(root.absolute() for root in roots))
    known: dict[str, _Read] = {}
    with store.reading() as connection:
        for path, closed_ns in connection.execute(select(*columns[:2]).where(below, RUN.c.closed_ns.is_not(None))):
            known[path] = _Read(None, closed_ns, has_ended=True)
        for path, _, files, state, is_settled in connection.execute(
            select(*columns).where(below, RUN.c.closed_ns.is_(None))
        ):
            known[path] = _Read(files, None, has_ended=State(state).is_final and is_settled)
    look = _Look(known=known, is_anew=is_anew)
    for root in roots:
        look.go_through(str(root))
    report = IngestReport(runs=look.runs, problems=tuple(look.problems))
    return News(changed=look.changed, closable=look.closable, report=report)


@dataclass(slots=True, kw_only=True)
class _Look:
    """A look at run directories, and what it has found so far."""

    known: Mapping[str, _Read]
    is_anew: bool
    runs: int = 0
    changed: list[RunDir] = field(default_factory=list)
    closable: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _paths: set[str] = field(default_factory=set)

    def go_through(self, root: str) -> None:
        """Look at the runs below *root*, which may be a run itself."""
        if is_run(root):
            self._at(root)
            return
        for folder in self._folders_in(root):
            if is_run(folder):
                self._at(folder)
                continue
            for path in self._folders_in(folder):
                self._at(path)

    def _folders_in(self, folder: str) -> list[str]:
        """Return what `folders_in` does; nothing, and a problem, where the file system does not tell."""
        try:
            return folders_in(folder)
        except OSError as error:
            self.problems.append(f"{UNLISTED}{folder}: {error.strerror}")
            return []

    def _at(self, path: str) -> None:
        """Look at the run in *path*, if there is one."""
        if path in self._paths:
            return
        read = self.known.get(key_of(path))
        if (read is None or read.closed_ns is None) and not is_run(path):
            return
        self._paths.add(path)
        if self.is_anew or read is None or self._has_news(path, read):
            self.changed.append(RunDir(Path(path)))
        else:
            self.runs += 1

    def _has_news(self, path: str, read: _Read) -> bool:
        """Whether there is anything to read; why a file is left out is added to `problems`.

        What cannot be reached is news: whoever reads it says so.
        """
        if read.files is None:
            return changed_ns(path) != read.closed_ns
        try:
            seen = Seen.of(path)
        except HpcmlError:
            return True
        files = {name: file for name, file in read.files.items() if name != MANIFEST}
        if (
            read.files.get(MANIFEST) != seen.stamp
            or {name: file.get("size", 0) for name, file in files.items()} != seen.sizes
        ):
            return True
        problems = [file["problem"] for file in files.values() if "problem" in file]
        self.problems += problems
        if read.has_ended and not problems and seen.is_quiet:
            self.closable[key_of(path)] = seen.journals_ns
        return False


def key_of(path: str) -> str:
    """Return *path* as the column of that name has it."""
    return storable(os.path.abspath(path))  # noqa: PTH100 - as resolve, in a fifth of the time
