"""Taking a run out of the store: for one that never came to be, and whose directory is gone."""

from __future__ import annotations

from sqlalchemy import delete, select

from hpcml.store import rows
from hpcml.store.engine import Store
from hpcml.store.tables import METRIC, RUN, RUN_FACT, RUN_PARAM, RUN_TAG, SERIES, WORD


def forget_run(store: Store, uid: str) -> bool:
    """Remove all that the store has of the run *uid*; return whether there was anything.

    Its directory must be gone already: whatever still lies below the runs' folder, the next ingest brings back.
    """
    with store.writing() as connection, connection.begin():
        connection.execute(delete(WORD).where(WORD.c.uid == uid))
        run_id = connection.execute(select(RUN.c.id).where(RUN.c.uid == uid)).scalar_one_or_none()
        if run_id is None:
            return False
        rows.forget_journals(connection, run_id)
        for table in (RUN_PARAM, RUN_FACT, RUN_TAG):
            connection.execute(delete(table).where(table.c.run_id == run_id))
        connection.execute(delete(RUN).where(RUN.c.id == run_id))
        # a name that no run has any more would be offered as a key of filters
        connection.execute(delete(METRIC).where(METRIC.c.id.not_in(select(SERIES.c.metric_id))))
        return True
