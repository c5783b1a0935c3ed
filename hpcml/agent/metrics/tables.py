"""Tables as text: CSV as Lightning and Keras write it, and columns between blanks, as simulations do."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hpcml.agent.metrics.numbers import is_missing, looks_like_number, number_of, plain, with_point
from hpcml.agent.metrics.reading import Damaged, Gaps, Growing, Lines, Reading, check_encoding, values_of
from hpcml.runs.files import open_inside

_LONGEST_HEADER_BYTES = 64 << 10
_MOST_TOLD = 3  # names, in a line that people read
_OF_WHAT = ("metric", "name", "key", "tag", "variable")  # columns of a table in long form: step,metric,value
_VALUE = "value"
_MOST_SHOWN = 40  # characters of a cell
_BLANKS = " "
_SEPARATORS = ",;\t"
_COMMENT = re.compile(r"\s*(?:$|[#%!]|(?i:sep=))")
_BETWEEN_BLANKS = re.compile(r'"[^"]*"|\S+')
_RULER = re.compile(r"[\s|+:=_-]*")
_OF_UNITS = re.compile(r"[(\[][^()\[\]]*[)\]]|-")  # a cell below a name, such as [ps]
_MARK = re.compile(r"\s*[#%!]+\s?(?:FIELDS\s)?")  # before the names of columns; PLUMED's word with it
_NUMBERED = re.compile(r"(?:\d+[:=]|\[\d+\])(?=\S)")  # 1:time, as gnuplot's users number columns
_NO_NAMES = "its first line has to name the columns of numbers below it"


@dataclass(slots=True)
class CsvTable:
    """Follows a table with a header; one whose header changed, or that became shorter, is read again.

    Commas, semicolons (numbers may have decimal commas then) or tabs separate the columns, what its header has most of,
    or blanks where it has none of these and numbers stand below its names. Comments may stand before the header, or be
    it, as NumPy's savetxt writes one.

    *goes_on*: rows are numbered on behind those that `skip` passes.
    """

    root: Path
    path: Path
    goes_on: bool = False
    problems: list[str] = field(default_factory=list)
    _lines: Lines = field(init=False)
    _head: bytes = b""  # all that stands before the rows
    _header: str | None = None  # names between blanks, of which the first row says where each ends
    _names: Sequence[str] = ()
    _separator: str = ","
    _long: tuple[int, str] | None = None  # of a table in long form: the column with names, and the one with values
    count: int = 0  # of rows
    _numeric: set[str] = field(default_factory=set)  # columns that have numbers
    odd: dict[str, str] = field(default_factory=dict)  # by column the first cell that begins as a number and is none
    gaps: Gaps = field(default_factory=Gaps)

    def __post_init__(self) -> None:
        self._lines = Lines(Growing(self.root, self.path), self.problems)

    def skip(self) -> None:
        """Begin behind what is there."""
        if self._take_head():
            if self._header is not None and (rows := _rows(self._lines.next()[0], self._separator)):
                self._take_columns(rows[0])
                self._lines.file.offset = len(self._head)
            if self.goes_on:
                rows_passed = (row for lines in self._lines.pass_over() for row in _rows(lines, self._separator))
                self.count += sum(not self._take_heading(row) for row in rows_passed)
        self._lines.file.skip()

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the numbers in the next complete rows, and whether there are more."""
        if not self._take_head():
            return (), False
        lines, more = self._lines.next()
        found: list[Reading] = []
        for cells in _rows(lines, self._separator):
            if not self._take_heading(cells):
                found += self._values(cells)
                self.count += 1
        return found, more

    def rest(self) -> Sequence[Reading]:
        """Return the numbers in a last row that lacks its end, which is whole if it has all columns."""
        if not self._take_head():
            return ()
        rows = _rows([self._lines.rest()], self._separator)
        if not rows or self._take_heading(rows[0]) or len(rows[0]) != len(self._names):
            return ()
        return list(self._values(rows[0]))

    def missing_at_end(self) -> Iterator[str]:
        """Yield a line for each metric that ended without a value."""
        return self.gaps.problems()

    def _values(self, cells: Sequence[str]) -> Iterator[Reading]:
        row: dict[str, object] = {}
        if not cells or cells[0].startswith("#") or not self._fits(cells):
            return
        for name, cell in zip(self._names, cells, strict=False):
            try:
                row[name] = number_of(plain(with_point(cell) if self._separator == ";" else cell, name))
            except ValueError:
                self._look_at(name, cell)
                if is_missing(cell):
                    row[name] = None
        if numeric := {name for name, value in row.items() if value is not None}:
            self._numeric |= numeric
            for name in self.odd.keys() & numeric:
                self._tell_of(name, self.odd.pop(name))
            if self._long and self._long[1] in row and len(cells) > self._long[0] and (name := cells[self._long[0]]):
                row[name] = row.pop(self._long[1])
            yield from values_of(row, number=self.count, gaps=self.gaps)

    def _look_at(self, name: str, cell: str) -> None:
        """Tell of a *cell* that is no number, in a column of numbers: a value that is left out is seen nowhere else."""
        if is_missing(cell):
            return
        if name in self._numeric:
            self._tell_of(name, cell)
        elif looks_like_number(cell) and len(self._names) > 1:  # else blanks may separate its columns
            self.odd.setdefault(name, cell)

    def _tell_of(self, name: str, cell: str) -> None:
        shown = cell.strip()[:_MOST_SHOWN]
        self.problems.append(f"{name}: {shown} is no number, and was left out, as all others like it")

    def _fits(self, cells: Sequence[str]) -> bool:
        """Tell of a row that has cells without a name; return whether the others can be read."""
        n, n_named = len(cells), len(self._names)
        is_fit = self._separator != _BLANKS or n == n_named
        if not is_fit or any(cells[n_named:]):
            what = "was left out" if not is_fit else "lost those that have no name"
            shown = self._separator.join(cells)[:_MOST_SHOWN]
            self.problems.append(f"a row of {n} cells below {n_named} names {what}, as all others like it: {shown}")
        return is_fit

    def _take_head(self) -> bool:
        """Read up to the header; begin behind it where it is another than before. False where there is none yet."""
        with open_inside(self.root, self.path) as file:
            lines = _head_of(file)
            is_anew = self._lines.file.begins_anew(file)
        head = b"".join(lines)
        if not head.endswith(b"\n") or _is_comment(lines[-1]):
            if len(head) >= _LONGEST_HEADER_BYTES:
                raise Damaged("its first line is no header of a table")
            return False
        if head != self._head or is_anew:
            check_encoding(head)
            self._head, self.count = head, 0
            texts = [line.decode("utf-8-sig", "replace").rstrip("\r\n") for line in lines]
            self._lines.file.offset = len(head) - (len(lines[-1]) if self._take_names(texts) else 0)
        return True

    def _take_names(self, lines: Sequence[str]) -> bool:
        """Learn the names of the columns from *lines*; return whether the last of these is a row of numbers already."""
        *comments, header = lines
        self._header, self._numeric, self.odd = None, set(), {}
        separator = _separator_of(header)
        cells = _cells(header, separator)
        are_numbers = [_is_number(cell) for cell in cells]
        if any(are_numbers):
            if (named := _named_in(comments, len(cells))) is not None:
                self._name(named, separator)
                return True
            if all(are_numbers) or separator == _BLANKS:
                raise Damaged(_NO_NAMES)
        self._name(cells, separator)
        if separator == _BLANKS:
            self._header = header
        return False

    def _take_columns(self, cells: Sequence[str]) -> None:
        """Divide a header with blanks as the first row, *cells*, is: the names may have blanks themselves."""
        header, self._header = self._header or "", None
        names = _divided(header, len(cells))
        if names is None and '"' in header and (named := _divided(header, len(cells) - 1)) is not None:
            names = ["_row", *named]  # R's write.table has a name for each row, and none for their column
        if names is None or not all(map(stands_for_number, cells)):
            raise Damaged(_NO_NAMES)
        self._name(names, _BLANKS)

    def _take_heading(self, cells: Sequence[str]) -> bool:
        """Name the columns anew where *cells* are names, as a program that was resumed adds them; else return False."""
        names = [cell.strip() for cell in cells]
        if self._header is not None:
            self._take_columns(cells)
        if not any(set(names).intersection(self._names)) or any(name and stands_for_number(name) for name in names):
            return False
        if " ".join(names) != " ".join(self._names):  # which may have blanks themselves, between which columns stand
            self._name(names, self._separator)
        return True

    def _name(self, names: Sequence[str], separator: str) -> None:
        self._separator = separator
        self._names = _told_apart(names)
        if others := [name for name, given in zip(self._names, names, strict=True) if name != given]:
            self.problems.append(f"two columns have one name: the second of them is {', '.join(others[:_MOST_TOLD])}")
        lower = [name.lower() for name in self._names]
        of_what = [at for at, name in enumerate(lower) if name in _OF_WHAT]
        self._long = (of_what[0], self._names[lower.index(_VALUE)]) if len(of_what) == 1 and _VALUE in lower else None


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return *names* with a number behind each that was there before, as pandas reads them.

    >>> _told_apart(["step", "loss", "loss", ""])
    ['step', 'loss', 'loss.1', '']
    """
    before: Counter[str] = Counter()
    told: list[str] = []
    for name in names:
        told.append(f"{name}.{before[name]}" if before[name] and name else name)
        before[name] += 1
    return told


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
    return _COMMENT.match(line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")) is not None


def _named_in(comments: Sequence[str], n: int) -> Sequence[str] | None:
    """Return the names of *n* columns of numbers, from the *comments* above them; None where they have none."""
    for comment in reversed(comments):
        mark = _MARK.match(comment)
        header = "" if mark is None else comment[mark.end() :]
        names = None if _RULER.fullmatch(header) else _divided(header, n)
        if names is not None and not any(map(_is_number, names)) and not all(map(_OF_UNITS.fullmatch, names)):
            return [_NUMBERED.sub("", name) for name in names]
    return None


def _divided(header: str, n: int) -> list[str] | None:
    """Return the *n* names in a *header*, whatever separates them; None where it has not so many.

    >>> _divided("time, energy", 2), _divided("Time (ps)  Total energy", 2), _divided("a b", 3)
    (['time', 'energy'], ['Time (ps)', 'Total energy'], None)
    """
    ways = (*(_cells(header, each) for each in (*_SEPARATORS, _BLANKS)), re.split(r"\s{2,}|\t", header.strip()))
    return next((list(names) for names in ways if len(names) == n), None)


def _separator_of(header: str) -> str:
    most = max(_SEPARATORS, key=header.count)
    return most if most in header or len(_BETWEEN_BLANKS.findall(header)) < 2 else _BLANKS


def _cells(line: str, separator: str) -> list[str]:
    if separator == _BLANKS:
        return [cell.strip('"') for cell in _BETWEEN_BLANKS.findall(line)]
    try:
        cells = next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        raise Damaged("its first line is no header of a table") from None
    return [cell.strip() for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        number_of(cell)
    except ValueError:
        return False
    return True


def stands_for_number(cell: str) -> bool:
    """Tell whether a cell is a number, stands where there is none, or is meant for one."""
    return _is_number(cell) or is_missing(cell) or looks_like_number(cell)


def _rows(lines: Sequence[str], separator: str) -> Sequence[Sequence[str]]:
    if separator == _BLANKS:
        rows = (_cells(line, _BLANKS) for line in lines if not (_COMMENT.match(line) or _RULER.fullmatch(line)))
        return [cells for cells in rows if not all(map(_OF_UNITS.fullmatch, cells))]
    try:
        return list(csv.reader((line.replace("\0", "") for line in lines), delimiter=separator))
    except csv.Error:  # a cell longer than its limit
        return [line.split(separator) for line in lines]
