"""Telemetry in the store: samples of GPUs and hosts, summed up in spans of ten seconds, and returned as timelines.

`read_in` reads new bytes of a run's sampler files; rows and byte cursor change in one transaction. `Buckets` sums the
samples of one file, with the same result in however many pieces they come: what the next piece needs is kept as JSON,
which keeps every bit of a float. `timelines` returns the spans of a run (`hpcml show`, `hpcml report`).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from hpcml.errors import StoreError
from hpcml.model.query_results import TelemetrySpan, Timeline
from hpcml.model.state import State
from hpcml.runs.journal import Event, Header, Metrics, Piece, parse_piece, read_piece, unread
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.journals import find_header, is_replaced, sizes_in
from hpcml.store.manifest_rows import Description
from hpcml.store.parse import storable
from hpcml.store.schema import BUCKET, DEVICE, RUN, SAMPLER


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """How many bytes of one file were read, and the state that the rest goes on from."""

    id: int
    uid: str
    t0: float  # unix seconds
    byte_offset: int = 0
    carry: str = "{}"


def offsets(connection: Connection, which: ColumnElement[bool]) -> dict[str, dict[str, int]]:
    """Return by path of the run, then by file, how many bytes were read; only for runs that may still be sampled.

    Ingest compares them with the sizes of the files. Runs whose telemetry was read after their end are absent, so that
    nobody looks for more.
    """
    query = select(RUN.c.path, SAMPLER.c.file, SAMPLER.c.byte_offset).join(SAMPLER, SAMPLER.c.run_id == RUN.c.id)
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for path, file, offset in connection.execute(query.where(which, ~RUN.c.is_sampled)):
        found[path][file] = offset
    return found


def read_in(connection: Connection, run_dir: RunDir, described: Description, *, budget: int) -> tuple[list[str], bool]:
    """Read about *budget* bytes of what is new; return a line for each unreadable file, and whether nothing is left.

    Call it after the journals were read: of a run that is over by then, its samplers write no more. The second value is
    False where *budget* ended first: call it again in a new transaction. A file that was replaced makes all telemetry
    of the run be read anew. Raises `HpcmlError` where a file cannot be read. The caller holds the lock of the run.
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


SPAN_MS = 10_000
_MEANS: Mapping[str, str] = {  # as the sampler calls it -> as the store does
    "power_w": "mean_power_w",
    **{
        name: name
        for name in ("util_percent", "memory_util_percent", "sm_active_percent", "tensor_percent", "dram_percent")
    },
    "sm_mhz": "sm_mhz",
}
_HIGHEST: Mapping[str, str] = {"memory_mb": "max_memory_mb", "temperature_c": "max_temperature_c"}
_THERMAL = ("throttle_thermal_s", "throttle_sw_thermal_s", "throttle_hw_thermal_s")  # one slowdown, counted by several
_POWER_SAMPLED = ("throttled_power_percent",)  # where the driver counts none of these, samples tell (usage.py)
_THERMAL_SAMPLED = ("throttled_sw_thermal_percent", "throttled_hw_thermal_percent")
_AVERAGED = frozenset({*_MEANS, *_POWER_SAMPLED, *_THERMAL_SAMPLED})
_GROWING = ("energy_j", "power_integral_j", "cpu_s", "throttle_power_s", *_THERMAL)
_DEVICES = re.compile(r"gpu\d{1,4}|host")  # the sampler's own values are none of the run's
_MOST_MS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Sums, means and maxima of one device over ten seconds from `t_ms`, by column of table ``bucket``.

    Column by column it is a row of table ``bucket``; None where the device gave no such reading. `t_ms` counts from the
    run's epoch and is a multiple of `SPAN_MS`. Energy is in joules, power in watts, memory in MB, shares in percent,
    times in seconds.
    """

    device: str
    uuid: str | None
    t_ms: int
    values: Mapping[str, float | int | None]  # by column


@dataclass(slots=True, kw_only=True)
class _Device:
    """The sums of a device's open span, and the last value of each counter.

    A counter's growth over a span is what the span is given; its first reading only says from where it grows.
    """

    uuid: str | None = None
    t_ms: int | None = None
    samples: int = 0
    covered_s: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    highest: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    last_at_s: float | None = None

    def open(self, t_ms: int) -> None:
        self.t_ms, self.samples, self.covered_s = t_ms, 0, 0.0
        self.sums, self.counts, self.highest, self.grown = {}, {}, {}, {}

    def tick(self, at_s: float) -> None:
        self.samples += 1
        if self.last_at_s is not None and at_s > self.last_at_s:
            self.covered_s += at_s - self.last_at_s
        self.last_at_s = at_s

    def add(self, name: str, value: float) -> None:
        if name in _AVERAGED:
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
        elif name in _GROWING:
            before = self.last.get(name)
            if before is not None and value >= before:  # one that fell was reset: by how much it grew nobody knows
                self.grown[name] = self.grown.get(name, 0.0) + (value - before)
            self.last[name] = value
        if name in _HIGHEST:
            self.highest[name] = max(value, self.highest.get(name, value))

    def bucket(self, name: str) -> Bucket:
        assert self.t_ms is not None
        values: dict[str, float | int | None] = {
            "samples": self.samples,
            "covered_s": self.covered_s,
            "energy_j": self.grown.get("energy_j", self.grown.get("power_integral_j")),
            "cpu_s": self.grown.get("cpu_s"),
            "throttled_power_s": self._throttled(("throttle_power_s",), _POWER_SAMPLED),
            "throttled_thermal_s": self._throttled(_THERMAL, _THERMAL_SAMPLED),
            **{column: self.highest.get(what) for what, column in _HIGHEST.items()},
            **{
                column: self.sums[what] / self.counts[what] if what in self.sums else None
                for what, column in _MEANS.items()
            },
        }
        return Bucket(device=name, uuid=self.uuid, t_ms=self.t_ms, values=values)

    def _throttled(self, counters: Sequence[str], sampled: Sequence[str]) -> float | None:
        """Return the seconds of lowered clocks in this span; None where neither counters nor samples tell.

        The sampler writes a counter only when it changes, so that nothing new means 0.
        """
        told = [self.grown.get(name, 0.0) for name in counters if name in self.last]
        told += [self.sums[name] / self.counts[name] / 100 * self.covered_s for name in sampled if name in self.sums]
        return max(told) if told and self.covered_s else None


@dataclass(slots=True)
class Buckets:
    """Sums up the records of one sampler file, given in their order.

    The records of a file may come in any number of pieces: `carry` of one piece is what the next one resumes from.

    >>> buckets = Buckets.resume("{}")
    >>> buckets.take()
    []
    """

    _devices: dict[str, _Device]
    _routes: dict[str, tuple[_Device, str] | None] = field(default_factory=dict)  # of each value's whole name
    _closed: list[Bucket] = field(default_factory=list)

    @classmethod
    def resume(cls, carry: str) -> Buckets:
        """Return the state that `carry` returned."""
        return cls({name: _Device(**known) for name, known in json.loads(carry).items()})

    def carry(self) -> str:
        """Return the state as JSON, for `resume`."""
        return json.dumps({name: asdict(device) for name, device in self._devices.items()})

    def add(self, records: Iterable[Metrics | Event], *, base_ms: float) -> None:
        """Add records of a journal; *base_ms* is its time zero, in ms since the run's epoch.

        Events other than ``devices``, values of unknown names and values that are not finite are passed over. A
        device's values count from its first ``at_s``, the time of sampling in seconds.
        """
        for record in records:
            if isinstance(record, Event):
                if record.name == "devices":
                    self._name(record.details)
                continue
            exact_ms = base_ms + record.t_s * 1000
            if -_MOST_MS < exact_ms < _MOST_MS:  # false for nan, too
                self._tick(math.floor(exact_ms / SPAN_MS) * SPAN_MS, record.values)

    def take(self) -> list[Bucket]:
        """Return the spans that ended since the last call, and those that are still open, as they are now.

        A span that is still open comes again, with more in it, at the next call: its row is to be replaced.
        """
        closed, self._closed = self._closed, []
        return closed + [device.bucket(name) for name, device in self._devices.items() if device.t_ms is not None]

    def _name(self, details: Mapping[str, Any]) -> None:
        gpus = details.get("gpus")
        for about in gpus if isinstance(gpus, list) else ():
            if isinstance(about, dict) and isinstance(about.get("uuid"), str):
                self._device(str(about.get("gpu"))).uuid = about["uuid"]

    def _device(self, name: str) -> _Device:
        return self._devices.setdefault(name, _Device())

    def _tick(self, t_ms: int, values: Mapping[str, float]) -> None:
        routes = self._routes
        for whole_name, value in values.items():
            route = routes[whole_name] if whole_name in routes else self._route(whole_name)
            if route is None or not math.isfinite(value):
                continue
            device, name = route
            if name == "at_s":  # the first of each device, so that all that follows is of this span
                self._move_on(whole_name.partition(".")[0], device, t_ms)
                device.tick(value)
            elif device.t_ms is not None:
                device.add(name, value)

    def _move_on(self, name: str, device: _Device, t_ms: int) -> None:
        if device.t_ms is None:
            device.open(t_ms)
        elif t_ms > device.t_ms:  # time does not run back in one journal; if it did, the span that is open takes it
            self._closed.append(device.bucket(name))
            device.open(t_ms)

    def _route(self, whole_name: str) -> tuple[_Device, str] | None:
        """Return the device and the name of a value like "gpu0.power_w"; None where it is not kept."""
        owner, _, name = whole_name.partition(".")
        is_kept = name == "at_s" or name in _AVERAGED or name in _HIGHEST or name in _GROWING
        found = (self._device(owner), name) if is_kept and _DEVICES.fullmatch(owner) else None
        self._routes[whole_name] = found
        return found


def timelines(store: Database, uid: str) -> list[Timeline]:
    """Return the spans of each GPU and each host of the run, by attempt, node and device; [] where nothing was sampled.

    Times are seconds since the run's start. Raises `StoreError` for an unknown uid. `hpcml show`, `compare` and
    `report` draw them. GPUs are in the order of their numbers, the host last. Ten seconds without a sample have no
    span.
    """
    with store.reading() as connection:
        run = connection.execute(select(RUN.c.id, RUN.c.clock_ms).where(RUN.c.uid == uid)).one_or_none()
        if run is None:
            raise StoreError(f"no run has the uid {uid!r}")
        samplers = select(SAMPLER.c.attempt, SAMPLER.c.node, SAMPLER.c.host, SAMPLER.c.file, DEVICE)
        samplers = samplers.join(DEVICE, DEVICE.c.sampler_id == SAMPLER.c.id).where(SAMPLER.c.run_id == run.id)
        devices = connection.execute(samplers).all()
        buckets = select(BUCKET).join(DEVICE, DEVICE.c.id == BUCKET.c.device_id)
        buckets = buckets.join(SAMPLER, SAMPLER.c.id == DEVICE.c.sampler_id).where(SAMPLER.c.run_id == run.id)
        spans: defaultdict[int, list[TelemetrySpan]] = defaultdict(list)
        for row in connection.execute(buckets.order_by(BUCKET.c.device_id, BUCKET.c.t_ms)).mappings():
            values = {name: value for name, value in row.items() if name not in ("device_id", "t_ms")}
            spans[row["device_id"]].append(TelemetrySpan(t_s=(row["t_ms"] - run.clock_ms) / 1000, **values))
    return [
        Timeline(
            attempt=row.attempt,
            node=row.node,
            host=row.host,
            device=row.name,
            uuid=row.uuid,
            spans=tuple(spans[row.id]),
        )
        for row in sorted(devices, key=lambda row: (row.attempt, row.node, row.file, *_in_order(row.name)))
    ]


def _in_order(device: str) -> tuple[bool, int, str]:
    """Return a sort key that puts gpu10 after gpu9, and the host last."""
    number = re.fullmatch(r"gpu(\d+)", device)
    return (number is None, int(number[1]) if number else 0, device)
