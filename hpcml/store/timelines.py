"""What each GPU and each node of a run did while it was sampled, as the store hands it out."""

from __future__ import annotations

import re
from collections import defaultdict

from sqlalchemy import select

from hpcml.answers import Span, Timeline
from hpcml.errors import StoreError
from hpcml.store.engine import Store
from hpcml.store.tables import BUCKET, DEVICE, RUN, SAMPLER


def timelines(store: Store, uid: str) -> list[Timeline]:
    """Return what each GPU and each node of the run did, by attempt, node and device; [] where nothing was sampled."""
    with store.reading() as connection:
        run = connection.execute(select(RUN.c.id, RUN.c.clock_ms).where(RUN.c.uid == uid)).one_or_none()
        if run is None:
            raise StoreError(f"no run has the uid {uid!r}")
        samplers = select(SAMPLER.c.attempt, SAMPLER.c.node, SAMPLER.c.host, SAMPLER.c.file, DEVICE)
        samplers = samplers.join(DEVICE, DEVICE.c.sampler_id == SAMPLER.c.id).where(SAMPLER.c.run_id == run.id)
        devices = connection.execute(samplers).all()
        buckets = select(BUCKET).join(DEVICE, DEVICE.c.id == BUCKET.c.device_id)
        buckets = buckets.join(SAMPLER, SAMPLER.c.id == DEVICE.c.sampler_id).where(SAMPLER.c.run_id == run.id)
        spans: defaultdict[int, list[Span]] = defaultdict(list)
        for row in connection.execute(buckets.order_by(BUCKET.c.device_id, BUCKET.c.t_ms)).mappings():
            values = {name: value for name, value in row.items() if name not in ("device_id", "t_ms")}
            spans[row["device_id"]].append(Span(t_s=(row["t_ms"] - run.clock_ms) / 1000, **values))
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
    """Place gpu10 after gpu9, and the host after all."""
    number = re.fullmatch(r"gpu(\d+)", device)
    return (number is None, int(number[1]) if number else 0, device)
