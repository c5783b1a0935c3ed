"""The journals of a run: reading pieces of their files, and how far each was read (cursors in table ``journal``).

Used by `hpcml.store.ingest`; the functions about files also serve telemetry. `rank_journals` orders the journals of a
run: where several report the same step, the one with the highest rank counts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, insert, select, update

from hpcml.errors import HpcmlError
from hpcml.runs.journal import Header, parse_chunk, read_piece
from hpcml.store.curves import Precedence
from hpcml.store.parse import Stretch, storable
from hpcml.store.schema import JOURNAL

_HEADER_WITHIN = 4 << 20  # bytes, in which a header is looked for if the first line is damaged


def sizes_in(folder: str) -> dict[str, int]:
    """Return the bytes of each journal in *folder*, sorted by name; {} where the folder is absent.

    Files of other endings, and what is no regular file, are passed over. Raises `HpcmlError` where the folder is there
    and cannot be read. *folder* is a text, since making a `Path` of each entry would take most of the time.
    """
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: _size_of(entry) for entry in entries if entry.name.endswith(".jsonl")}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HpcmlError(f"{folder} cannot be read: {error.strerror}") from error
    return {name: size for name, size in sorted(found.items()) if size is not None}


def _size_of(entry: os.DirEntry[str]) -> int | None:
    """Return the bytes of a regular file; None of anything else, such as a link to nothing."""
    try:
        status = entry.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_replaced(folder: Path, run: str, read: Mapping[str, tuple[int, str]], sizes: Mapping[str, int]) -> bool:
    """Whether a file of *read* (file -> bytes read and journal id) is gone, shorter, or another of the same name.

    What was read of the run is then worth nothing, and the caller reads all of its files again. A file of unchanged
    size is taken for unchanged and not opened. *run* is the uid of the run, *sizes* comes from `sizes_in`.
    """
    for file, (offset, uid) in read.items():
        size = sizes.get(file, -1)
        if size < offset:
            return True
        if size > offset:
            header = find_header(folder / file, run)
            if isinstance(header, str) or storable(header.journal) != uid:
                return True
    return False


def find_header(path: Path, uid: str) -> Header | str:
    """Return the header of the journal *path* of run *uid*, or one line about what is wrong.

    The header is the first line; where that is damaged, the first copy of it that the writer repeated further on. A
    file without a usable header is left out rather than guessed at. Looked at are the first 4 MiB. Raises `HpcmlError`
    where the file cannot be read. docs/journal.md describes the format.
    """
    beginning = read_piece(path, 0, 1)
    first = _header_in(beginning.data.partition(b"\n")[0]) if beginning.at == 0 else None
    if first is not None and first.run == uid:
        return first
    for line in read_piece(path, 0, _HEADER_WITHIN).data.split(b"\n")[:-1]:
        later = _header_in(line) if b'"hpcml"' in line else None
        if later is not None and later.run == uid:
            return later
    problem = (
        "begins with no header that this hpcml can read" if first is None else f"belongs to run {_shown(first.run)}"
    )
    return f"{path} {problem}: left out"


def _shown(run: str) -> str:
    return run[:100] if run.isprintable() else repr(run[:100])


def _header_in(line: bytes) -> Header | None:
    return parse_chunk(line + b"\n", offset=0).header


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How many bytes of one journal were read, and what was found in them.

    `next_seq` and `records` count the numbered records that a writer put into its journal; lines of no record are
    counted as bad lines in the table and not here.
    """

    id: int
    uid: str
    t0: float  # unix seconds
    byte_offset: int = 0
    events: int = 0
    records: int = 0
    next_seq: int = 0  # the number of the last record, plus one

    @property
    def lost_records(self) -> int:
        """The number of records that are missing: the last sequence number + 1, less the records that were read.

        Not the sum of gaps between neighbours: a number that was damaged itself, or that a signal handler took a moment
        too early, is then put right by whatever follows it.
        """
        return max(0, self.next_seq - self.records)


_COLUMNS = ("id", "uid", "t0", "byte_offset", "events", "records", "next_seq")


def read_cursors(connection: Connection, run_id: int) -> dict[str, Cursor]:
    """Return the cursors of the run's journals by file name."""
    query = select(JOURNAL.c.file, *(JOURNAL.c[name] for name in _COLUMNS)).where(JOURNAL.c.run_id == run_id)
    return {file: Cursor(**dict(zip(_COLUMNS, numbers, strict=True))) for file, *numbers in connection.execute(query)}


def add_journal(connection: Connection, run_id: int, file: str, header: Header) -> Cursor:
    """Insert the row of a journal of which nothing was read yet; return its cursor."""
    uid = storable(header.journal)
    who = {"writer": storable(header.writer), "attempt": header.attempt, "host": storable(header.host)}
    nothing = {"byte_offset": 0, "events": 0, "bad_lines": 0}
    new = insert(JOURNAL).values(run_id=run_id, file=file, uid=uid, t0=header.t0, **who, **nothing)
    key = connection.execute(new).inserted_primary_key
    assert key is not None
    return Cursor(id=int(key[0]), uid=uid, t0=header.t0)


def move_cursor(connection: Connection, cursor: Cursor, *, to: int, stretch: Stretch, bad_lines: int) -> int:
    """Set *cursor*'s journal to byte *to*, with what was found.

    Return how many more records are missing than before. *bad_lines* is added to what was counted before. The number
    returned is negative where records that seemed lost have come.
    """
    moved = Cursor(
        id=cursor.id,
        uid=cursor.uid,
        t0=cursor.t0,
        byte_offset=to,
        events=cursor.events + len(stretch.events),
        records=cursor.records + stretch.records,
        next_seq=cursor.next_seq if stretch.last_seq is None else stretch.last_seq + 1,
    )
    connection.execute(
        update(JOURNAL)
        .where(JOURNAL.c.id == cursor.id)
        .values(
            byte_offset=to,
            events=moved.events,
            bad_lines=JOURNAL.c.bad_lines + bad_lines,
            records=moved.records,
            next_seq=moved.next_seq,
            lost_records=moved.lost_records,
        )
    )
    return moved.lost_records - cursor.lost_records


def rank_journals(connection: Connection, run_id: int) -> None:
    """Set the rank of each journal of the run by `Precedence`, the highest last.

    Called whenever a journal is added. The view ``points`` (`hpcml.store.views`) chooses by these ranks, with the same
    result as `hpcml.store.curves.merge`.
    """
    columns = (JOURNAL.c.id, JOURNAL.c.rank, JOURNAL.c.attempt, JOURNAL.c.writer, JOURNAL.c.t0, JOURNAL.c.file)
    ranked = sorted(
        (Precedence.of(attempt=attempt, writer=writer, t0=t0, file=file), at, rank)
        for at, rank, attempt, writer, t0, file in connection.execute(
            select(*columns).where(JOURNAL.c.run_id == run_id)
        )
    )
    for new, (_, at, rank) in enumerate(ranked):
        if rank != new:
            connection.execute(update(JOURNAL).where(JOURNAL.c.id == at).values(rank=new))
