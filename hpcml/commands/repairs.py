"""What `hpcml sync` would repair, in a line each: a question does none of it, and says so."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from hpcml.commands.retry_policy import AUTOMATIC
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.cancellation import marked_at
from hpcml.runs.layout import RunDir
from hpcml.schedulers.local.waiting import killed_words, left_by_killed
from hpcml.schedulers.names import THIS_MACHINE
from hpcml.store.database import Database
from hpcml.store.query import find_runs, open_runs
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


def to_retry(store: Database, places: Places) -> list[RunRecord]:
    """Return the runs that failed by the cluster's fault and that ``schedule.retry`` allows to be tried once more."""
    ended = find_runs(store, states=(State.FAILED, State.NODE_FAIL, State.PREEMPTED, State.LOST))
    return [record for record in ended if may_retry(record, places)]


def may_retry(record: RunRecord, places: Places) -> bool:
    """Tell whether *record* failed by such a cause, and was not tried as often as it may be.

    Only of runs of this HPCML_HOME, since nobody else's are ours to submit.
    """
    allowed = record.params.get("schedule.retry")
    if record.cause not in AUTOMATIC or not isinstance(allowed, int) or not places.tends(record.path):
        return False
    return retries_of(RunDir(Path(record.path))) < allowed


def retries_of(run_dir: RunDir) -> int:
    """Return how often the run was retried."""
    return next(count for count in itertools.count() if not run_dir.retry_manifest(count + 1).exists())


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
