"""The attempts of runs, each with how long it ran: what was spent, whether or not it led to a result."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy import select

from hpcml.model.checklist import Attempts, AttemptTime
from hpcml.model.records import RunRecord
from hpcml.runs.state import DECISIVE, EventName, RunFold, Told
from hpcml.store.database import Database
from hpcml.store.facts import counted_attempts
from hpcml.store.loading import load_records, select_runs
from hpcml.store.pieces import chunked
from hpcml.store.schema import EVENT, JOURNAL, RUN

_READ = (*DECISIVE, EventName.CHECKPOINT, EventName.LEFT)


def attempts_of(store: Database, uids: Sequence[str]) -> Attempts:
    """Return, by uid, the attempts of each run that started, in order; a run without any event has none."""
    told: defaultdict[str, list[Told]] = defaultdict(list)
    events = (
        select(RUN.c.uid, EVENT.c.t_ms, JOURNAL.c.writer, JOURNAL.c.attempt, EVENT.c.name, EVENT.c.details)
        .join(JOURNAL, JOURNAL.c.id == EVENT.c.journal_id)
        .join(RUN, RUN.c.id == EVENT.c.run_id)
        .where(EVENT.c.name.in_(_READ))
    )
    with store.reading() as connection:
        for chunk in chunked(uids):
            for uid, at_ms, writer, attempt, name, details in connection.execute(events.where(RUN.c.uid.in_(chunk))):
                told[uid].append(
                    Told(attempt=attempt, writer=writer, at_ms=at_ms, name=name, details=json.loads(details))
                )
    return {uid: tuple(_attempts(RunFold.of(of))) for uid, of in told.items()}


def others_of_experiments(store: Database, experiments: Collection[str], known: Collection[str]) -> list[RunRecord]:
    """Return the runs of *experiments* whose uids are not among *known*, by uid."""
    with store.reading() as connection:
        query = select_runs().where(RUN.c.experiment.in_(sorted(experiments))).order_by(RUN.c.uid)
        return load_records(connection, [row for row in connection.execute(query) if row.uid not in known])


def _attempts(fold: RunFold) -> list[AttemptTime]:
    begun = [one for one in fold if one.began_ms is not None or one.end_seen is not None]
    counted = set(counted_attempts([one.number for one in begun], fold))
    return [
        AttemptTime(number=one.number, state=fold.state_of(one), wall_s=one.wall_s, counts=one.number in counted)
        for one in begun
    ]
