"""The attempts of runs, each with how long it ran: what was spent, whether or not it led to a result."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence

from hpcml.model.hours import Attempts, AttemptTime
from hpcml.model.records import RunRecord
from hpcml.runs.state import DECISIVE, EventName, RunEvent, RunFold
from hpcml.store.database import Database
from hpcml.store.loading import RUNS, load_records

_TOLD = """
SELECT run.uid, event.t_ms, journal.writer, journal.attempt, event.name, event.details
FROM event JOIN journal ON journal.id = event.journal_id JOIN run ON run.id = event.run_id
WHERE event.name IN :names AND run.uid IN :uids
"""
_READ = (*DECISIVE, EventName.CHECKPOINT, EventName.LEFT)


def attempts_of(store: Database, uids: Sequence[str]) -> Attempts:
    """Return, by uid, the attempts of each run that started, in order; a run without any event has none."""
    told: defaultdict[str, list[RunEvent]] = defaultdict(list)
    with store.reading() as reading:
        for rows in reading.each(_TOLD, names=_READ, uids=uids):
            for uid, at_ms, writer, attempt, name, details in rows:
                told[uid].append(
                    RunEvent(attempt=attempt, writer=writer, at_ms=at_ms, name=name, details=json.loads(details))
                )
    return {uid: tuple(_attempts(RunFold.of(of))) for uid, of in told.items()}


def others_of_experiments(store: Database, experiments: Collection[str], known: Collection[str]) -> list[RunRecord]:
    """Return the runs of *experiments* whose uids are not among *known*, by uid."""
    sql = f"{RUNS} WHERE run.experiment IN :experiments ORDER BY run.uid"
    with store.reading() as reading:
        rows = reading.rows(sql, experiments=sorted(experiments))
        return load_records(reading, [row for row in rows if row[1] not in known])


def _attempts(fold: RunFold) -> list[AttemptTime]:
    begun = [one for one in fold if one.has_begun]
    counted = set(fold.counting())
    return [
        AttemptTime(number=one.number, state=fold.state_of(one), wall_s=one.wall_s, counts=one.number in counted)
        for one in begun
    ]
