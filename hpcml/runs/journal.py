"""Reading journals: the files of JSON lines in which a run's processes record metrics and events.

Each writer (agent, rank, launcher, user) has its own file, appended to line by line by hpcml_client; docs/journal.md is
the format. Complete lines are decoded here; lines torn by a crash are counted and skipped, so that a damaged journal
loses single records and never the rest. Used to fill the store, by the agent, and by `hpcml top`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from hpcml.errors import HpcmlError
from hpcml.runs.files import open_descriptor, parse_json

FORMAT = 1
USER = "user"  # the writer of what people say of a run, which changes nothing of how it went
READ = "read"  # the writer of metrics that were read from what a run had printed, once it had ended
CLOSED = "closed"  # the event that ends a journal whose header promises it
_SUM = b',"c":'  # behind it the sum of all that is before it
_CHUNK_BYTES = 4 << 20
_END_BYTES = 64 << 10
_LONGEST_LINE = 64 << 20  # bytes: the longest that a program has written had some MiB
_FARTHEST_S = 3e10  # a thousand years: two such times make one that calendars can write
_MOST_ATTEMPTS = 2**31
_FLOATS = {float}
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of a journal: which process writes it, for which run, since when."""

    journal: str  # unique for each file ever written
    run: str  # the run's uid
    attempt: int
    writer: str  # launch | agent | rank<r> | collect | user | read
    host: str
    pid: int
    t0: float  # unix seconds; every `t_s` below counts from here, by a clock that never jumps
    closes: bool = False  # it promises that its last record is the event "closed"


@dataclass(slots=True)  # not frozen: that takes most of the time, and there is one for each line
class Metrics:
    """The metrics of one step; nan and infinities are floats here (strings in the file).

    `seq` numbers the records of a journal in order; `t_s` is in seconds since the header's `t0`.
    """

    seq: int
    t_s: float
    step: int
    values: dict[str, float]
    is_counted: bool = False  # nobody said the step: values are numbered from 0, in each attempt anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event, such as "attempt_started".

    `details` is what docs/journal.md lists for its name; `seq` and `t_s` are as in `Metrics`.
    """

    seq: int
    t_s: float
    name: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The records of a part of a journal; `end` is the byte offset after its last complete line."""

    header: Header | None  # the first in a stretch that began at offset 0: its first line, unless that is damaged
    records: Sequence[Metrics | Event]
    lines: int
    bad_lines: int
    end: int


def parse_chunk(data: bytes, *, offset: int, journal: str | None = None) -> Chunk:
    """Decode the complete lines of *data*, which begins at byte *offset* of the journal with the id *journal*.

    A last line without its newline is left for the next call. A line that is no valid record (torn by a crash, zeroed
    by a file system, wrong checksum, header of another journal) is counted in `bad_lines` and skipped. A writer may
    repeat its header. To follow a growing file, read on from `Chunk.end`:

        chunk = parse_chunk(file.read(), offset=chunk.end, journal=header.journal)
    """
    end = data.rfind(b"\n") + 1
    header: Header | None = None
    records: list[Metrics | Event] = []
    bad_lines = 0
    lines = data[:end].split(b"\n")[:-1]
    first: bytes | None = None
    for line in lines:
        if line == first:
            continue  # the header again
        parsed = _parse_line(line)
        if parsed is None:
            bad_lines += bool(line)  # an empty line is how a writer steps over its own torn one
        elif isinstance(parsed, Header):
            if offset == 0 and header is None:
                header, journal = parsed, journal or parsed.journal
            is_foreign = journal is not None and parsed.journal != journal
            bad_lines += is_foreign
            first = first if is_foreign else line
        else:
            records.append(parsed)
    return Chunk(header=header, records=records, lines=len(lines), bad_lines=bad_lines, end=offset + end)


def read_piece(path: Path | str, offset: int, limit: int) -> bytes:
    """Return up to *limit* bytes from *offset*, or as many more as it takes to reach the end of a line.

    So a line that is longer than *limit* is still read whole, up to 64 MiB: behind a longer one nothing is read any
    more (`unread`). The last line may be incomplete, since its writer may be at work. Raises `HpcmlError` where *path*
    cannot be read.
    """
    try:
        descriptor, size = open_descriptor(path)
        try:  # a large buffer costs more than a short file
            data = os.pread(descriptor, max(0, min(limit, size - offset)), offset)
            while b"\n" not in data and len(data) < _LONGEST_LINE:
                more = os.pread(descriptor, max(limit, 1 << 16, len(data)), offset + len(data))
                if not more:
                    break
                data += more
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error
    is_too_long = len(data) >= _LONGEST_LINE and b"\n" not in data[:_LONGEST_LINE]
    return b"" if is_too_long else data


def unread(path: Path | str, offset: int) -> str | None:
    """Return in one line that *path* ends in something that is no line and never will be; None where it does not.

    At *offset*, `read_piece` found no whole line there. It must still be there.
    """
    left = os.stat(path).st_size - offset  # noqa: PTH116 - path may be a text
    if left <= _LONGEST_LINE:
        return None
    return f"{path}: its last {left / 1e6:,.0f} MB hold no line and are not read (what no journal writes)"


def pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the journal *path* by places and pieces of some MiB, of whole lines and the begin of one more.

    Raises `HpcmlError` where it cannot be read.
    """
    at = 0
    while b"\n" in (data := read_piece(path, at, _CHUNK_BYTES)):
        yield at, data
        at += data.rindex(b"\n") + 1


def is_cut_short(path: Path) -> bool:
    """Tell whether *path* is a journal that promises an end and lacks it, as after a write that failed at last.

    Its last 64 KiB are looked at. Raises `HpcmlError` where it cannot be read.
    """
    beginning = read_piece(path, 0, 1)
    header = parse_chunk(beginning, offset=0).header
    if header is None or not header.closes:
        return False
    offset = max(0, path.stat().st_size - _END_BYTES)
    return not any(events([parse_chunk(read_piece(path, offset, _END_BYTES), offset=offset)], CLOSED))


def read_journal(path: Path | str) -> Chunk:
    """Return all complete records of the journal *path*; raise `HpcmlError` where it cannot be read."""
    found, lines, bad_lines, at = None, 0, 0, 0
    records: list[Metrics | Event] = []
    while True:
        data = read_piece(path, at, _CHUNK_BYTES)
        chunk = parse_chunk(data, offset=at, journal=found.journal if found else None)
        if at == 0 and len(data) < _CHUNK_BYTES:
            return chunk  # nearly always
        found = found or chunk.header
        records += chunk.records
        lines, bad_lines = lines + chunk.lines, bad_lines + chunk.bad_lines
        if chunk.end == at or len(data) < _CHUNK_BYTES:
            return Chunk(header=found, records=records, lines=lines, bad_lines=bad_lines, end=chunk.end)
        at = chunk.end


def read_on(path: Path | str, before: Chunk | None) -> Chunk:
    """Return what `read_journal` does; *before* where that was all of the journal, and it has not grown since.

    The file is opened in any case: that is what makes NFS ask its server.
    """
    if before is not None:
        try:
            descriptor, size = open_descriptor(path)
        except OSError as error:
            raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error
        os.close(descriptor)
        if size == before.end:
            return before
    return read_journal(path)


def events(chunks: Sequence[Chunk], name: str) -> Iterator[Event]:
    """Yield the events called *name* of all *chunks*, in their order."""
    for chunk in chunks:
        for record in chunk.records:
            if isinstance(record, Event) and record.name == name:
                yield record


def _is_damaged(line: bytes, raw: Mapping[str, Any]) -> bool:
    """Whether some byte is another than was written."""
    return "c" in raw and crc32(line[: line.rfind(_SUM)]) != raw["c"]


def _metrics(raw: Mapping[str, Any], step: int, seq: int) -> Metrics:
    values, t_s = raw["v"], raw["t"]
    if set(map(type, values.values())) != _FLOATS:
        values = {str(name): _number(value) for name, value in values.items()}
    if not (type(t_s) is float and -_FARTHEST_S < t_s < _FARTHEST_S):
        t_s = _seconds(t_s)
    return Metrics(seq, t_s, step, values, "counted" in raw)


def _parse_line(line: bytes) -> Header | Metrics | Event | None:
    try:
        raw = parse_json(line)
        if _is_damaged(line, raw):
            return None
        if "hpcml" in raw:
            return _header(raw)
        if raw["k"] == "m":
            return _metrics(raw, int(raw["i"]), int(raw["s"]))
        if raw["k"] == "e":
            details = {**raw.get("d", {})}  # of a table alone
            return Event(seq=int(raw["s"]), t_s=_seconds(raw["t"]), name=str(raw["n"]), details=details)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # not only torn: 1e999 is no step, and a line may be nothing but brackets
    return None


def _header(raw: dict[str, Any]) -> Header | None:
    if raw["hpcml"] != FORMAT or abs(int(raw["attempt"])) >= _MOST_ATTEMPTS:
        return None
    return Header(
        journal=str(raw["journal"]),
        run=str(raw["run"]),
        attempt=int(raw["attempt"]),
        writer=str(raw["writer"]),
        host=str(raw["host"]),
        pid=int(raw["pid"]),
        t0=_seconds(raw["t0"]),
        closes=raw.get("closes") is True,
    )


def _seconds(value: Any) -> float:  # noqa: ANN401
    """Return a time or a duration; raise `ValueError` where no calendar has it, as for nan."""
    seconds = float(value)
    if not abs(seconds) < _FARTHEST_S:
        raise ValueError(f"{value!r} is no time")
    return seconds


def _number(value: object) -> float:
    if type(value) is float:  # nearly always, and this is where reading spends its time
        return value
    if isinstance(value, str):
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)
