"""JSON lines, and JSON that is written whole, as transformers' `trainer_state.json`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from hpcml.agent.metrics.reading import (
    DEEPEST,
    SETTINGS,
    STEPS,
    Damaged,
    Gaps,
    Growing,
    Lines,
    Reading,
    values_of,
)
from hpcml.runs.files import open_inside, parse_json

_STATE = "trainer_state.json"
_STEPS_IN_A_LIST = {f"{word}s": word for word in STEPS}  # {"epochs": [1, 2], "loss": [0.5, 0.4]}
_ONE_METRIC = frozenset({"steps", "values"})  # {"loss": {"steps": [0, 10], "values": [0.5, 0.4]}}, as Sacred writes it
_MOST_TOLD = 3  # names, in a line that people read
_LARGEST_STATE_BYTES = 16 << 20  # of a file that is read whole each time that it changes


@dataclass(slots=True)
class JsonLines:
    """Follows a file with a JSON object a line; *goes_on*: lines are numbered on behind those that `skip` passes."""

    root: Path
    path: Path
    goes_on: bool = False
    problems: list[str] = field(default_factory=list)
    _lines: Lines = field(init=False)
    count: int = 0  # of rows
    gaps: Gaps = field(default_factory=Gaps)
    _has_told: bool = False

    def __post_init__(self) -> None:
        self._lines = Lines(Growing(self.root, self.path), self.problems)

    def skip(self) -> None:
        """Begin behind what is there."""
        if self.goes_on:
            self.count += sum(1 for lines in self._lines.pass_over() for line in lines if line.strip())
        self._lines.file.skip()

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the numbers in the next complete lines, and whether there are more."""
        lines, more = self._lines.next()
        found: list[Reading] = []
        for line in lines:
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                found += values_of(row, number=self.count, gaps=self.gaps)
            elif not self._has_told:
                self._has_told = True
                self.problems.append("a line that is no JSON object was left out, and so are all others like it")
            self.count += 1
        return found, more

    def missing_at_end(self) -> Iterator[str]:
        """Yield a line for each metric that ended without a value."""
        return self.gaps.problems()

    def rest(self) -> Sequence[Reading]:
        """Return the numbers in a last line that lacks its end, which is whole if it is JSON."""
        try:
            row = parse_json(self._lines.rest())
        except ValueError:
            return ()
        return list(values_of(row, number=self.count, gaps=self.gaps)) if isinstance(row, dict) else ()


@dataclass(slots=True)
class JsonFile:
    """Follows a file that is written anew, whole: a trainer_state.json, or numbers by their names.

    Of the first, the `log_history` is read, which each checkpoint of a Trainer repeats. Another file is a list of rows
    (``[{"epoch": 0, "loss": 0.5}]``), has lists of values or of rows (``{"history": {"loss": [0.5, 0.4]}}``), with or
    without one of their steps, is one row, read whenever it changed, or has a row on each line, as detectron2's
    metrics.json and RLlib's result.json.
    """

    root: Path
    path: Path
    problems: list[str] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)
    _tables: dict[str, _Seen] = field(default_factory=dict)  # by the names of the objects that they stand in
    _row: object = None  # the numbers that stood beside tables
    _stamp: tuple[int, int] = (0, 0)
    _count: int = 0  # of rows that replaced each other
    _first: bytes = b""  # line of what was read: a row in it may be followed by others
    _has_told: bool = False

    def skip(self) -> None:
        """Begin behind what is there."""
        self.read()
        self._count = 0
        for seen in self._tables.values():
            seen.is_of_before = True

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the numbers that were not there before."""
        with open_inside(self.root, self.path) as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return (), False
            content = file.read(_LARGEST_STATE_BYTES + 1)
        if len(content) > _LARGEST_STATE_BYTES:
            raise Damaged(f"has more than {_LARGEST_STATE_BYTES >> 20} MiB")
        lines: Sequence[object] | None = None
        whole: object = None
        try:
            whole = parse_json(content)
        except ValueError:
            lines = _objects_on_lines(content)
            if lines is None:
                return (), False  # it is being written
        first = content.split(b"\n", 1)[0]
        found: list[Reading] = []
        if lines is not None:
            seen = self._tables.setdefault("", _Seen())
            is_continued = first == self._first and len(lines) >= seen.n
            seen.n, seen.is_of_before = (max(seen.n, 1) if is_continued else 0), False
            found += self._new(_Table(rows=lines))
        else:
            found += self._of(whole)
        self._stamp, self._first = stamp, first
        return found, False

    def missing_at_end(self) -> Iterator[str]:
        """Yield a line for each metric that ended without a value."""
        yield from self.gaps.problems()
        for place, seen in self._tables.items():
            yield from (f"{place}{problem}" for problem in seen.gaps.problems())

    def _of(self, whole: object) -> Iterator[Reading]:
        """Yield what is new in a JSON value: rows of tables, and numbers that replace those of before."""
        if isinstance(whole, list) and self.path.name != _STATE:
            yield from self._new(_Table(rows=whole))
            return
        if not isinstance(whole, dict):
            return
        if self.path.name == _STATE or isinstance(whole.get("log_history"), list):
            history = whole.get("log_history")
            yield from self._new(_Table(rows=history if isinstance(history, list) else [], has_steps=True))
            return
        unread: list[str] = []
        tables = list(_tables_in(whole, unread))
        if unread and not self._has_told:
            self._has_told = True
            self.problems.append(f"lists inside of lists were not read: {', '.join(unread[:_MOST_TOLD])}")
        for table in tables:
            yield from self._new(table)
        if not tables:
            self._count += 1
            yield from values_of(whole, number=self._count - 1, gaps=self.gaps)
        elif whole != self._row:  # what stands beside tables is of the last of their rows
            self._row = whole
            at = max(len(table.rows) for table in tables)
            yield from values_of(whole, number=max(at - 1, 0))

    def _new(self, table: _Table) -> Iterator[Reading]:
        """Yield the numbers in the rows of *table* that were not there before."""
        seen, rows = self._tables.setdefault(table.place, _Seen()), table.rows
        begins = repr(rows[0]) if rows else ""
        is_another = begins != seen.begins or (table.has_steps and repr(rows[: seen.n][-1:]) != seen.ends)  # training's
        if (table.has_steps and is_another) or (seen.is_of_before and (is_another or len(rows) <= seen.n)):
            seen.n = 0
        seen.is_of_before = False
        for number, row in enumerate(rows[seen.n :], seen.n):
            if isinstance(row, dict):
                for reading in values_of(row, number=number, gaps=seen.gaps):
                    yield replace(reading, name=table.place[:-1] if table.is_one else f"{table.place}{reading.name}")
        seen.n, seen.begins, seen.ends = max(seen.n, len(rows)), begins, repr(rows[-1:])


@dataclass(slots=True)
class _Seen:
    """How many rows of a table were read, and how the first and the last of them were written."""

    n: int = 0
    begins: str = ""
    ends: str = ""
    is_of_before: bool = False  # they were there before the program started
    gaps: Gaps = field(default_factory=Gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Rows in a JSON value, and what stands before the names in them, such as ``history/``."""

    rows: Sequence[object]
    place: str = ""
    is_one: bool = False  # of one metric, which is called as the place
    has_steps: bool = False  # in each row, so that none is numbered


def _objects_on_lines(content: bytes) -> Sequence[object] | None:
    r"""Return the objects in *content*, one a line, without a last line that is not complete; None for anything else.

    >>> _objects_on_lines(b'{"a": 1}\n{"a": 2}\n{"a'), _objects_on_lines(b'{\n"a": 1')
    ([{'a': 1}, {'a': 2}], None)
    """
    lines = [line for line in content.splitlines() if line.strip()]
    rows: list[object] = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number < len(lines):
            return None
    return rows or None


def _tables_in(whole: Mapping[str, object], unread: list[str], place: str = "") -> Iterator[_Table]:
    """Yield the tables in a JSON object: lists of rows, and lists of values beside each other, each a column.

    *unread* is given the names of the lists that are neither.
    """
    columns: dict[str, list[object]] = {}
    for name, value in whole.items():
        if name.startswith("_") or not name:
            continue
        if isinstance(value, dict) and name.lower() in SETTINGS:
            continue
        if isinstance(value, dict) and place.count("/") < DEEPEST:
            yield from _tables_in(value, unread, f"{place}{name}/")
        elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
            yield _Table(rows=value, place=f"{place}{name}/")
            unread += _lists_in(next(each for each in value if isinstance(each, dict)), f"{place}{name}/")
        elif isinstance(value, list) and any(isinstance(each, list) for each in value):
            unread.append(f"{place}{name}")
        elif isinstance(value, list) and any(isinstance(each, int | float) for each in value):
            columns[name] = value
    longest = max(map(len, columns.values()), default=0)
    if longest:
        called = {name: _called(name, columns) for name in columns}
        rows = [
            {called[name]: values[at] for name, values in columns.items() if at < len(values)} for at in range(longest)
        ]
        yield _Table(rows=rows, place=place, is_one=bool(place) and columns.keys() == _ONE_METRIC)


def _called(name: str, columns: Mapping[str, Sequence[object]]) -> str:
    """Return *name*, or ``epoch`` for a column of ``epochs`` that counts on, unless there is one of that name too.

    Half epochs are no steps: of 0.5, 1.0 and 1.5 the second alone would be one.
    """
    one = _STEPS_IN_A_LIST.get(name.lower(), name)
    wholes = [at for at in columns[name] if isinstance(at, int) or (isinstance(at, float) and at.is_integer())]
    is_counted = len(wholes) == len(columns[name]) and all(former < later for former, later in pairwise(wholes))
    return one if is_counted and one not in columns else name


def _lists_in(row: Mapping[str, object], place: str) -> Iterator[str]:
    """Yield the names of lists of numbers in a *row*, which is one of several already."""
    for name, value in row.items():
        if isinstance(value, dict) and place.count("/") < DEEPEST:
            yield from _lists_in(value, f"{place}{name}/")
        elif isinstance(value, list) and any(isinstance(each, int | float) for each in value):
            yield f"{place}{name}"
