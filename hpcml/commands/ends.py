"""Ends that nobody recorded: of each run that has not ended, whether its process is gone or its scheduler says so.

Such an event is journalled in the run first, then read into the store (`hpcml.commands.collect`). Several processes may
do this at once: it is the same whoever comes to it, and so is what two equal ones mean.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from hpcml.agent.assignment import Turn
from hpcml.commands import supervision
from hpcml.commands.follow import Glimpse, Watcher
from hpcml.commands.logs import log_tail, why_not_started
from hpcml.commands.reconcile import FORGOTTEN, QUIET_S, Circumstances, MissingEvent, by_scheduler
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import Cause, classify
from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.moments import local_time
from hpcml.paths import Places
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.journal import Chunk
from hpcml.runs.layout import RunDir, is_by_user
from hpcml.runs.liveness import ProcessIdentity
from hpcml.runs.manifest import read_manifest
from hpcml.runs.state import EventName, RunFold, fold_of, read_journals, state_after
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
    here = _Here(
        submissions=places.submissions,
        under_way=_submissions_under_way(places),
        ours=ProcessIdentity.of_this_process(),
        now=local_time(),
    )
    recorded = []
    for record in unfinished:
        run_dir = RunDir(Path(record.path))
        if _records_unseen_end(record, run_dir, known, before, here):
            recorded.append(run_dir)
    if not recorded:
        return list(unfinished)
    from hpcml.store.ingest import ingest_runs  # noqa: PLC0415 - whoever cancels runs loads this module too
    from hpcml.store.scheduler_polls import keep_words  # noqa: PLC0415 - as above

    forgotten = [run_dir.uid for run_dir in recorded if known.get(run_dir.uid, FORGOTTEN) is None]
    keep_words(store, dict.fromkeys(forgotten, FORGOTTEN), at=here.now.timestamp())  # what was said before is no more
    with store.together():
        for problem in ingest_runs(store, recorded).problems:  # of run.json, which was damaged since it was read
            log.warning("a run is shown as it was: %s", problem)
    now_known = {record.uid: record for record in get_runs(store, [run_dir.uid for run_dir in recorded])}
    return [now_known.get(record.uid, record) for record in unfinished]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Here:
    """What is asked once for all the runs that are looked at together."""

    submissions: Path
    under_way: Collection[str]  # submissions that somebody is making
    ours: ProcessIdentity
    now: datetime


def _records_unseen_end(
    record: RunRecord,
    run_dir: RunDir,
    known: Mapping[str, Known | None],
    before: Mapping[str, tuple[Known, float]],
    here: _Here,
) -> bool:
    """Journal the end of a run that has not told it, unless that was done meanwhile; tell whether there is one."""
    previous, journals = before.get(record.uid), _Journals(run_dir)
    try:
        if record.uid not in known:
            missing = _unasked(record, journals, here, is_being_submitted=record.submission in here.under_way)
        elif _scheduler_says_it_goes_on(record, known[record.uid]):
            return False
        else:
            was_final = previous is not None and previous[0].state.is_final
            missing = _by_word(record, known, journals, here, was_final_before=was_final)
        if missing is not None and _still_stands(record, run_dir, journals.read()):
            record_event(record, run_dir, missing)
    except FileNotFoundError:
        return False  # it is being removed
    except (HpcmlError, OSError) as error:  # of its journals: the other runs are looked at all the same
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        log.warning("whether run %s goes on cannot be told: %s", record.uid, error)
        return False
    return missing is not None


@dataclass(slots=True)
class _Journals:
    """What the journals of a run say that are not of ranks, which may be large and say nothing of its end."""

    run_dir: RunDir
    _told: Mapping[str, Chunk] = field(default_factory=dict)

    def read(self) -> Mapping[str, Chunk]:
        """Return what they say now; what has not grown since the last time is not read again."""
        self._told = read_journals(self.run_dir, self._told)
        return self._told


def _unasked(record: RunRecord, journals: _Journals, here: _Here, *, is_being_submitted: bool) -> MissingEvent | None:
    return supervision.judge_unsupervised(
        record,
        journals.run_dir,
        here.now,
        is_being_submitted=is_being_submitted,
        submissions=here.submissions,
        read=journals.read,
        ours=here.ours,
    )


def record_event(record: RunRecord, run_dir: RunDir, missing: MissingEvent) -> None:
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


def _scheduler_says_it_goes_on(record: RunRecord, known: Known | None) -> bool:
    """Tell whether its scheduler says that the run goes on: the usual answer, for which no file is opened."""
    return known is not None and (known.state is State.RUNNING or known.state is record.state is State.PENDING)


def _by_word(
    record: RunRecord,
    words: Mapping[str, Known | None],
    journals: _Journals,
    here: _Here,
    *,
    was_final_before: bool,
) -> MissingEvent | None:
    known, run_dir = words[record.uid], journals.run_dir
    told = journals.read()
    started = supervision.last_start_in(told)
    ran_as = None if started is None else started.details.get("job_id")
    if record.state is State.RUNNING and started is not None and ran_as is None:
        # by hand, outside any job: what the scheduler says of the job before it does not concern this attempt
        by_hand = replace(record, scheduler="local", job_id=record.job_id or "by hand")
        return _unasked(by_hand, journals, here, is_being_submitted=False)
    about = Circumstances(
        is_cancelled=is_cancelled(run_dir),
        quiet_s=_quiet_s(run_dir, time.time()),
        ran_as=None if ran_as is None else str(ran_as),
        was_final_before=was_final_before,
        waits_in_vain=supervision.why_never(record, run_dir) if record.state is State.PENDING else None,
        not_built_by=_failed_builder(run_dir, words) if record.state is State.PENDING else None,
        not_started=_why_not_started(record, known, here.submissions),
        untold=_untold(told, record.attempt),
    )
    return by_scheduler(record, known, about)


def _why_not_started(record: RunRecord, known: Known | None, submissions: Path) -> str | None:
    may_matter = record.state is State.PENDING and known is not None and known.state is State.FAILED
    return why_not_started(record, submissions) if may_matter else None


def _untold(journals: Mapping[str, Chunk], attempt: int) -> tuple[int, ...]:
    starts = next((one.unheard for one in fold_of(journals) if one.number == attempt), [])
    nodes = (start.details.get("node") for start in starts)
    return tuple(sorted({node for node in nodes if isinstance(node, int)}))


def _failed_builder(run_dir: RunDir, words: Mapping[str, Known | None]) -> str | None:
    """Return the run that was to build the image of *run_dir*, if it has ended and there is no image."""
    try:
        image = read_manifest(run_dir.manifest).plan.image
    except HpcmlError:
        return None
    if image is None or image.built_by is None or Path(image.path).exists():
        return None
    builder = next(run_dir.path.parent.parent.glob(f"*/{image.built_by}"), None)
    if builder is None:
        return None
    seen = Watcher(RunDir(builder)).look()
    word = words.get(image.built_by)
    has_ended = seen.is_over or (word is not None and word.state.is_final)
    return image.built_by if has_ended and seen.state is not State.COMPLETED else None


def _still_stands(record: RunRecord, run_dir: RunDir, journals: Mapping[str, Chunk]) -> bool:
    """Tell whether the run still stands as *record* says: its own words that came meanwhile, in *journals*, go first.

    While an agent puts the run back into the queue, or has just done so, the scheduler's word may be of the job before.
    """
    told = fold_of(journals)
    # ranks' journals, and those that the store leaves out, are looked at where these alone say something else
    if not _says(told, record) and not _says(Watcher(run_dir).look(), record):
        return False
    if (job := told.job) is not None and job.job_id != record.job_id:
        return False
    return not supervision.is_being_requeued(told) or _quiet_s(run_dir, time.time()) >= QUIET_S


def _says(seen: RunFold | Glimpse, record: RunRecord) -> bool:
    is_alike = (seen.state, seen.is_settled) == (record.state, record.is_settled)
    return is_alike and seen.attempt <= record.attempt


def _quiet_s(run_dir: RunDir, now: float) -> float:
    """Return for how long nobody has journalled anything and no agent has given a sign of life, which a log's time is.

    A program may report nothing for hours.
    """
    written = [path.stat().st_mtime for path in run_dir.journal_files() if not is_by_user(path.name)]
    beats = [path.stat().st_mtime for path in run_dir.agent_logs()]
    return now - max(written + beats) if written or beats else float("inf")


def _with_cause(missing: MissingEvent, run_dir: RunDir) -> MissingEvent:
    if "cause" in missing.details:
        return missing
    if missing.name == EventName.CANCELLED:
        cause = Cause.CANCELLED
    else:
        state = State.LOST if missing.name == EventName.LOST else State(missing.details["state"])
        cause = classify(
            state,
            reason=missing.details.get("reason"),
            exit_code=None,
            signal=None,
            log_tail=log_tail(run_dir),
        )
        cause = missing.otherwise if cause is Cause.UNKNOWN else cause
    return replace(missing, details={**missing.details, "cause": cause.value})


def _submissions_under_way(places: Places) -> frozenset[str]:
    """Return the submissions that `hpcml run` is making, or was making when it died: `hpcml sync` finishes those."""
    return frozenset(path.name.partition(".")[0] for path in places.open_submissions.glob("*.json"))


# The webhook is told here of ends that no agent lived to tell.


def tell_of_end(
    record: RunRecord, run_dir: RunDir, journal: JournalWriter, state: State, *, reason: str | None, cause: str | None
) -> None:
    """Post the message that the run's ``schedule.notify`` asks for, if any, about an end that no agent lived to report.

    *journal* gets an event: `notified`, or `notify_failed` with the reason. Nothing is raised.
    """
    if record.params.get("schedule.notify") in (None, "never"):
        return
    from hpcml.agent import notify  # noqa: PLC0415 - HTTP and TLS, for those who ask for a message

    def tell(name: str, **details: object) -> None:
        journal.event(name, details)

    try:
        manifest = read_manifest(run_dir.manifest)
    except HpcmlError as error:
        tell("notify_failed", what=record.params.get("schedule.notify"), error=str(error))
        return
    notify.tell_of_end(
        Turn(run_dir=run_dir, source=run_dir.manifest, manifest=manifest, node=0, pack=None),
        state,
        reason=reason,
        cause=cause,
        wall_s=record.wall_s,
        tell=tell,
    )
