"""Telemetry of runs as timelines (`hpcml show`, `hpcml report`)."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from sqlalchemy import select

from hpcml.errors import StoreError
from hpcml.model.query_results import TelemetrySpan, Timeline
from hpcml.store.database import Database
from hpcml.store.schema import RUN, SAMPLE, SPAN_COLUMNS


def timelines(store: Database, uid: str) -> list[Timeline]:
    """Return the spans of each GPU and each host of the run, by attempt, node and device; [] where nothing was sampled.

    Times are seconds since the run's start. Raises `StoreError` for an unknown uid. `hpcml show`, `compare` and
    `report` draw them. GPUs are in the order of their numbers, the host last.
    """
    device = (SAMPLE.c.attempt, SAMPLE.c.node, SAMPLE.c.file, SAMPLE.c.device, SAMPLE.c.host, SAMPLE.c.uuid)
    query = select(*device, SAMPLE.c.t_ms, *(SAMPLE.c[name] for name in SPAN_COLUMNS)).order_by(SAMPLE.c.t_ms)
    spans: defaultdict[tuple[Any, ...], list[TelemetrySpan]] = defaultdict(list)
    with store.reading() as connection:
        run = connection.execute(select(RUN.c.id, RUN.c.clock_ms).where(RUN.c.uid == uid)).first()
        if run is None:
            raise StoreError(f"no run has the uid {uid!r}")
        for row in connection.execute(query.where(SAMPLE.c.run_id == run.id)):
            values = dict(zip(SPAN_COLUMNS, row[7:], strict=True))
            spans[tuple(row[:6])].append(TelemetrySpan(t_s=(row.t_ms - run.clock_ms) / 1000, **values))
    return [
        Timeline(attempt=attempt, node=node, host=host, device=name, uuid=uuid, spans=tuple(of_device))
        for (attempt, node, _, name, host, uuid), of_device in sorted(
            spans.items(), key=lambda item: (*item[0][:3], *_in_order(item[0][3]))
        )
    ]


def _in_order(device: str) -> tuple[bool, int, str]:
    """Return a sort key that puts gpu10 after gpu9, and the host last."""
    number = re.fullmatch(r"gpu(\d+)", device)
    return (number is None, int(number[1]) if number else 0, device)
