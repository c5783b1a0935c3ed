"""Writing down which runs are at rest, and in which folders (`hpcml.store.rests`)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, insert, select, update

from hpcml.model.state import State
from hpcml.runs import rest
from hpcml.store.database import Database
from hpcml.store.parse import storable
from hpcml.store.pieces import within
from hpcml.store.rests import Folder, Seen, listed_ns
from hpcml.store.schema import FOLDER, RUN
from hpcml.store.server_locks import hold_folders


def keep(store: Database, seen: Sequence[Seen], now: float) -> None:
    """Write down the folders *seen* at *now* (unix seconds), and which runs rest in them."""
    with store.writing() as connection, connection.begin():
        hold_folders(connection)
        for folder in seen:
            at = _ensure(connection, folder, now)
            for ids, to in ((folder.resting, at), (folder.wakened, None)):
                for chunk in within(RUN.c.id, ids):
                    _set(connection, chunk, to)


def cleared(store: Database, folders: Sequence[Folder], now: float) -> None:
    """Write down that unfinished files were looked for in all runs of *folders*, and remove marks of no use."""
    for folder in folders:
        rest.clear_marks(folder.path, now)
    with store.writing() as connection, connection.begin():
        hold_folders(connection)
        for chunk in within(FOLDER.c.id, [folder.id for folder in folders]):
            connection.execute(update(FOLDER).where(chunk).values(cleared_at=now))


def forget_listing(connection: Connection, path: str) -> None:
    """Have the folder *path* listed by the next look, in a transaction of its own: it holds a run that is not kept."""
    with connection.begin():
        hold_folders(connection)
        connection.execute(update(FOLDER).where(FOLDER.c.path == storable(path)).values(changed_ns=0))


def _ensure(connection: Connection, folder: Seen, now: float) -> int:
    which = (FOLDER.c.path == folder.path) & (FOLDER.c.home == folder.home)
    told = {"changed_ns": listed_ns(folder, now), **({"looked_at": now} if folder.is_whole else {})}
    known = connection.execute(select(FOLDER.c.id).where(which)).scalar_one_or_none()
    if known is not None:
        connection.execute(update(FOLDER).where(FOLDER.c.id == known).values(**told))
        return int(known)
    new = insert(FOLDER).values(path=folder.path, home=folder.home, cleared_at=0.0, **{"looked_at": 0.0, **told})
    key = connection.execute(new).inserted_primary_key
    assert key is not None
    return int(key[0])


def _set(connection: Connection, which: ColumnElement[bool], to: int | None) -> None:
    """Set where runs rest, but for those that another process writes at this moment, or has found at work."""
    final = [state.value for state in State if state.is_final]
    locked = select(RUN.c.id).where(which, RUN.c.state.in_(final), RUN.c.is_settled)
    ids = list(connection.execute(locked.with_for_update(skip_locked=True)).scalars())
    for chunk in within(RUN.c.id, ids):
        connection.execute(update(RUN).where(chunk).values(resting_in=to))
