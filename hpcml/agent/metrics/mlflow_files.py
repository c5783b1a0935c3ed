"""What MLflow leaves without a server: its SQLite database, its default, or the folder `mlruns`."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.agent.metrics.reading import Damaged, Growing, Lines, Reading, whole_step

_ROWS = 5000  # a read: the program's own writing waits meanwhile
_WITHIN_S = 1.0
_INSTRUCTIONS = 10_000  # of SQLite, between looks at the clock
_LONGEST_TEXT_BYTES = 1 << 20
_OF_THE_MACHINE = "system/"  # MLflow's samples of the node: hpcml has its own
_LARGEST = 1.7976931348623157e308  # what MLflow stores for an infinity (mlflow/store/tracking/sqlalchemy_store.py)
_QUERY = (
    "SELECT rowid, key, value, timestamp, step, is_nan, run_uuid FROM metrics WHERE rowid > ? ORDER BY rowid LIMIT ?"
)


@dataclass(slots=True)
class _Steps:
    """Numbers values that were logged without a step: MLflow writes 0 for each of them.

    A metric's values count as such for as long as all of them have been at step 0.
    """

    _at_zero: dict[tuple[str, str], int | None] = field(default_factory=dict)  # None: has had another step

    def told(self, reading: Reading) -> Reading:
        """Return *reading*, numbered where it is one of several at step 0."""
        key = (reading.stream, reading.name)
        before = self._at_zero.get(key, 0)
        self._at_zero[key] = None if reading.step or before is None else before + 1
        return reading if reading.step or before is None else replace(reading, step=before)


@dataclass(slots=True)
class MlflowDatabase:
    """Follows the table `metrics` of an `mlflow.db`."""

    root: Path
    path: Path
    problems: list[str] = field(default_factory=list)
    _last_row: int = 0
    _steps: _Steps = field(default_factory=_Steps)

    def skip(self) -> None:
        """Begin behind what is there."""
        for row in self._ask("SELECT max(rowid) FROM metrics", ()):
            self._last_row = row[0] if isinstance(row[0], int) else 0

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the next values, and whether there are more."""
        rows = self._ask(_QUERY, (self._last_row, _ROWS))
        found: list[Reading] = []
        for number, *row in rows:
            if not isinstance(number, int):
                raise Damaged("its table of metrics is none of MLflow's")
            self._last_row = number
            if (reading := _reading(*row)) is not None:
                found.append(self._steps.told(reading))
        return found, len(rows) == _ROWS

    def _ask(self, query: str, values: tuple[int, ...]) -> list[tuple[object, ...]]:
        """Return the rows, or none where the program is writing, or has not made the table yet."""
        if self.path.is_symlink() or not self.path.is_file():
            raise OSError("is no regular file")
        until = time.monotonic() + _WITHIN_S
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=0)) as database:
                database.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT_BYTES)
                return database.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise Damaged(f"did not answer within {_WITHIN_S:g} s") from error
            return []  # locked, or without its tables yet
        except sqlite3.DatabaseError as error:
            raise Damaged(f"is no database that can be read: {error}") from error


def _reading(name: object, value: object, at_ms: object, step: object, is_nan: object, run: object) -> Reading | None:
    if not (isinstance(name, str) and isinstance(value, int | float) and isinstance(step, int)):
        return None
    if name.startswith(_OF_THE_MACHINE):
        return None
    number = math.nan if is_nan else math.copysign(math.inf, value) if abs(value) >= _LARGEST else float(value)
    at = at_ms / 1000 if isinstance(at_ms, int | float) else None
    return Reading(name=name, value=number, step=step, at=at, stream=str(run)[:8])


@dataclass(slots=True)
class MlflowMetric:
    """Follows a file of mlruns: one metric of one run, with a line "milliseconds value step" for each value."""

    root: Path
    path: Path
    problems: list[str] = field(default_factory=list)
    _lines: Lines = field(init=False)
    _name: str = field(init=False)
    _run: str = field(init=False)
    _steps: _Steps = field(default_factory=_Steps)

    def __post_init__(self) -> None:
        parts = self.path.parts
        place = len(parts) - 1 - parts[::-1].index("metrics")
        self._name, self._run = "/".join(parts[place + 1 :]), parts[place - 1][:8]
        self._lines = Lines(Growing(self.root, self.path), self.problems)

    def skip(self) -> None:
        """Begin behind what is there."""
        self._lines.file.offset = self._lines.file.size_bytes()

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the values in the next complete lines, and whether there are more."""
        lines, more = self._lines.next()
        found: list[Reading] = []
        for line in lines if not self._name.startswith(_OF_THE_MACHINE) else ():
            try:
                at_ms, value, step = line.split()[:3]
                reading = Reading(
                    name=self._name, value=float(value), step=int(step), at=int(at_ms) / 1000, stream=self._run
                )
            except (ValueError, OverflowError):
                continue
            if whole_step(reading.step) is not None:
                found.append(self._steps.told(reading))
        return found, more
