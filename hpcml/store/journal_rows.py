"""How far each journal of a run was read (cursors in table ``journal``), and which of them counts.

Used by `hpcml.store.ingest`. `rank_journals` orders the journals of a run: where several report the same step, the one
with the highest rank counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from hpcml.runs.journal import Header
from hpcml.store.curves import Precedence
from hpcml.store.parse import Stretch, storable
from hpcml.store.schema import JOURNAL


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
