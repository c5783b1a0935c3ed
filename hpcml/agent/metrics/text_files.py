"""Tables as text: JSON lines, CSV as Lightning and Keras write it, and JSON, as transformers' `trainer_state.json`."""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.agent.metrics.numbers import is_missing, looks_like_number, number_of, plain, with_point
from hpcml.agent.metrics.reading import (
    DEEPEST,
    SETTINGS,
    Damaged,
    Growing,
    Lines,
    Reading,
    check_encoding,
    values_of,
)
from hpcml.runs.files import open_inside, parse_json

TYPE_CHECKING = False  # not typing's own, which a program's start would wait for
if TYPE_CHECKING:
    from typing import BinaryIO

_LONGEST_HEADER_BYTES = 64 << 10
_STATE = "trainer_state.json"
_MOST_TOLD = 3  # names, in a line that people read
_OF_WHAT = ("metric", "name", "key", "tag", "variable")  # columns of a table in long form: step,metric,value
_VALUE = "value"
_MOST_SHOWN = 40  # characters of a cell
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
    _has_told: bool = False

    def __post_init__(self) -> None:
        self._lines = Lines(Growing(self.root, self.path), self.problems)

    def skip(self) -> None:
        """Begin behind what is there."""
        if self.goes_on:
            self.count += sum(1 for lines in self._lines.pass_over() for line in lines if line.strip())
        self._lines.file.offset = self._lines.file.size_bytes()

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
                found += values_of(row, number=self.count)
            elif not self._has_told:
                self._has_told = True
                self.problems.append("a line that is no JSON object was left out, and so are all others like it")
            self.count += 1
        return found, more

    def rest(self) -> Sequence[Reading]:
        """Return the numbers in a last line that lacks its end, which is whole if it is JSON."""
        try:
            row = parse_json(self._lines.rest())
        except ValueError:
            return ()
        return list(values_of(row, number=self.count)) if isinstance(row, dict) else ()


@dataclass(slots=True)
class CsvTable:
    """Follows a CSV file with a header; one whose header changed, or that became shorter, is read again.

    Commas, semicolons (numbers may have decimal commas then) or tabs separate the columns: what its header has most of.
    Comments (#) may stand before the header, or be it, as NumPy's savetxt writes one.

    *goes_on*: rows are numbered on behind those that `skip` passes.
    """

    root: Path
    path: Path
    goes_on: bool = False
    problems: list[str] = field(default_factory=list)
    _lines: Lines = field(init=False)
    _head: bytes = b""  # all that stands before the rows
    _names: Sequence[str] = ()
    _separator: str = ","
    _long: tuple[int, str] | None = None  # of a table in long form: the column with names, and the one with values
    count: int = 0  # of rows
    _numeric: set[str] = field(default_factory=set)  # columns that have numbers
    odd: dict[str, str] = field(default_factory=dict)  # by column the first cell that begins as a number and is none

    def __post_init__(self) -> None:
        self._lines = Lines(Growing(self.root, self.path), self.problems)

    def skip(self) -> None:
        """Begin behind what is there."""
        if self._take_head() and self.goes_on:
            self.count += sum(len(_rows(lines, self._separator)) for lines in self._lines.pass_over())
        self._lines.file.offset = self._lines.file.size_bytes()

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the numbers in the next complete rows, and whether there are more."""
        if not self._take_head():
            return (), False
        lines, more = self._lines.next()
        found: list[Reading] = []
        for cells in _rows(lines, self._separator):
            found += self._values(cells)
            self.count += 1
        return found, more

    def rest(self) -> Sequence[Reading]:
        """Return the numbers in a last row that lacks its end, which is whole if it has all columns."""
        if not self._take_head():
            return ()
        rows = _rows([self._lines.rest()], self._separator)
        return list(self._values(rows[0])) if rows and len(rows[0]) == len(self._names) else ()

    def _values(self, cells: Sequence[str]) -> Iterator[Reading]:
        row: dict[str, object] = {}
        if cells and cells[0].startswith("#"):
            return
        for name, cell in zip(self._names, cells, strict=False):
            try:
                row[name] = number_of(plain(with_point(cell) if self._separator == ";" else cell, name))
            except ValueError:
                self._look_at(name, cell)
        if row:
            self._numeric.update(row)
            for name in self.odd.keys() & row.keys():
                self._tell_of(name, self.odd.pop(name))
            if self._long and self._long[1] in row and len(cells) > self._long[0] and (name := cells[self._long[0]]):
                row[name] = row.pop(self._long[1])
            yield from values_of(row, number=self.count)

    def _look_at(self, name: str, cell: str) -> None:
        """Tell of a *cell* that is no number, in a column of numbers: a value that is left out is seen nowhere else."""
        if is_missing(cell) or cell.strip() == name:  # a header that stands there again
            return
        if name in self._numeric:
            self._tell_of(name, cell)
        elif looks_like_number(cell) and len(self._names) > 1:  # else blanks may separate its columns
            self.odd.setdefault(name, cell)

    def _tell_of(self, name: str, cell: str) -> None:
        shown = cell.strip()[:_MOST_SHOWN]
        self.problems.append(f"{name}: {shown} is no number, and was left out, as all others like it")

    def _take_head(self) -> bool:
        """Read up to the header; begin behind it where it is another than before. False where there is none yet."""
        with open_inside(self.root, self.path) as file:
            lines = _head_of(file)
            size = os.fstat(file.fileno()).st_size
        head = b"".join(lines)
        if not head.endswith(b"\n") or _is_comment(lines[-1]):
            if len(head) >= _LONGEST_HEADER_BYTES:
                raise Damaged("its first line is no header of a table")
            return False
        if head != self._head or size < self._lines.file.offset:
            check_encoding(head)
            self._head, self.count = head, 0
            self._lines.file.offset = len(head) - self._take_names(lines)
        return True

    def _take_names(self, lines: Sequence[bytes]) -> int:
        """Learn the names of the columns from *lines*; return how many bytes of these are a row of numbers already."""
        header, row_bytes = lines[-1], 0
        cells = _cells(header)
        are_numbers = [_is_number(cell) for cell in cells]
        if any(are_numbers):
            comments = [line.lstrip().removeprefix(b"#") for line in lines[:-1] if line.lstrip().startswith(b"#")]
            named = [line for line in comments if len(_cells(line)) == len(cells)]
            if all(are_numbers) and not named:
                raise Damaged("its first line has to name the columns")
            if named:
                header, row_bytes = named[-1], len(header)
        self._separator = _separator_of(header)
        self._names = _told_apart(names := _cells(header))
        self._numeric, self.odd = set(), {}
        if others := [name for name in self._names if name not in names]:
            self.problems.append(f"two columns have one name: the second of them is {', '.join(others[:_MOST_TOLD])}")
        lower = [name.lower() for name in self._names]
        of_what = [at for at, name in enumerate(lower) if name in _OF_WHAT]
        self._long = (of_what[0], self._names[lower.index(_VALUE)]) if len(of_what) == 1 and _VALUE in lower else None
        return row_bytes


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return *names* with a number behind each that was there before, as pandas reads them.

    >>> _told_apart(["step", "loss", "loss", ""])
    ['step', 'loss', 'loss.1', '']
    """
    before = [names[:at].count(name) for at, name in enumerate(names)]
    return [f"{name}.{n}" if n and name else name for name, n in zip(names, before, strict=True)]


def _head_of(file: BinaryIO) -> list[bytes]:
    """Return the comments that a table begins with, and the line behind them."""
    lines: list[bytes] = []
    left = _LONGEST_HEADER_BYTES
    while left > 0 and (line := file.readline(left)):
        lines.append(line)
        left -= len(line)
        if not _is_comment(line):
            break
    return lines


def _is_comment(line: bytes) -> bool:
    begin = line.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    return begin.startswith((b"#", b"sep=")) or not begin


def _separator_of(header: bytes) -> str:
    return max(",;\t", key=lambda each: header.count(each.encode()))


def _cells(header: bytes) -> list[str]:
    try:
        cells = next(csv.reader([header.decode("utf-8-sig", "replace")], delimiter=_separator_of(header)), [])
    except csv.Error:
        raise Damaged("its first line is no header of a table") from None
    return [cell.strip() for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        number_of(cell)
    except ValueError:
        return False
    return True


def _rows(lines: Sequence[str], separator: str) -> Sequence[Sequence[str]]:
    try:
        return list(csv.reader((line.replace("\0", "") for line in lines), delimiter=separator))
    except csv.Error:  # a cell longer than its limit
        return [line.split(separator) for line in lines]


@dataclass(slots=True)
class JsonFile:
    """Follows a file that is written anew, whole: a trainer_state.json, or numbers by their names.

    Of the first, the `log_history` is read, which each checkpoint of a Trainer repeats. Another file is a list of rows
    (``[{"epoch": 0, "loss": 0.5}]``), has lists of values or of rows (``{"history": {"loss": [0.5, 0.4]}}``), is one
    row, read whenever it changed, or has a row on each line, as detectron2's metrics.json and RLlib's result.json.
    """

    root: Path
    path: Path
    problems: list[str] = field(default_factory=list)
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

    def _of(self, whole: object) -> Iterator[Reading]:
        """Yield what is new in a JSON value: rows of tables, and numbers that replace those of before."""
        if isinstance(whole, list) and self.path.name != _STATE:
            yield from self._new(_Table(rows=whole))
            return
        if not isinstance(whole, dict):
            return
        if self.path.name == _STATE or isinstance(whole.get("log_history"), list):
            history = whole.get("log_history")
            yield from self._new(_Table(rows=history if isinstance(history, list) else []))
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
            yield from values_of(whole, number=self._count - 1)
        elif whole != self._row:  # what stands beside tables is of the last of their rows
            self._row = whole
            at = max(len(table.rows) for table in tables)
            yield from values_of(whole, number=max(at - 1, 0))

    def _new(self, table: _Table) -> Iterator[Reading]:
        """Yield the numbers in the rows of *table* that were not there before."""
        seen, rows = self._tables.setdefault(table.place, _Seen()), table.rows
        begins = repr(rows[0]) if rows else ""
        if seen.is_of_before and (len(rows) <= seen.n or begins != seen.begins):  # written anew, and not added to
            seen.n = 0
        seen.is_of_before = False
        for number, row in enumerate(rows[seen.n :], seen.n):
            if isinstance(row, dict):
                for reading in values_of(row, number=number):
                    yield replace(reading, name=f"{table.place}{reading.name}")
        seen.n, seen.begins = max(seen.n, len(rows)), begins


@dataclass(slots=True)
class _Seen:
    """How many rows of a table were read, and how the first was written."""

    n: int = 0
    begins: str = ""
    is_of_before: bool = False  # they were there before the program started


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Rows in a JSON value, and what stands before the names in them, such as ``history/``."""

    rows: Sequence[object]
    place: str = ""


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
        rows = [{name: values[at] for name, values in columns.items() if at < len(values)} for at in range(longest)]
        yield _Table(rows=rows, place=place)


def _lists_in(row: Mapping[str, object], place: str) -> Iterator[str]:
    """Yield the names of lists of numbers in a *row*, which is one of several already."""
    for name, value in row.items():
        if isinstance(value, dict) and place.count("/") < DEEPEST:
            yield from _lists_in(value, f"{place}{name}/")
        elif isinstance(value, list) and any(isinstance(each, int | float) for each in value):
            yield f"{place}{name}"
