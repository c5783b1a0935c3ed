"""The attempts of runs, each with how long it ran: what was spent, whether or not it led to a result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy import select

from hpcml.model.hours import Attempts, AttemptTime
from hpcml.model.records import RunRecord
from hpcml.runs.state import DECISIVE, EventName, RunEvent, RunFold
from hpcml.store.database import Database, chunked
from hpcml.store.loading import load_uids
from hpcml.store.schema import EVENT, RUN

_READ = [str(name) for name in (*DECISIVE, EventName.CHECKPOINT, EventName.LEFT)]


def attempts_of(store: Database, uids: Sequence[str]) -> Attempts:
    """Return, by uid, the attempts of each run that started, in order; a run without any event has none."""
    events: defaultdict[str, list[RunEvent]] = defaultdict(list)
    columns = (RUN.c.uid, EVENT.c.t_ms, EVENT.c.writer, EVENT.c.attempt, EVENT.c.name, EVENT.c.details)
    query = select(*columns).join(RUN, RUN.c.id == EVENT.c.run_id).where(EVENT.c.name.in_(_READ))
    with store.reading() as connection:
        for chunk in chunked(uids):
            for uid, at_ms, writer, attempt, name, details in connection.execute(query.where(RUN.c.uid.in_(chunk))):
                events[uid].append(RunEvent(attempt=attempt, writer=writer, at_ms=at_ms, name=name, details=details))
    return {uid: tuple(_attempts(RunFold.of(of_run))) for uid, of_run in events.items()}


def others_of_experiments(store: Database, experiments: Collection[str], known: Collection[str]) -> list[RunRecord]:
    """Return the runs of *experiments* whose uids are not among *known*, by uid."""
    with store.reading() as connection:
        uids = connection.execute(select(RUN.c.uid).where(RUN.c.experiment.in_(sorted(experiments)))).scalars()
        others = sorted(set(uids) - set(known))
        return load_uids(connection, others)


def _attempts(fold: RunFold) -> list[AttemptTime]:
    begun = [one for one in fold if one.has_begun]
    counted = set(fold.counting())
    return [
        AttemptTime(number=one.number, state=fold.state_of(one), wall_s=one.wall_s, counts=one.number in counted)
        for one in begun
    ]
