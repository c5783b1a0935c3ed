"""What every reader of a foreign file gives: values with names and steps, a piece of the file at a time.

The files are the program's, and may be torn, damaged or made to harm: a reader takes a bounded piece of a regular file
inside the working directory, and never waits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from hpcml.agent.metrics.numbers import number_of, plain
from hpcml.runs.files import open_inside

PIECE_BYTES = 1 << 20
_MOST_COUNTED_BYTES = 64 << 20
_COMPARED_BYTES = 256
# What a row calls its step: the first of them that it has.
STEPS = ("step", "global_step", "_step", "iteration", "iter", "it", "timestep", "nstep", "epoch", "round")
_TIMES = ("_timestamp", "timestamp", "wall_time", "time")
_FIRST_UNIX_S = 1e9  # 2001: a smaller "time" is a duration, and a metric
_OTHER_TEXTS = (b"\xff\xfe", b"\xfe\xff")  # how UTF-16 begins
_DEEPEST = 4  # levels of a nested row, which make names such as train/loss
_SETTINGS = frozenset({"args", "arguments", "config", "cfg", "hparams", "hyperparameters", "params", "settings"})
_STEP_BITS = 63


class Reader(Protocol):
    """Follows one file that grows."""

    problems: list[str]  # what was left out so far, a line each; whoever tells them clears it

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the next values, and whether there is more to read now.

        Raises `OSError` where the file cannot be read now, and `Damaged` where it never will be.
        """

    def skip(self) -> None:
        """Take all that is there now for read; raises as `read` does."""


class Taker(Protocol):
    """Takes what was read, as a journal does."""

    def metrics(self, step: int, values: Mapping[str, float], *, at: float | None = None) -> None:
        """Take the values of a step, measured at *at* (unix seconds); None: nobody knows when."""

    def event(self, name: str, details: Mapping[str, Any] | None = None) -> None:
        """Take an event."""

    def close(self) -> None:
        """Take no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value. `at` is the time in unix seconds that the file gives, None where it gives none."""

    name: str
    value: float
    step: int
    at: float | None = None


class Damaged(Exception):  # noqa: N818 - said of a file
    """A file cannot be read on; the message is one line without the file's name."""


@dataclass(slots=True)
class Growing:
    """A file below *root* that is only added to, and how far it was read."""

    root: Path
    path: Path
    offset: int = 0
    _skipped: tuple[int, int, bytes] = (0, 0, b"")  # so many bytes, when they were written, and the last of them

    def piece(self) -> bytes:
        """Return at most 1 MiB from `offset` on, which stays; a file that is written anew is read from its begin."""
        with open_inside(self.root, self.path) as file:
            self.begins_anew(file)
            file.seek(self.offset)
            return file.read(PIECE_BYTES)

    def skip(self) -> None:
        """Begin behind what is there."""
        with open_inside(self.root, self.path) as file:
            about = os.fstat(file.fileno())
            self.offset = about.st_size
            self._skipped = about.st_size, about.st_mtime_ns, _end(file, about.st_size)

    def begins_anew(self, file: BinaryIO) -> bool:
        """Go to the begin of *file* where that has become shorter, or has other bytes than those that were skipped."""
        about, (size, written_ns, end) = os.fstat(file.fileno()), self._skipped
        is_same = _end(file, size) == end and (about.st_size, about.st_mtime_ns > written_ns) != (size, True)
        if about.st_size >= self.offset and is_same:
            return False
        self.offset, self._skipped = 0, (0, 0, b"")
        return True

    def size_bytes(self) -> int:
        """Return how long the file is now."""
        with open_inside(self.root, self.path) as file:
            return os.fstat(file.fileno()).st_size


def _end(file: BinaryIO, size: int) -> bytes:
    file.seek(max(0, size - _COMPARED_BYTES))
    return file.read(min(size, _COMPARED_BYTES))


@dataclass(slots=True)
class Lines:
    """The complete lines of a growing file; what is longer than a piece is no line, and stepped over."""

    file: Growing
    problems: list[str] = field(default_factory=list)

    def next(self) -> tuple[Sequence[str], bool]:
        """Return the next lines without their ends, and whether there is more."""
        data = self.file.piece()
        if not self.file.offset:
            check_encoding(data)
        is_full = len(data) == PIECE_BYTES
        end = data.rfind(b"\n") + 1
        if not end and is_full:
            self.problems.append(f"a line of more than {PIECE_BYTES >> 20} MiB was left out")
            end = len(data)
            data = b""
        self.file.offset += end
        return data[:end].decode("utf-8", "replace").splitlines(), is_full

    def rest(self) -> str:
        """Return a last line that lacks its end, "" without one; to be asked once nobody writes to it any more."""
        data = self.file.piece()
        self.file.offset += len(data)
        return "" if b"\n" in data or len(data) == PIECE_BYTES else data.decode("utf-8", "replace")

    def pass_over(self) -> Iterator[Sequence[str]]:
        """Yield the complete lines that are there now, to be counted.

        Those of the first 64 MiB: the program waits for it to start, and a file may be made to harm.
        """
        more = True
        while more and self.file.offset < _MOST_COUNTED_BYTES:
            lines, more = self.next()
            yield lines
        self.problems.clear()  # told when those lines came


def check_encoding(begin: bytes) -> None:
    """Raise `Damaged` for a text that is no UTF-8, by its *begin*."""
    if begin.startswith(_OTHER_TEXTS):
        raise Damaged("is UTF-16, and has to be UTF-8")


def values_of(row: Mapping[str, object], *, number: int, steps: Sequence[str] = STEPS) -> Iterator[Reading]:
    """Yield the numbers of a *row* of a table; its step is what the row says under one of *steps*, else *number*.

    Keys that begin with ``_`` are the logger's own. An epoch is a value where there is a step beside it. Text that is
    no number, truth values, lists and mappings called as settings are left out; other nested mappings give names with a
    slash.

    >>> [(each.name, each.step) for each in values_of({"Step": 5, "loss": "0.5", "train": {"acc": 1}}, number=0)]
    [('loss', 5), ('train/acc', 5)]
    """
    called = {name.lower().replace(" ", "_"): name for name in row if isinstance(name, str)}
    keys = (called[name] for name in steps if name in called)
    key = next((name for name in keys if _step(row[name]) is not None), None)
    step = number if key is None else _step(row[key])
    assert step is not None
    clocks = (called[name] for name in _TIMES if name in called)
    clock = next((name for name in clocks if (_number(row[name]) or 0) > _FIRST_UNIX_S), None)
    at = None if clock is None else _number(row[clock])
    rest = {name: value for name, value in row.items() if name not in (key, clock)}
    for name, value in _flat(rest, _DEEPEST):
        yield Reading(name=name, value=value, step=step, at=at)


def _flat(row: Mapping[str, object], levels: int) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if not isinstance(key, str) or key.startswith("_") or not key:
            continue
        if isinstance(value, Mapping):
            if levels and key.lower() not in _SETTINGS:
                yield from ((f"{key}/{name}", number) for name, number in _flat(value, levels - 1))
        elif (number := _number(value)) is not None:
            yield key, number


def _number(value: object) -> float | None:
    """Return a number, or the one that a text is, as fairseq's "0.53" and the nan that JSON has none for; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return number_of(plain(value, "")) if isinstance(value, str) else float(value)
    except (OverflowError, ValueError):
        return None


def _step(value: object) -> int | None:
    number = _number(value)
    is_whole = number is not None and math.isfinite(number) and number == int(number)
    return whole_step(int(number)) if is_whole and number is not None else None


def whole_step(step: int) -> int | None:
    """Return *step* where a journal can hold it, in 64 bits with a sign; else None."""
    return step if step.bit_length() <= _STEP_BITS else None
