"""Which runs are tried again by themselves: those that the cluster failed, as often as ``schedule.retry`` allows.

`hpcml.commands.retry` does it; what finds none to be done loads nothing of that.
"""

from __future__ import annotations

from pathlib import Path

from hpcml.model.failure_causes import Cause
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.query import find_runs

AUTOMATIC = frozenset({Cause.NODE_FAILURE, Cause.PREEMPTION, Cause.GPU_FAULT, Cause.COMMUNICATION})


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
    """Return how often the run was tried again."""
    count = 0
    while run_dir.retry_manifest(count + 1).exists():
        count += 1
    return count
