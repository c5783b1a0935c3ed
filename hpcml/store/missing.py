"""What the store knows to be missing: records that no journal has, lines that could not be read, directories."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from hpcml.store.engine import Store
from hpcml.store.loading import chunked
from hpcml.store.paths import is_below
from hpcml.store.tables import JOURNAL, RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Of all journals in the store together."""

    uids: Sequence[str]  # of the runs in which anything is missing
    bad_lines: int
    lost_records: int


def damage(store: Store) -> Damage:
    """Return how much of what was journalled is not in the store."""
    query = (
        select(RUN.c.uid, func.sum(JOURNAL.c.bad_lines), func.sum(JOURNAL.c.lost_records))
        .join(RUN, RUN.c.id == JOURNAL.c.run_id)
        .where((JOURNAL.c.bad_lines > 0) | (JOURNAL.c.lost_records > 0))
        .group_by(RUN.c.uid)
        .order_by(RUN.c.uid)
    )
    with store.reading() as connection:
        found = connection.execute(query).all()
    return Damage(
        uids=[uid for uid, _, _ in found],
        bad_lines=sum(int(bad_lines) for _, bad_lines, _ in found),
        lost_records=sum(int(lost_records) for _, _, lost_records in found),
    )


def runs_below(store: Store, *roots: Path) -> dict[str, Path]:
    """Return the directories of the runs that the store found below *roots*, by uid."""
    with store.reading() as connection:
        query = select(RUN.c.uid, RUN.c.path).where(is_below(*roots)).order_by(RUN.c.uid)
        return {uid: Path(path) for uid, path in connection.execute(query)}


def still_known(store: Store, uids: Collection[str]) -> set[str]:
    """Return those of *uids* that the store has at this moment."""
    with store.reading() as connection:
        asked = (connection.execute(select(RUN.c.uid).where(RUN.c.uid.in_(chunk))) for chunk in chunked(list(uids)))
        return {uid for answer in asked for uid in answer.scalars()}


def without_directory(store: Store, roots: Sequence[Path]) -> list[str]:
    """Return the runs that the store found below *roots* and that are there no more, by uid.

    A root that is not there itself says nothing: it may be a disk that is not mounted.
    """
    there = [root for root in roots if root.is_dir()]
    found = runs_below(store, *there) if there else {}
    return [uid for uid, path in found.items() if not os.path.lexists(path / "run.json")]
