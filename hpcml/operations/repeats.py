"""Configurations that were run before: named, or left out."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.operations.collect import collect, opened
from hpcml.operations.plan import Planned
from hpcml.places import Places
from hpcml.spec import spec_hash
from hpcml.states import State
from hpcml.store.queries import runs_by_spec

_DONE_OR_UNDER_WAY = frozenset({State.COMPLETED, State.PENDING, State.RUNNING})


def split_repeats(planned: Sequence[Planned], places: Places) -> tuple[list[Planned], list[tuple[Planned, str]]]:
    """Return what is neither done nor under way, and what is, each with the uid of the run that did it.

    A configuration that failed every time counts as missing; one that stands twice in *planned* is a replicate.
    """
    hashes = {id(item): spec_hash(item.run) for item in planned}
    with opened(places) as store:
        collect(store, places)
        known = runs_by_spec(store, hashes.values())
    missing: list[Planned] = []
    repeats: list[tuple[Planned, str]] = []
    for item in planned:
        good = [uid for uid, state in known.get(hashes[id(item)], []) if state in _DONE_OR_UNDER_WAY]
        if good:
            repeats.append((item, good[-1]))
        else:
            missing.append(item)
    return missing, repeats
