"""What is missing from the store (`hpcml sync`, `hpcml rm`): lost records, unreadable lines, deleted directories."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from hpcml.store import rests
from hpcml.store.database import Database
from hpcml.store.loading import is_below
from hpcml.store.pieces import chunked
from hpcml.store.schema import JOURNAL, RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Unreadable lines and lost records, summed over all journals in the store.

    `hpcml sync` tells of it.
    """

    uids: Sequence[str]  # of the runs in which anything is missing
    bad_lines: int
    lost_records: int


def damage(store: Database) -> Damage:
    """Return how many journalled records and lines are not in the store, and of which runs.

    Both sums are 0 and `uids` is empty where everything is there.
    """
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


def runs_below(store: Database, *roots: Path) -> dict[str, Path]:
    """Return by uid the directories of the runs that were found below *roots* (absolute paths).

    The directories themselves are not looked at: some may be gone. Used by `hpcml rm`, `cancel`, `retry`, `sync` and
    `ingest`.
    """
    return {uid: Path(path) for uid, path in _paths_below(store, roots)}


def _paths_below(store: Database, roots: Sequence[Path]) -> list[tuple[str, str]]:
    query = select(RUN.c.uid, RUN.c.path).where(is_below(*roots)).order_by(RUN.c.uid)
    with store.reading() as connection:
        return [(uid, path) for uid, path in connection.execute(query)]


def still_known(store: Database, uids: Collection[str]) -> set[str]:
    """Return those of *uids* that are in the store now."""
    with store.reading() as connection:
        asked = (connection.execute(select(RUN.c.uid).where(RUN.c.uid.in_(chunk))) for chunk in chunked(list(uids)))
        return {uid for answer in asked for uid in answer.scalars()}


def without_directory(store: Database, roots: Sequence[Path]) -> list[str]:
    """Return the uids of the runs that were found below *roots* and whose directory is gone.

    Below a root that does not exist itself none counts as gone: it may be a disk that is not mounted. `hpcml sync`
    tells of them and `hpcml rm` forgets them. Nothing is changed here. Uids are in order.
    """
    there = [root for root in roots if root.is_dir()]
    if not there:
        return []
    query = select(RUN.c.uid, RUN.c.path).where(is_below(*there)).order_by(RUN.c.uid)
    with store.reading() as connection:
        kept = rests.kept_below(connection, there, time.time())
        unchanged = [folder for folder in kept.folders.values() if folder.is_unchanged]
        found = connection.execute(query.where(kept.awake(unchanged))).all()
    return [uid for uid, path in found if not os.path.lexists(f"{path}/run.json")]
