"""The lines of a journal, read: complete ones decoded, torn and foreign ones counted. docs/journal.md is the format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

FORMAT = 1
USER = "user"  # the writer of what people say of a run, which changes nothing of how it went
_SUM = b',"c":'  # behind it the sum of all that is before it
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line: who writes, for which run, since when."""

    journal: str  # unique for each file ever written
    run: str  # the run's uid
    attempt: int
    writer: str  # launch | agent | rank<r> | collect | user
    host: str
    pid: int
    t0: float  # unix seconds; every `t_s` below counts from here, by a clock that never jumps


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Values of one step; nan and infinities are kept as floats."""

    seq: int
    t_s: float
    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    seq: int
    t_s: float
    name: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What a stretch of a journal held. `end` is the offset after its last complete line."""

    header: Header | None  # the first in a stretch that began at offset 0: its first line, unless that is damaged
    records: Sequence[Metrics | Event]
    lines: int
    bad_lines: int
    end: int


def parse_chunk(data: bytes, *, offset: int, journal: str | None = None) -> Chunk:
    """Decode the complete lines of *data*, which begins at byte *offset* of its file, the one called *journal*.

    A line without its newline is left for the next time; a line that is no record (torn by a crash, zeroed by a
    file system) is skipped and counted, and reading goes on behind it. A writer may repeat its header.
    """
    end = data.rfind(b"\n") + 1
    header: Header | None = None
    records: list[Metrics | Event] = []
    bad_lines = 0
    lines = data[:end].split(b"\n")[:-1]
    for line in lines:
        parsed = _parse_line(line)
        if parsed is None:
            bad_lines += bool(line)  # an empty line is how a writer steps over its own torn one
        elif isinstance(parsed, Header):
            if offset == 0 and header is None:
                header, journal = parsed, journal or parsed.journal
            bad_lines += journal is not None and parsed.journal != journal
        else:
            records.append(parsed)
    return Chunk(header=header, records=records, lines=len(lines), bad_lines=bad_lines, end=offset + end)


def read_journal(path: Path) -> Chunk:
    """Return everything in *path* that is complete."""
    return parse_chunk(path.read_bytes(), offset=0)


def events(chunks: Sequence[Chunk], name: str) -> Iterator[Event]:
    """Yield the events called *name* of all *chunks*."""
    for chunk in chunks:
        for record in chunk.records:
            if isinstance(record, Event) and record.name == name:
                yield record


def _parse_line(line: bytes) -> Header | Metrics | Event | None:
    try:
        raw = json.loads(line)
        if "c" in raw and crc32(line[: line.rfind(_SUM)]) != raw["c"]:
            return None  # some byte is another than was written
        if "hpcml" in raw:
            return _header(raw)
        if raw["k"] == "m":
            values = {str(name): _number(value) for name, value in raw["v"].items()}
            return Metrics(seq=int(raw["s"]), t_s=float(raw["t"]), step=int(raw["i"]), values=values)
        if raw["k"] == "e":
            details = raw.get("d", {})
            return Event(seq=int(raw["s"]), t_s=float(raw["t"]), name=str(raw["n"]), details=dict(details))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # not only torn: 1e999 is no step, and a line may be nothing but brackets
    return None


def _header(raw: dict[str, Any]) -> Header | None:
    if raw["hpcml"] != FORMAT:
        return None
    return Header(
        journal=str(raw["journal"]),
        run=str(raw["run"]),
        attempt=int(raw["attempt"]),
        writer=str(raw["writer"]),
        host=str(raw["host"]),
        pid=int(raw["pid"]),
        t0=float(raw["t0"]),
    )


def _number(value: object) -> float:
    if type(value) is float:  # nearly always, and this is where reading spends its time
        return value
    if isinstance(value, str):
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)
