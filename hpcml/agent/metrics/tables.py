"""Tables as text: CSV as Lightning and Keras write it, with a header and commas, semicolons or tabs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hpcml.agent.metrics.numbers import is_missing, looks_like_number, number_of, plain, with_point
from hpcml.agent.metrics.reading import Damaged, Growing, Lines, Reading, check_encoding, values_of
from hpcml.runs.files import open_inside

_LONGEST_HEADER_BYTES = 64 << 10
_MOST_TOLD = 3  # names, in a line that people read
_OF_WHAT = ("metric", "name", "key", "tag", "variable")  # columns of a table in long form: step,metric,value
_VALUE = "value"
_MOST_SHOWN = 40  # characters of a cell
_SEPARATORS = ",;\t"


@dataclass(slots=True)
class CsvTable:
    """Follows a table with a header; one whose header changed, or that became shorter, is read again.

    Commas, semicolons (numbers may have decimal commas then) or tabs separate the columns: what its header has most of.
    Comments (#) may stand before the header, or be it. *goes_on*: rows are numbered on behind those that `skip` passes.
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
            rows = (row for lines in self._lines.pass_over() for row in self._rows(lines))
            self.count += sum(not self._is_heading(row) for row in rows)
        self._lines.file.skip()

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the numbers in the next complete rows, and whether there are more."""
        if not self._take_head():
            return (), False
        lines, more = self._lines.next()
        found: list[Reading] = []
        for cells in self._rows(lines):
            if self._is_heading(cells):  # a program that was resumed adds it again
                self._take_names([cell.strip() for cell in cells])
            else:
                found += self._values(cells)
                self.count += 1
        return found, more

    def rest(self) -> Sequence[Reading]:
        """Return the numbers in a last row that lacks its end, which is whole if it has all columns."""
        if not self._take_head():
            return ()
        rows = self._rows([self._lines.rest()])
        if not rows or self._is_heading(rows[0]) or len(rows[0]) != len(self._names):
            return ()
        return list(self._values(rows[0]))

    def _rows(self, lines: Sequence[str]) -> Sequence[Sequence[str]]:
        try:
            return list(csv.reader((line.replace("\0", "") for line in lines), delimiter=self._separator))
        except csv.Error:  # a cell longer than its limit
            return [line.split(self._separator) for line in lines]

    def _values(self, cells: Sequence[str]) -> Iterator[Reading]:
        if not cells or cells[0].startswith("#"):
            return
        if any(cells[len(self._names) :]):
            shown = self._separator.join(cells)[:_MOST_SHOWN]
            self.problems.append(f"a row of {len(cells)} cells below {len(self._names)} names lost the others: {shown}")
        row: dict[str, object] = {}
        for name, cell in zip(self._names, cells, strict=False):
            try:
                row[name] = number_of(plain(with_point(cell) if self._separator == ";" else cell, name))
            except ValueError:
                if looks_like_number(cell) and not is_missing(cell):
                    self.odd.setdefault(name, cell)
        self._numeric |= row.keys()
        for name in self.odd.keys() & self._numeric:  # a value that is left out is seen nowhere else
            shown = self.odd.pop(name).strip()[:_MOST_SHOWN]
            self.problems.append(f"{name}: {shown} is no number, and was left out, as all others like it")
        if self._long and self._long[1] in row and len(cells) > self._long[0] and (metric := cells[self._long[0]]):
            row[metric] = row.pop(self._long[1])
        yield from values_of(row, number=self.count)

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
            self._head, self.count, self._lines.file.offset = head, 0, len(head)
            *comments, header = [line.decode("utf-8-sig", "replace").strip() for line in lines]
            self._separator = max(_SEPARATORS, key=header.count)
            cells = self._rows([header])[0]
            if any(map(_is_number, cells)):  # then a comment above may name the columns
                named = self._rows([comments[-1].lstrip("# ")])[0] if comments else []
                if len(named) != len(cells) or any(map(_is_number, named)):
                    raise Damaged("its first line has to name the columns of numbers below it")
                cells = named
                self._lines.file.offset -= len(lines[-1])
            self._take_names([cell.strip() for cell in cells])
        return True

    def _is_heading(self, cells: Sequence[str]) -> bool:
        names = [cell.strip() for cell in cells]
        has_numbers = any(name and stands_for_number(name) for name in names)
        return not has_numbers and any(set(names).intersection(self._names))

    def _take_names(self, names: Sequence[str]) -> None:
        self._names, self._numeric, self.odd = _told_apart(names), set(), {}
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
    text = line.decode("utf-8-sig", "replace").strip()
    return not text or text.startswith(("#", "sep="))


def _is_number(cell: str) -> bool:
    try:
        number_of(cell)
    except ValueError:
        return False
    return True


def stands_for_number(cell: str) -> bool:
    """Tell whether a cell is a number, stands where there is none, or is meant for one."""
    return _is_number(cell) or is_missing(cell) or looks_like_number(cell)
