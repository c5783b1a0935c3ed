"""Reading telemetry into the store: samples of GPUs and hosts, summed up over about ten seconds each.

`read_in` reads new bytes of a run's sampler files; rows and byte cursor change in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from hpcml.model.state import State
from hpcml.runs.journal import Header, Piece, parse_piece, read_piece, unread
from hpcml.runs.layout import RunDir
from hpcml.store.journals import find_header, is_replaced, sizes_in
from hpcml.store.manifest_rows import Description
from hpcml.store.parse import storable
from hpcml.store.schema import BUCKET, DEVICE, RUN, SAMPLER
from hpcml.store.spans import Bucket, Buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """How many bytes of one file were read, and the state that the rest goes on from."""

    id: int
    uid: str
    t0: float  # unix seconds
    byte_offset: int = 0
    carry: str = "{}"


def read_in(connection: Connection, run_dir: RunDir, described: Description, *, budget: int) -> tuple[list[str], bool]:
    """Read about *budget* bytes of what is new; return a line for each unreadable file, and whether nothing is left.

    Call it after the journals were read: of a run that is over by then, its samplers write no more. The second value is
    False where *budget* ended first: call it again in a new transaction. A file that was replaced makes all
    telemetry of the run be read anew. Raises `HpcmlError` where a file cannot be
    read. The caller holds the lock of the run.
    """
    which = select(RUN.c.id, RUN.c.state, RUN.c.is_settled).where(RUN.c.uid == described.uid)
    run_id, state, is_settled = connection.execute(which).one()
    cursors, sizes = _read_cursors(connection, run_id), sizes_in(str(run_dir.telemetry))
    # files may be deleted to make room: what was read of them stays
    read = {file: (cursor.byte_offset, cursor.uid) for file, cursor in cursors.items() if file in sizes}
    if is_replaced(run_dir.telemetry, described.uid, read, sizes):
        forget_samples(connection, run_id)
        cursors = {}
    problems: list[str] = []
    for file, size in sizes.items():
        path, cursor = run_dir.telemetry / file, cursors.get(file)
        while size > (cursor.byte_offset if cursor else 0):
            if budget <= 0:
                return problems, False
            piece = read_piece(path, cursor.byte_offset if cursor else 0, budget)
            if not piece.is_news:
                problems += filter(None, [unread(path, piece)])
                break  # no line is complete yet
            if cursor is None:
                header = find_header(path, described.uid)
                if isinstance(header, str):
                    problems.append(header)
                    break
                cursor = _add(connection, run_id, file, header)
            budget -= len(piece.data)
            cursor = _take(connection, cursor, piece, described.epoch_ms)
    is_over = State(state).is_final and bool(is_settled)
    connection.execute(update(RUN).where(RUN.c.id == run_id).values(is_sampled=is_over))
    return problems, True


def forget_samples(connection: Connection, run_id: int) -> None:
    """Delete all telemetry of the run; the next ingest reads it anew."""
    samplers = select(SAMPLER.c.id).where(SAMPLER.c.run_id == run_id)
    devices = select(DEVICE.c.id).where(DEVICE.c.sampler_id.in_(samplers))
    connection.execute(delete(BUCKET).where(BUCKET.c.device_id.in_(devices)))
    connection.execute(delete(DEVICE).where(DEVICE.c.sampler_id.in_(samplers)))
    connection.execute(delete(SAMPLER).where(SAMPLER.c.run_id == run_id))
    connection.execute(update(RUN).where(RUN.c.id == run_id).values(is_sampled=False))


def _read_cursors(connection: Connection, run_id: int) -> dict[str, _Cursor]:
    names = ("id", "uid", "t0", "byte_offset", "carry")
    query = select(SAMPLER.c.file, *(SAMPLER.c[name] for name in names)).where(SAMPLER.c.run_id == run_id)
    return {file: _Cursor(**dict(zip(names, known, strict=True))) for file, *known in connection.execute(query)}


def _add(connection: Connection, run_id: int, file: str, header: Header) -> _Cursor:
    uid = storable(header.journal)
    node = re.fullmatch(r"node(\d{1,9})", header.writer)
    who = {"attempt": header.attempt, "node": int(node[1]) if node else 0, "host": storable(header.host)}
    nothing = {"byte_offset": 0, "bad_lines": 0, "carry": "{}"}
    new = insert(SAMPLER).values(run_id=run_id, file=file, uid=uid, t0=header.t0, **who, **nothing)
    key = connection.execute(new).inserted_primary_key
    assert key is not None
    return _Cursor(id=int(key[0]), uid=uid, t0=header.t0)


def _take(connection: Connection, cursor: _Cursor, piece: Piece, epoch_ms: int) -> _Cursor:
    """Write the samples in *piece* and the new cursor, in the caller's transaction; return that cursor."""
    chunk = parse_piece(piece, offset=cursor.byte_offset, journal=cursor.uid)
    buckets = Buckets.resume(cursor.carry)
    buckets.add(chunk.records, base_ms=cursor.t0 * 1000 - epoch_ms)
    _write(connection, cursor.id, buckets.take())
    moved = _Cursor(id=cursor.id, uid=cursor.uid, t0=cursor.t0, byte_offset=chunk.end, carry=buckets.carry())
    news = {"byte_offset": moved.byte_offset, "carry": moved.carry, "bad_lines": SAMPLER.c.bad_lines + chunk.bad_lines}
    connection.execute(update(SAMPLER).where(SAMPLER.c.id == cursor.id).values(**news))
    return moved


def _write(connection: Connection, sampler_id: int, buckets: Sequence[Bucket]) -> None:
    """Write *buckets*; those that were still open the last time replace their earlier rows."""
    ids = _ensure_devices(connection, sampler_id, {bucket.device: bucket.uuid for bucket in buckets})
    for device, device_id in ids.items():
        first_ms = min((bucket.t_ms for bucket in buckets if bucket.device == device), default=None)
        if first_ms is not None:
            connection.execute(delete(BUCKET).where(BUCKET.c.device_id == device_id, BUCKET.c.t_ms >= first_ms))
    if buckets:
        rows = [{"device_id": ids[each.device], "t_ms": each.t_ms, **each.values} for each in buckets]
        connection.execute(insert(BUCKET), rows)


def _ensure_devices(connection: Connection, sampler_id: int, uuids: Mapping[str, str | None]) -> dict[str, int]:
    query = select(DEVICE.c.name, DEVICE.c.id).where(DEVICE.c.sampler_id == sampler_id)
    known = {name: int(at) for name, at in connection.execute(query)}
    if new := {name: uuid for name, uuid in uuids.items() if name not in known}:
        told = [
            {"sampler_id": sampler_id, "name": storable(name), "uuid": None if uuid is None else storable(uuid)}
            for name, uuid in new.items()
        ]
        connection.execute(insert(DEVICE), told)
        known = {name: int(at) for name, at in connection.execute(query)}
    return known
