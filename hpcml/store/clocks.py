"""Where the clocks of runs begin, for whoever needs the moment of a point and not only its distance from the start."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from hpcml.store.engine import Store
from hpcml.store.loading import chunked
from hpcml.store.tables import RUN


def clock_zeros(store: Store, uids: Sequence[str]) -> dict[str, float]:
    """Return, in unix seconds, from when the times of each run's points and events count."""
    query = select(RUN.c.uid, RUN.c.epoch_ms, RUN.c.clock_ms)
    zeros: dict[str, float] = {}
    with store.reading() as connection:
        for chunk in chunked(uids):
            for uid, epoch_ms, clock_ms in connection.execute(query.where(RUN.c.uid.in_(chunk))):
                zeros[uid] = (epoch_ms + clock_ms) / 1000
    return zeros
