"""Telemetry of runs as timelines (`hpcml show`, `hpcml report`)."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import fields

from hpcml.errors import StoreError
from hpcml.model.query_results import TelemetrySpan, Timeline
from hpcml.store.database import Database

_FIELDS = [field for field in fields(TelemetrySpan) if field.name != "t_s"]
_SPANS = (
    f"SELECT bucket.device_id, bucket.t_ms, {', '.join(f'bucket.{field.name}' for field in _FIELDS)} "  # noqa: S608
    "FROM bucket JOIN device ON device.id = bucket.device_id JOIN sampler ON sampler.id = device.sampler_id "
    "WHERE sampler.run_id = :run ORDER BY bucket.device_id, bucket.t_ms"
)
_DEVICES = """
SELECT sampler.attempt, sampler.node, sampler.file, device.name, device.id, sampler.host, device.uuid
FROM sampler JOIN device ON device.sampler_id = sampler.id WHERE sampler.run_id = :run
"""


def timelines(store: Database, uid: str) -> list[Timeline]:
    """Return the spans of each GPU and each host of the run, by attempt, node and device; [] where nothing was sampled.

    Times are seconds since the run's start. Raises `StoreError` for an unknown uid. `hpcml show`, `compare` and
    `report` draw them. GPUs are in the order of their numbers, the host last.
    """
    with store.reading() as reading:
        run = reading.rows("SELECT id, clock_ms FROM run WHERE uid = :uid", uid=uid)
        if not run:
            raise StoreError(f"no run has the uid {uid!r}")
        ((run_id, clock_ms),) = run
        devices = reading.rows(_DEVICES, run=run_id)
        spans: defaultdict[int, list[TelemetrySpan]] = defaultdict(list)
        for device_id, t_ms, *values in reading.rows(_SPANS, run=run_id):
            told = {field.name: value for field, value in zip(_FIELDS, values, strict=True)}
            spans[device_id].append(TelemetrySpan(t_s=(t_ms - clock_ms) / 1000, **told))
    devices.sort(key=lambda row: (*row[:3], *_in_order(row[3])))
    return [
        Timeline(attempt=attempt, node=node, host=host, device=name, uuid=uuid, spans=tuple(spans[at]))
        for attempt, node, _, name, at, host, uuid in devices
    ]


def _in_order(device: str) -> tuple[bool, int, str]:
    """Return a sort key that puts gpu10 after gpu9, and the host last."""
    number = re.fullmatch(r"gpu(\d+)", device)
    return (number is None, int(number[1]) if number else 0, device)
