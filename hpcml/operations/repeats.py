"""Configurations that were run before: named, or left out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcml.operations.collect import collect, opened
from hpcml.operations.plan import Planned
from hpcml.operations.retry import is_going_on
from hpcml.places import Places
from hpcml.spec import spec_hash
from hpcml.states import State
from hpcml.store.engine import Store
from hpcml.store.queries import get_run, open_runs, runs_by_spec


def split_repeats(planned: Sequence[Planned], places: Places) -> tuple[list[Planned], list[tuple[Planned, str]]]:
    """Return what is neither done nor under way, and what is, each with the uid of the run that did it.

    A configuration that failed every time counts as missing. Of schedule.repeats, so many count as done as were.
    """
    hashes = {id(item): spec_hash(item.run) for item in planned}
    with opened(places) as store:
        collect(store, places)
        under_way = {record.uid for record in open_runs(store)}
        good = {
            digest: [
                uid
                for uid, state in found
                if state is State.COMPLETED or uid in under_way or _goes_on(store, uid, state)
            ]
            for digest, found in runs_by_spec(store, hashes.values()).items()
        }
    missing: list[Planned] = []
    repeats: list[tuple[Planned, str]] = []
    for item in planned:
        done = good.get(hashes[id(item)], [])
        if item.repeat < len(done):
            repeats.append((item, done[-1]))
        else:
            missing.append(item)
    return missing, repeats


def _goes_on(store: Store, uid: str, state: State) -> bool:
    """Tell whether a run that left at a checkpoint is being queued again at this moment."""
    return state is State.TIMEOUT and is_going_on(store, get_run(store, uid), time.time())
