"""Which runs are at rest (`hpcml.runs.rest`), kept in the store so that an answer looks at none of them.

Runs rest in the folder that holds their directories, ``<root>/<experiment>``: a row of table ``folder``, which says too
up to which change of the folder all that lies in it was known, so that not even its names are listed anew. Nothing is
kept of a folder with few runs at rest: looking at those takes no time. All of it is forgotten and made again without
harm; a run that is read anew (`hpcml.store.rows.ensure_run`) is at rest no more.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.model.state import State
from hpcml.runs import rest
from hpcml.store.database import Database
from hpcml.store.loading import Where, is_below
from hpcml.store.origin import mark_of
from hpcml.store.parse import storable
from hpcml.store.reading import StoreReader

LEAST = 100  # runs that must have come to rest before it is worth writing


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of run directories, as the store has it."""

    id: int
    path: str
    changed_ns: int
    cleared_at: float
    resting: int  # so many runs rest in it
    is_due: bool  # all of its runs are to be looked at again
    woken: frozenset[str]  # names of runs that somebody goes on with

    @property
    def is_unchanged(self) -> bool:
        """Whether it holds the directories that it held, all of them of runs that the store has."""
        return self.changed_ns != 0 and changed_ns(self.path) == self.changed_ns


@dataclass(slots=True, kw_only=True)
class Seen:
    """A folder of run directories as a look found it, to be kept (`hpcml.store.rest_rows.keep`)."""

    path: str
    home: str  # the mark of its root, "" without one
    changed_ns: int  # its ctime before it was listed
    is_whole: bool = False  # all of its runs were looked at
    is_known: bool = True  # all that it holds are runs that the store has
    resting: list[int] = field(default_factory=list)  # ids of runs that came to rest
    wakened: list[int] = field(default_factory=list)  # ids of runs that are at rest no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The folders in which runs rest: those that were asked for by path, and the ids of all others."""

    folders: Mapping[str, Folder]
    elsewhere: Sequence[int]

    def awake(self, but: Sequence[Folder]) -> Where:
        """Return the condition that a run does not rest in one of the folders *but*, each of which is one of these."""
        passed = {folder.id for folder in but}
        others = [*self.elsewhere, *(folder.id for folder in self.folders.values() if folder.id not in passed)]
        nowhere = "run.resting_in IS NULL"  # alone, it is answered by the index
        return Where(f"({nowhere} OR run.resting_in IN :others)" if others else nowhere, {"others": others})


NOTHING_KEPT = Kept(folders={}, elsewhere=())


def kept_below(reading: StoreReader, roots: Sequence[Path], now: float) -> Kept:
    """Return the folders below *roots* (absolute) in which runs rest; *now* is in unix seconds."""
    counts = "SELECT resting_in, count(*) FROM run WHERE resting_in IS NOT NULL GROUP BY resting_in"
    resting: dict[int, int] = dict(reading.rows(counts))
    if not resting:
        return NOTHING_KEPT
    homes = {storable(str(root)): mark_of(root) or "" for root in roots}
    found = {}
    folders = "SELECT id, path, home, changed_ns, looked_at, cleared_at FROM folder ORDER BY id"
    for at, path, home, changed_ns, looked_at, cleared_at in reading.rows(folders):
        if at not in resting or homes.get(path.rpartition("/")[0]) != home:
            continue
        woken = rest.woken_in(path)
        found[path] = Folder(
            id=at,
            path=path,
            changed_ns=changed_ns,
            cleared_at=cleared_at,
            resting=resting[at],
            is_due=woken is None or not 0 <= now - looked_at < rest.LOOK_EVERY_S,
            woken=frozenset(map(storable, woken or ())),
        )
    return Kept(folders=found, elsewhere=sorted(resting.keys() - {folder.id for folder in found.values()}))


def names_resting(reading: StoreReader, folder: Folder) -> dict[str, int]:
    """Return the ids of the runs that rest in *folder*, by the names of their directories, which are their uids."""
    return dict(reading.rows("SELECT uid, id FROM run WHERE resting_in = :folder", folder=folder.id))


def may_rest(path: str, uid: str, now: float, *, state: str, is_settled: bool, t_end: float | None) -> bool:
    """Tell whether the run *uid* in *path*, of which nothing is new, has ended and long been quiet.

    False for a path that the store cannot keep as it is: nobody would find the marks there.
    """
    if (
        storable(path) != path
        or not (is_settled and State(state).is_final)
        or (t_end is not None and not t_end < now - rest.QUIET_S)
    ):
        return False
    return path.rpartition("/")[2] == uid and rest.is_quiet(path, now, was_end_seen=t_end is not None)


def worth_keeping(every: Sequence[Seen], kept: Mapping[str, Folder], now: float) -> list[Seen]:
    """Return those of *every* folder of a look that say what the store does not have, and is worth a write."""
    are_many = sum(len(seen.resting) for seen in every) >= LEAST

    def is_worth(seen: Seen) -> bool:
        if seen.wakened or (are_many and seen.resting):
            return True
        known = kept.get(seen.path)
        if known is None:
            return False
        is_changed = seen.changed_ns != known.changed_ns
        return seen.is_whole or (is_changed and listed_ns(seen, now) not in (0, known.changed_ns))

    return [seen for seen in every if is_worth(seen)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """In which runs unfinished files are to be looked for: in *paths*, or in all that there are, and then `cleared`."""

    paths: Sequence[str]
    due: Sequence[Folder]
    is_whole: bool


def clearing_below(store: Database, root: Path, now: float) -> Clearing:
    """Return in which runs below *root* unfinished files are to be looked for at *now*: once a day in all."""
    with store.reading() as reading:
        kept = kept_below(reading, [root.absolute()], now)
        folders = list(kept.folders.values())
        due = [folder for folder in folders if not 0 <= now - folder.cleared_at < rest.LOOK_EVERY_S]
        if due or not folders:
            return Clearing(paths=(), due=due, is_whole=True)
        awake, below = kept.awake(folders), is_below(root.absolute())
        sql = f"SELECT path FROM run WHERE {awake.sql} AND {below.sql} ORDER BY path"  # noqa: S608 - our own
        return Clearing(paths=reading.column(sql, **awake.values, **below.values), due=(), is_whole=False)


def listed_ns(folder: Seen, now: float) -> int:
    """Return the time of the *folder* if what it holds is known up to it for certain, else 0.

    Not of a folder that changed lately: its time may be the same after one more change.
    """
    return folder.changed_ns if folder.is_known and folder.changed_ns / 1e9 < now - rest.QUIET_S else 0


def changed_ns(path: str) -> int:
    """Return when the folder *path* was changed last, which nobody can set; -1 where it is not there."""
    try:
        return os.stat(path).st_ctime_ns  # noqa: PTH116 - before each answer
    except OSError:
        return -1


def by_folder(paths: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the names of *paths* by the folder that they are in."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        found[folder].append(name)
    return found
