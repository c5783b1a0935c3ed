"""Taking a run out of the store: for one that never came to be, and whose directory is gone."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from hpcml.store import rows
from hpcml.store.engine import Store
from hpcml.store.locks import hold_run_and_names
from hpcml.store.tables import METRIC, RUN, RUN_FACT, RUN_NOTE, RUN_PARAM, RUN_TAG, RUN_USAGE, RUN_WORK, SERIES, WORD


def forget_run(store: Store, uid: str) -> bool:
    """Remove all that the store has of the run *uid*; return whether there was anything.

    Its directory must be gone already: whatever still lies below the runs' folder, the next ingest brings back.
    """
    return forget_runs(store, [uid]) == 1


def forget_runs(store: Store, uids: Sequence[str]) -> int:
    """Remove all that the store has of the runs *uids*, one after the other; return of how many there was anything."""
    if not uids:
        return 0
    with store.writing() as connection:
        return sum(_forget(connection, uid) for uid in uids)


def _forget(connection: Connection, uid: str) -> bool:
    with connection.begin():
        hold_run_and_names(connection, uid)
        connection.execute(delete(WORD).where(WORD.c.uid == uid))
        run_id = connection.execute(select(RUN.c.id).where(RUN.c.uid == uid)).scalar_one_or_none()
        if run_id is None:
            return False
        rows.forget_journals(connection, run_id)
        for table in (RUN_PARAM, RUN_FACT, RUN_TAG, RUN_NOTE, RUN_USAGE, RUN_WORK):
            connection.execute(delete(table).where(table.c.run_id == run_id))
        connection.execute(delete(RUN).where(RUN.c.id == run_id))
        # a name that no run has any more would be offered as a key of filters
        connection.execute(delete(METRIC).where(METRIC.c.id.not_in(select(SERIES.c.metric_id))))
        return True
