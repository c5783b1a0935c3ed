"""Follows the files of metrics in a run's working directory while its program runs, and journals what they say.

A child of the agent does it (`printed`): a slow file system delays nothing else, and whatever goes wrong with a file is
one event in the journal. Of each metric one writer counts: the program's own reports (`hpcml_client`), then a
rule of `workload.metrics`, then the first file to name it, in the order of `MetricFiles`.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from hpcml.agent.metrics.json_files import JsonLines
from hpcml.agent.metrics.reading import PIECE_BYTES, Damaged, Growing, Reader, Reading, Taker
from hpcml.agent.metrics.sources import Source, begun_at, reader_of, sources_in
from hpcml.agent.metrics.tables import CsvTable
from hpcml.model.metric_sources import AUTO, MetricFiles, is_path
from hpcml.runs.state import EventName

WRITER = "metrics"
_PAUSES_S = (1.0, 1.0, 2.0)  # at the beginning, then:
_PAUSE_S = 5.0
_SEARCH_EVERY_S = 20.0
_BUSY_S = 1.0  # of a look, unless it is the last
_MOST_FILES = 500
_MOST_NAMES = 500
_MOST_PROBLEMS = 20
_READ_AS = {
    MetricFiles.csv: ": its first line has to name the columns of numbers, between commas, semicolons or tabs",
    MetricFiles.trainer: ": a .json is read for rows of numbers by name, or one, and for transformers' log_history",
    MetricFiles.jsonl: ': each line has to be an object, as in {"step": 10, "loss": 0.5}',
}
_LONGEST_NAME = 250
_NAMES = re.compile(rb'"v":\{(.*?)\}[,}]')
_NAME = re.compile(rb'("(?:[^"\\]|\\.)*"):')


@dataclass(slots=True)
class _Followed:
    """A source of metrics, with what reads it."""

    source: Source
    reader: Reader
    is_over: bool = False
    has_given: bool = False  # values


@dataclass(slots=True)
class MetricsFollower:
    """Reads the files that *wanted* (`workload.metrics_from`) asks for: `look`, `read_new` again and again, `end`.

    *start_at* is where the program starts, a path from *root*. *journal* takes the values.
    *journals* and *attempt* say where the program's own reports are, *picked* is asked for the names that rules have
    found.
    """

    root: Path
    wanted: Sequence[str]
    journal: Taker
    journals: Path
    attempt: int
    start_at: str = "."
    goes_on: bool = False  # the attempt, from a checkpoint of the one before: so do tables without steps
    picked: Callable[[], Collection[str]] = tuple
    _followed: dict[str, _Followed] = field(default_factory=dict)  # by place
    _owners: dict[str, tuple[MetricFiles, str]] = field(default_factory=dict)  # by name: kind and stream
    _counts: dict[MetricFiles, Counter[str]] = field(default_factory=dict)  # values, by kind and name
    _given: dict[str, set[tuple[str, int, str]]] = field(default_factory=dict)  # by stream of a Trainer: its values
    _left_to_others: set[str] = field(default_factory=set)
    _told: set[tuple[str, str]] = field(default_factory=set)  # problems of files
    _reported: dict[Path, Growing] = field(default_factory=dict)
    _reported_names: set[str] = field(default_factory=set)
    _search_at: float = 0.0
    _looks: int = 0
    _look_at: float = 0.0
    _has_completed: bool = False  # else what it wrote may end anywhere, within a number too
    _began_at: float = 0.0

    def look(self) -> None:
        """Note what is there already, which is of no interest; without it nothing is read."""
        if not self.wanted:
            return
        for source in self._sources()[:_MOST_FILES]:
            followed = _Followed(source, reader_of(source, self.root, goes_on=self.goes_on))
            self._followed[source.place] = followed
            try:
                followed.reader.skip()
            except (OSError, Damaged):
                followed.is_over = True
        self._began_at = time.time()

    def read_new(self) -> None:
        """Read what is new, if it is time; to be called often while the program runs."""
        if not self._began_at or time.monotonic() < self._look_at:
            return
        self._look(_BUSY_S)
        self._look_at = time.monotonic() + (_PAUSES_S[self._looks] if self._looks < len(_PAUSES_S) else _PAUSE_S)
        self._looks += 1

    def end(self, *, within_s: float, has_completed: bool) -> None:
        """Read what is left by a program that *has_completed* or not, for at most *within_s* seconds."""
        if not self._began_at:
            return
        self._has_completed, self._search_at = has_completed, 0.0
        if self._look(within_s):
            self._read_rests()
        else:
            self._tell("the values behind that", f"reading took longer than {within_s:g} s")
        self._sum_up()

    def read_left(self, since: float, *, has_completed: bool) -> None:
        """Read all that is there, in place of `look` to `end`, once the program that began at *since* has ended."""
        self._began_at, self._has_completed = since, has_completed
        self._look(math.inf)
        self._read_rests()
        self._sum_up()

    def names(self) -> Collection[str]:
        """Return the metrics that files had, or the program has reported itself."""
        self._look_at_reports()
        return self._owners.keys() | self._reported_names

    def _sources(self) -> Sequence[Source]:
        return sources_in(self.root, self.wanted, start=self.start_at)

    def _look(self, within_s: float) -> bool:
        """Search and read; return whether all was read that is there."""
        until = time.monotonic() + within_s
        if time.monotonic() >= self._search_at:
            self._search_at = time.monotonic() + _SEARCH_EVERY_S
            self._search()
        for followed in self._followed.values():
            more = not followed.is_over
            while more:
                if time.monotonic() >= until:
                    return False
                more = self._read(followed)
        return True

    def _search(self) -> None:
        order = list(MetricFiles)
        new = [source for source in self._sources() if source.place not in self._followed]
        if len(self._followed) < _MOST_FILES:  # else thousands would be opened again and again
            new.sort(key=lambda source: (order.index(source.kind), begun_at(source, self.root)))
        for source in new:
            if len(self._followed) >= _MOST_FILES:
                self._tell(source.place, f"more than {_MOST_FILES} files of metrics: it is not read")
                return
            self._followed[source.place] = _Followed(source, reader_of(source, self.root))
        places = sorted(self._followed, key=lambda place: order.index(self._followed[place].source.kind))
        self._followed = {place: self._followed[place] for place in places}

    def _read(self, followed: _Followed) -> bool:
        """Journal the next values of a file; return whether there is more."""
        place = followed.source.place
        try:
            readings, more = followed.reader.read()
        except FileNotFoundError:
            followed.is_over = True  # the program has removed it
            return False
        except OSError:
            return False  # perhaps the next time
        except Damaged as problem:
            followed.is_over = True
            self._tell(place, str(problem))
            return False
        for problem_words in followed.reader.problems:
            self._tell(place, problem_words)
        followed.reader.problems.clear()
        self._take(followed, readings)
        return more

    def _read_rests(self) -> None:
        """Journal last lines that lack their ends, as of a table that was joined by line feeds; nobody adds to them.

        A row of a table that a killed program has left may end within its last number, which looks whole.
        """
        whole = JsonLines | CsvTable if self._has_completed else JsonLines
        for followed in self._followed.values():
            if isinstance(followed.reader, whole) and not followed.is_over:
                with suppress(OSError, Damaged):
                    self._take(followed, followed.reader.rest())

    def _take(self, followed: _Followed, readings: Sequence[Reading]) -> None:
        if readings:
            followed.has_given = True
            self._look_at_reports()
            self._write(followed.source, self._not_given(followed.source, readings))

    def _not_given(self, source: Source, readings: Sequence[Reading]) -> Sequence[Reading]:
        """Leave out what another file of the same history had too: each checkpoint of a Trainer repeats all of it."""
        if source.kind is not MetricFiles.trainer:
            return readings
        given = self._given.setdefault(source.stream, set())
        told = [(one.name, one.step, repr(one.value)) for one in readings]
        new = [one for one, key in zip(readings, told, strict=True) if key not in given]
        given.update(told)
        return new

    def _write(self, source: Source, readings: Sequence[Reading]) -> None:
        """Journal *readings*, one line for those of the same step and time."""
        row: dict[str, float] = {}
        of: tuple[int, float | None] = (0, None)
        counts = self._counts.setdefault(source.kind, Counter())
        for reading in readings:
            name = self._name(source, reading)
            if name is None:
                continue
            counts[name] += 1
            if row and ((reading.step, reading.at) != of or name in row):
                self._put(row, of)
                row = {}
            of = (reading.step, reading.at)
            row[name] = reading.value
        if row:
            self._put(row, of)

    def _put(self, row: Mapping[str, float], of: tuple[int, float | None]) -> None:
        step, at = of
        if at is not None and not self._began_at <= at <= time.time():
            at = None
        self.journal.metrics(step, row, at=at)

    def _name(self, source: Source, reading: Reading) -> str | None:
        """Return the name by which a value is journalled; None where another writer's word of that metric counts."""
        owner = (source.kind, source.stream)
        name = f"{source.label}/{reading.name}" if source.is_labelled else reading.name
        known = self._owners.get(name)
        if known is not None and known != owner and known[0] is source.kind:
            name = f"{source.label}/{reading.name}"
            known = self._owners.get(name)
        if name in self._reported_names or name in self.picked() or (known is not None and known != owner):
            self._left_to_others.add(name)
            return None
        if known is None:
            if len(name) > _LONGEST_NAME:
                self._tell(source.place, f"a metric whose name has {len(name)} characters was left out")
                return None
            if len(self._owners) >= _MOST_NAMES:
                self._tell(source.place, f"more than {_MOST_NAMES} metrics: the others were left out")
                return None
            self._owners[name] = owner
        return name

    def _look_at_reports(self) -> None:
        """Learn which metrics the program reports itself, from what its journals have more than before."""
        for path in self.journals.glob(f"{self.attempt}-*-rank*.jsonl"):
            growing = self._reported.setdefault(path, Growing(self.journals, path))
            with suppress(OSError):
                while True:
                    data = growing.piece()
                    end = data.rfind(b"\n") + 1
                    for row in set(_NAMES.findall(data, 0, end)):
                        self._reported_names.update(json.loads(name) for name in _NAME.findall(row))
                    growing.offset += end
                    if len(data) < PIECE_BYTES or not end:
                        break

    def _tell(self, place: str, problem: str) -> None:
        if (place, problem) not in self._told and len(self._told) < _MOST_PROBLEMS:
            self._told.add((place, problem))
            self.journal.event(EventName.METRICS_TROUBLE, {"file": place, "problem": problem})

    def _sum_up(self) -> None:
        for word in self.wanted:
            kind = MetricFiles.__members__.get(word)
            asked = [
                followed
                for followed in self._followed.values()
                if (
                    followed.source.kind is kind
                    if kind
                    else fnmatchcase(os.path.relpath(followed.source.place, self.start_at), word)
                )
            ]
            if word != AUTO and not asked:
                self._tell(word, "workload.metrics_from asks for it, and the program wrote no such file")
            elif is_path(word) and not any(followed.has_given or followed.is_over for followed in asked):
                read_as = _READ_AS.get(asked[0].source.kind, "")
                self._tell(word, f"the program wrote no number there that could be read{read_as}")
        read = {kind.name: {"metrics": len(of), "values": of.total()} for kind, of in self._counts.items() if of}
        if read or self._left_to_others:
            self.journal.event("metrics_read", {**read, "told_elsewhere": sorted(self._left_to_others)})
