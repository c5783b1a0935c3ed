"""What `hpcml sync` would repair, in a line each: a question does none of it, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcml.commands.retry import may_retry
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.runs.cancellation import marked_at
from hpcml.runs.layout import RunDir
from hpcml.schedulers.local.waiting import killed_words, left_by_killed
from hpcml.schedulers.names import THIS_MACHINE
from hpcml.store.database import Database
from hpcml.store.query import open_runs
from hpcml.store.scheduler_polls import read_words

_WISH_AGE_S = 30.0  # what was cancelled so recently is on its way


def of_queues(places: Places) -> list[str]:
    """Return the line about the queue of this machine, where it was killed."""
    left = left_by_killed(places.submissions)
    return [f"{killed_words(left)}: hpcml sync starts it again"] if left else []


def of_cancelled(store: Database, places: Places) -> list[str]:
    """Return the line about jobs that go on although they were cancelled."""
    alive = len(cancelled_and_alive(store, places))
    them = "a cancelled job goes" if alive == 1 else f"{alive} cancelled jobs go"
    return [f"{them} on: hpcml sync tells the scheduler again"] if alive else []


def of_failed(places: Places, records: Sequence[RunRecord]) -> list[str]:
    """Return the line about those of *records* that ``schedule.retry`` allows to be tried again."""
    failed = [record.uid for record in records if may_retry(record, places)]
    return [f"{which(failed)} may be tried again (schedule.retry): hpcml sync does that"] if failed else []


def cancelled_and_alive(store: Database, places: Places) -> list[RunRecord]:
    """Return the runs whose jobs their schedulers saw alive half a minute after the last wish that they end.

    A scheduler may accept a cancellation and lose it, or have been away when it was wanted.
    """
    wished: dict[str, tuple[RunRecord, float]] = {}
    for record in open_runs(store, places.runs):
        has_own_job = record.scheduler != THIS_MACHINE and record.job_id is not None and not record.is_shared
        if has_own_job and (at := marked_at(RunDir(Path(record.path)))) is not None:
            wished[record.uid] = (record, at)
    words = read_words(places.home, list(wished)) if wished else {}
    return [
        wished[uid][0]
        for uid, (known, said_at) in words.items()
        if not known.state.is_final and said_at - wished[uid][1] > _WISH_AGE_S
    ]


def which(uids: Sequence[str]) -> str:
    """Return a word for the runs *uids*: the id of one, the number of several."""
    return uids[0] if len(uids) == 1 else f"{len(uids)} runs ({uids[0]}, ...)"
