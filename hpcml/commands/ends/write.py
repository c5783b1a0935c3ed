"""Ends that nobody recorded: of each run that has not ended, whether its process is gone or its scheduler says so.

Such an event is journalled in the run first, then read into the store (`hpcml.commands.collect`). Several processes may
do this at once: it is the same whoever comes to it, and so is what two equal ones mean.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpcml.commands.ends.judge import FORGOTTEN, MissingEvent
from hpcml.commands.ends.look import missing_end
from hpcml.commands.logs import log_tail
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import Cause, classify
from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.runs.state import EventName, state_after
from hpcml.store.database import Database
from hpcml.store.query import get_runs
from hpcml_client.journal import JournalWriter

log = logging.getLogger(__name__)


def record_unseen_ends(
    store: Database,
    places: Places,
    unfinished: Sequence[RunRecord],
    known: Mapping[str, Known | None],
    before: Mapping[str, tuple[Known, float]],
) -> list[RunRecord]:
    """Return the *unfinished* runs as they stand once the ends that nobody recorded are journalled and read in.

    *known* is what schedulers said just now by uid, *before* what they had said earlier and when (unix seconds).
    """
    # that `hpcml run` is making, or was making when it died: `hpcml sync` finishes those
    under_way = {path.name.partition(".")[0] for path in places.open_submissions.glob("*.json")}
    recorded = []
    for record in unfinished:
        try:
            missing = missing_end(
                record,
                places,
                known,
                was_final_before=record.uid in before and before[record.uid][0].state.is_final,
                is_being_submitted=record.submission in under_way,
            )
            if missing is not None:
                run_dir = RunDir(Path(record.path))
                _record(record, run_dir, missing)
                recorded.append(run_dir)
        except FileNotFoundError:
            continue  # it is being removed
        except (HpcmlError, OSError) as error:  # of its journals: the other runs are looked at all the same
            if not isinstance(error.__cause__, FileNotFoundError):
                log.warning("whether run %s goes on cannot be told: %s", record.uid, error)
    if not recorded:
        return list(unfinished)
    from hpcml.store.ingest import ingest_runs  # noqa: PLC0415 - whoever cancels runs loads this module too
    from hpcml.store.scheduler_polls import keep_words  # noqa: PLC0415 - as above

    forgotten = [run_dir.uid for run_dir in recorded if known.get(run_dir.uid, FORGOTTEN) is None]
    keep_words(places.home, dict.fromkeys(forgotten, FORGOTTEN), at=time.time())  # what was said before is no more
    for problem in ingest_runs(store, recorded).problems:  # of run.json, which was damaged since it was read
        log.warning("a run is shown as it was: %s", problem)
    now_known = {record.uid: record for record in get_runs(store, [run_dir.uid for run_dir in recorded])}
    return [now_known.get(record.uid, record) for record in unfinished]


def _record(record: RunRecord, run_dir: RunDir, missing: MissingEvent) -> None:
    """Journal *missing* in the run of *record*, in *run_dir*.

    For an end its cause is judged and journalled too, and the webhook is told. Raises `HpcmlError` where there was no
    room for it.
    """
    told = _with_cause(missing, run_dir) if missing.is_end else missing
    with JournalWriter.open(str(run_dir.journals), run=record.uid, attempt=told.attempt, writer="collect") as journal:
        journal.event(told.name, told.details)
        if told.is_end:
            state, reason = state_after(told.name, told.details), told.details.get("reason")
            tell_of_end(record, run_dir, journal, state, reason=reason, cause=told.details["cause"])
    if journal.dropped:
        raise HpcmlError(f"its end could not be written to {run_dir.journals}: is the disk full?")


def _with_cause(missing: MissingEvent, run_dir: RunDir) -> MissingEvent:
    if "cause" in missing.details:
        return missing
    if missing.name == EventName.CANCELLED:
        cause = Cause.CANCELLED
    else:
        state, reason = state_after(missing.name, missing.details), missing.details.get("reason")
        cause = classify(state, reason=reason, exit_code=None, signal=None, log_tail=log_tail(run_dir))
        cause = missing.otherwise if cause is Cause.UNKNOWN else cause
    return replace(missing, details={**missing.details, "cause": cause.value})


def tell_of_end(
    record: RunRecord, run_dir: RunDir, journal: JournalWriter, state: State, *, reason: str | None, cause: str | None
) -> None:
    """Post the message that the run's ``schedule.notify`` asks for, if any, about an end that no agent lived to report.

    *journal* gets an event: `notified`, or `notify_failed` with the reason. Nothing is raised.
    """
    if record.params.get("schedule.notify") in (None, "never"):
        return
    from hpcml.agent import notify  # noqa: PLC0415 - HTTP and TLS, for those who ask for a message
    from hpcml.agent.assignment import Turn  # noqa: PLC0415 - as above

    def tell(name: str, **details: object) -> None:
        journal.event(name, details)

    try:
        manifest = read_manifest(run_dir.manifest)
    except HpcmlError as error:
        tell("notify_failed", what=record.params.get("schedule.notify"), error=str(error))
        return
    turn = Turn(run_dir=run_dir, source=run_dir.manifest, manifest=manifest, node=0, pack=None)
    notify.tell_of_end(turn, state, reason=reason, cause=cause, wall_s=record.wall_s, tell=tell)
