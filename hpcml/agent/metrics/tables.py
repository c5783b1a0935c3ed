"""Tables as text: CSV as Lightning and Keras write it, with a header and commas, semicolons or tabs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.agent.metrics.numbers import is_missing, looks_like_number, number_of, plain
from hpcml.agent.metrics.reading import Damaged, Growing, Lines, Reading, check_encoding, values_of
from hpcml.runs.files import open_inside

_LONGEST_HEADER_BYTES = 64 << 10
_MOST_SHOWN = 40  # characters of a cell
_SEPARATORS = ",;\t"


@dataclass(slots=True)
class CsvTable:
    """Follows a table with a header; one whose header changed, or that became shorter, is read again.

    Commas, semicolons or tabs separate the columns: what its header has most of. The header may be a comment (#), as
    NumPy's savetxt writes it; lines of comments below it are passed over. *goes_on*: rows are numbered on behind those
    that `skip` passes.
    """

    root: Path
    path: Path
    goes_on: bool = False
    problems: list[str] = field(default_factory=list)
    _lines: Lines = field(init=False)
    _head: bytes = b""  # all that stands before the rows
    _names: Sequence[str] = ()
    _separator: str = ","
    count: int = 0  # of rows
    _numeric: set[str] = field(default_factory=set)  # columns that have numbers
    _odd: set[str] = field(default_factory=set)  # columns of which a value was left out

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
                row[name] = number_of(plain(cell, name))
            except ValueError:
                if name in self._numeric - self._odd and looks_like_number(cell) and not is_missing(cell):
                    self._odd.add(name)
                    shown = cell.strip()[:_MOST_SHOWN]
                    self.problems.append(f"{name}: {shown} is no number, and was left out, as all others like it")
        self._numeric |= row.keys()
        yield from values_of(row, number=self.count)

    def _take_head(self) -> bool:
        """Read up to the header; begin behind it where it is another than before. False where there is none yet."""
        with open_inside(self.root, self.path) as file:
            head = file.readline(_LONGEST_HEADER_BYTES)
            is_anew = self._lines.file.begins_anew(file)
        if not head.endswith(b"\n"):
            if len(head) >= _LONGEST_HEADER_BYTES:
                raise Damaged("its first line is no header of a table")
            return False
        if head != self._head or is_anew:
            check_encoding(head)
            self._head, self.count, self._lines.file.offset = head, 0, len(head)
            header = head.decode("utf-8-sig", "replace").strip().lstrip("# ")
            self._separator = max(_SEPARATORS, key=header.count)
            cells = self._rows([header])[0] if header else []
            if not cells or any(map(_is_number, cells)):
                raise Damaged("its first line has to name the columns of numbers below it")
            self._take_names([cell.strip() for cell in cells])
        return True

    def _is_heading(self, cells: Sequence[str]) -> bool:
        names = [cell.strip() for cell in cells]
        has_numbers = any(name and stands_for_number(name) for name in names)
        return not has_numbers and any(set(names).intersection(self._names))

    def _take_names(self, names: Sequence[str]) -> None:
        self._names, self._numeric, self._odd = names, set(), set()
        if others := [name for name, count in Counter(filter(None, names)).items() if count > 1]:
            self.problems.append(f"several columns are called {', '.join(others)}: the last of them is read")


def _is_number(cell: str) -> bool:
    try:
        number_of(cell)
    except ValueError:
        return False
    return True


def stands_for_number(cell: str) -> bool:
    """Tell whether a cell is a number, stands where there is none, or is meant for one."""
    return _is_number(cell) or is_missing(cell) or looks_like_number(cell)
