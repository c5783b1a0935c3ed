"""How far each journal of a run was read, what was missing in it, and which of them is believed first."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from hpcml.journal import Header
from hpcml.store.curves import Precedence
from hpcml.store.intake import Stretch, storable
from hpcml.store.tables import JOURNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far one journal was read."""

    id: int
    uid: str
    t0: float  # unix seconds
    byte_offset: int = 0
    events: int = 0
    records: int = 0
    next_seq: int = 0  # the number of the last record, plus one

    @property
    def lost_records(self) -> int:
        """How many numbers were passed over.

        From the last number and a count, not from each step between two: a number that was damaged itself, or that a
        signal handler took a moment too early, is then put right by whatever follows it.
        """
        return max(0, self.next_seq - self.records)


_COLUMNS = ("id", "uid", "t0", "byte_offset", "events", "records", "next_seq")


def read_cursors(connection: Connection, run_id: int) -> dict[str, Cursor]:
    """Return the cursors of the run's journals by file name."""
    query = select(JOURNAL.c.file, *(JOURNAL.c[name] for name in _COLUMNS)).where(JOURNAL.c.run_id == run_id)
    return {file: Cursor(**dict(zip(_COLUMNS, numbers, strict=True))) for file, *numbers in connection.execute(query)}


def add_journal(connection: Connection, run_id: int, file: str, header: Header) -> Cursor:
    """Begin a journal, nothing of it read yet."""
    uid = storable(header.journal)
    who = {"writer": storable(header.writer), "attempt": header.attempt, "host": storable(header.host)}
    nothing = {"byte_offset": 0, "events": 0, "bad_lines": 0}
    new = insert(JOURNAL).values(run_id=run_id, file=file, uid=uid, t0=header.t0, **who, **nothing)
    key = connection.execute(new).inserted_primary_key
    assert key is not None
    return Cursor(id=int(key[0]), uid=uid, t0=header.t0)


def move_cursor(connection: Connection, cursor: Cursor, *, to: int, stretch: Stretch, bad_lines: int) -> int:
    """Remember that *cursor*'s journal was read to byte *to*, and what was found; return how many more records lack."""
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
    """Number the run's journals: where several have a value of a step, the one with the highest number is taken."""
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
