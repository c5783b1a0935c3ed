"""What is missing from the store (`hpcml sync`, `hpcml rm`): lost records, unreadable lines, deleted directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import or_, select

from hpcml.store.database import Database
from hpcml.store.loading import is_below
from hpcml.store.schema import RUN


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
    columns = (RUN.c.uid, RUN.c.bad_lines, RUN.c.lost_records)
    is_damaged = or_(RUN.c.bad_lines > 0, RUN.c.lost_records > 0)
    with store.reading() as connection:
        found = connection.execute(select(*columns).where(is_damaged).order_by(RUN.c.uid)).all()
    return Damage(
        uids=[uid for uid, _, _ in found],
        bad_lines=sum(bad_lines for _, bad_lines, _ in found),
        lost_records=sum(lost_records for _, _, lost_records in found),
    )


def runs_below(store: Database, *roots: Path) -> dict[str, Path]:
    """Return by uid the directories of the runs that were found below *roots* (absolute paths).

    The directories themselves are not looked at: some may be gone. Used by `hpcml rm`, `cancel`, `retry`, `sync` and
    `ingest`.
    """
    query = select(RUN.c.uid, RUN.c.path).where(is_below(*roots)).order_by(RUN.c.uid)
    with store.reading() as connection:
        return {uid: Path(path) for uid, path in connection.execute(query)}


def without_directory(store: Database, roots: Sequence[Path]) -> list[str]:
    """Return the uids of the runs that were found below *roots* and whose directory is gone.

    Below a root that does not exist itself none counts as gone: it may be a disk that is not mounted. `hpcml sync`
    tells of them and `hpcml rm` forgets them. Nothing is changed here. Uids are in order.
    """
    there = [root for root in roots if root.is_dir()]
    if not there:
        return []
    below = runs_below(store, *there)
    return [uid for uid, path in below.items() if not os.path.lexists(path / "run.json")]
