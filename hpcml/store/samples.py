"""The samples of a run's telemetry, read in beside its journals: rows and byte cursor in one transaction."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from hpcml.journal import Header, parse_chunk
from hpcml.rundir import RunDir
from hpcml.states import State
from hpcml.store.buckets import Bucket, Buckets
from hpcml.store.describing import Description
from hpcml.store.intake import storable
from hpcml.store.journal_files import find_header, is_replaced, read_stretch, sizes_in
from hpcml.store.tables import BUCKET, DEVICE, RUN, SAMPLER


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """How far one file was read, and what the rest of it goes on from."""

    id: int
    uid: str
    t0: float  # unix seconds
    byte_offset: int = 0
    carry: str = "{}"


def offsets(connection: Connection, which: ColumnElement[bool]) -> dict[str, dict[str, int]]:
    """Return how far each file was read, by the run's path, of runs that may still be sampled."""
    query = select(RUN.c.path, SAMPLER.c.file, SAMPLER.c.byte_offset).join(SAMPLER, SAMPLER.c.run_id == RUN.c.id)
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for path, file, offset in connection.execute(query.where(which, ~RUN.c.is_sampled)):
        found[path][file] = offset
    return found


def read_in(connection: Connection, run_dir: RunDir, described: Description, *, budget: int) -> tuple[list[str], bool]:
    """Read about *budget* bytes of what is new; return what is wrong with which file, and whether nothing is left.

    To be called when the journals are read: of a run that is over by then, its samplers write no more.
    """
    which = select(RUN.c.id, RUN.c.state, RUN.c.is_settled).where(RUN.c.uid == described.uid)
    run_id, state, is_settled = connection.execute(which).one()
    cursors, sizes = _read_cursors(connection, run_id), sizes_in(str(run_dir.telemetry))
    read = {file: (cursor.byte_offset, cursor.uid) for file, cursor in cursors.items()}
    if is_replaced(run_dir.telemetry, described.uid, read, sizes):
        forget_samples(connection, run_id)
        cursors = {}
    problems: list[str] = []
    for file, size in sizes.items():
        path, cursor = run_dir.telemetry / file, cursors.get(file)
        while size > (cursor.byte_offset if cursor else 0):
            if budget <= 0:
                return problems, False
            data = read_stretch(path, cursor.byte_offset if cursor else 0, budget)
            if b"\n" not in data:
                break  # no line is complete yet
            if cursor is None:
                header = find_header(path, described.uid)
                if isinstance(header, str):
                    problems.append(header)
                    break
                cursor = _add(connection, run_id, file, header)
            budget -= len(data)
            cursor = _take(connection, cursor, data, described.epoch_ms)
    is_over = State(state).is_final and bool(is_settled)
    connection.execute(update(RUN).where(RUN.c.id == run_id).values(is_sampled=is_over))
    return problems, True


def forget_samples(connection: Connection, run_id: int) -> None:
    """Remove all that the run's samplers wrote, so that it is read from the beginning."""
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


def _take(connection: Connection, cursor: _Cursor, data: bytes, epoch_ms: int) -> _Cursor:
    """Write what *data* says, and how far it was read, in the caller's transaction."""
    chunk = parse_chunk(data, offset=cursor.byte_offset, journal=cursor.uid)
    buckets = Buckets.resume(cursor.carry)
    buckets.add(chunk.records, base_ms=cursor.t0 * 1000 - epoch_ms)
    _write(connection, cursor.id, buckets.take())
    moved = _Cursor(id=cursor.id, uid=cursor.uid, t0=cursor.t0, byte_offset=chunk.end, carry=buckets.carry())
    news = {"byte_offset": moved.byte_offset, "carry": moved.carry, "bad_lines": SAMPLER.c.bad_lines + chunk.bad_lines}
    connection.execute(update(SAMPLER).where(SAMPLER.c.id == cursor.id).values(**news))
    return moved


def _write(connection: Connection, sampler_id: int, buckets: Sequence[Bucket]) -> None:
    """Write *buckets*, those that were still open the last time over what they were then."""
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
