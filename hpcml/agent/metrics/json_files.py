"""JSON lines, and JSON that is written whole, as the state of a Hugging Face Trainer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.agent.metrics.reading import Damaged, Growing, Lines, Reading, values_of
from hpcml.runs.files import open_inside, parse_json

_LARGEST_BYTES = 16 << 20  # of a file that is read whole each time that it changes


@dataclass(slots=True)
class JsonLines:
    """Follows a file with a JSON object a line; *goes_on*: lines are numbered on behind those that `skip` passes."""

    root: Path
    path: Path
    goes_on: bool = False
    problems: list[str] = field(default_factory=list)
    _lines: Lines = field(init=False)
    count: int = 0  # of rows
    _has_complained: bool = False

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
        for line in filter(str.strip, lines):
            row = _object_in(line)
            if row is not None:
                found += values_of(row, number=self.count)
            elif not self._has_complained:
                self._has_complained = True
                self.problems.append("a line that is no JSON object was left out, and so are all others like it")
            self.count += 1
        return found, more

    def rest(self) -> Sequence[Reading]:
        """Return the numbers in a last line that lacks its end, which is whole if it is JSON."""
        row = _object_in(self._lines.rest())
        return [] if row is None else list(values_of(row, number=self.count))


@dataclass(slots=True)
class JsonFile:
    """Follows a file that is written anew, whole: a Trainer's trainer_state.json, rows, or the numbers of one object.

    Rows are the `log_history` of a Trainer, which repeats them at each checkpoint, or a list of objects. Rows that no
    longer go on as those before are another training's.
    """

    root: Path
    path: Path
    problems: list[str] = field(default_factory=list)
    _rows: Sequence[object] = ()  # that were read
    _stamp: tuple[int, int] = (0, 0)
    _replaced: int = 0  # how often one object took the place of another

    def skip(self) -> None:
        """Begin behind what is there."""
        self.read()
        self._replaced = 0

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the numbers that were not there before."""
        with open_inside(self.root, self.path) as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return (), False
            content = file.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise Damaged(f"has more than {_LARGEST_BYTES >> 20} MiB")
        rows = _rows_in(content)
        if rows is None:
            return (), False  # it is being written
        self._stamp = stamp
        known = len(self._rows) if list(rows[: len(self._rows)]) == list(self._rows) else 0
        self._rows, first = rows, known
        if known == 0 and len(rows) == 1:
            first, self._replaced = self._replaced, self._replaced + 1
        new = enumerate(rows[known:], first)
        return [one for number, row in new if isinstance(row, dict) for one in values_of(row, number=number)], False


def _rows_in(content: bytes) -> Sequence[object] | None:
    """Return the rows in JSON; None for a text that is not complete.

    >>> _rows_in(b'{"a": 1}'), _rows_in(b'{"a": 1'), _rows_in(b'[{"a": 1}]')
    ([{'a': 1}], None, [{'a': 1}])
    """
    try:
        whole = parse_json(content)
    except ValueError:
        return None
    if isinstance(whole, dict):
        history = whole.get("log_history")
        return history if isinstance(history, list) else [whole]
    return whole if isinstance(whole, list) else []


def _object_in(line: str) -> dict[str, object] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
