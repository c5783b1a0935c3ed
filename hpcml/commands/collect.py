"""Bringing the store up to date with the run directories, which every command does before it answers.

New records of journals are read, and runs whose process is gone are found and recorded as lost or cancelled.

The run directories are the truth: a verdict reached here is journalled in them first, then read from there. Several
processes may do this at once: a verdict is the same whoever reaches it, and so is what two equal ones mean.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcml.commands import external_runs, supervision
from hpcml.commands.follow import Watcher
from hpcml.commands.logs import log_tail
from hpcml.commands.reconcile import QUIET_S, Circumstances, Verdict, by_scheduler
from hpcml.errors import ConfigError, HpcmlError, StoreError
from hpcml.model.failure_causes import Cause, classify
from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.cancellation import is_cancelled, unmark
from hpcml.runs.layout import RunDir, is_by_user
from hpcml.runs.manifest import read_manifest
from hpcml.runs.private import check_lone, claim_home, make_home
from hpcml.runs.state import EventName, read_fold, state_after
from hpcml.store import origin
from hpcml.store.database import Database
from hpcml.store.ingest import IngestReport, ingest_all, ingest_run
from hpcml.store.opening import has_room, open_store, place_of
from hpcml.store.query import get_run, open_runs
from hpcml.store.scheduler_polls import read_words
from hpcml.store.sqlite.location import only_read
from hpcml_client.journal import JournalWriter

log = logging.getLogger(__name__)

_YOUR_OWN = "choose one of your own (--store, HPCML_STORE)"

# For each run that was asked about: what its scheduler knows, or None if it has forgotten it. A run whose scheduler
# gave no answer, or was not asked, is left out.
Ask = Callable[[Sequence[RunRecord]], Mapping[str, Known | None]]


@contextmanager
def opened(places: Places, *, to_write: bool = False) -> Iterator[Database]:
    """Open the store, made at first use, and close it again at the end of the block.

    A store that this user can only read is opened as it is, with a warning in the log. Raises `StoreError` where
    *to_write* is set and it is read-only, and where it cannot be opened; `ConfigError` where HPCML_HOME cannot be made.
    """
    if places.store_url == str(places.home / "store.db"):
        try:
            make_home(places.home)
        except OSError as error:
            raise ConfigError(f"HPCML_HOME={places.home} cannot be made: {error.strerror} (choose another)") from error
    store = open_store(places.store_url)
    try:
        if to_write:
            refuse_read_only(store)
        elif store.is_read_only:
            log.warning("the store %s is read-only for you: it is shown as it was at its last ingest", store.name)
        yield store
    finally:
        store.close()


@contextmanager
def answering(places: Places) -> Iterator[Database]:
    """Open the store as `opened` does, for a command that answers; without room on its disk, one made for this answer.

    That one is a temporary file elsewhere, to be filled from the run directories by `collect`: the store is only an
    index of them. A warning in the log says so.
    """
    if has_room(places.store_url):
        with opened(places) as store:
            yield store
        return
    log.warning("the disk of %s is full: this answer is read from the run directories and not kept", places.store_url)
    with TemporaryDirectory(prefix="hpcml-") as folder:
        store = open_store(str(Path(folder) / "store.db"))
        try:
            yield store
        finally:
            store.close()


def refuse_read_only(store: Database) -> None:
    """Raise `StoreError` where this user can only read the store."""
    if store.is_read_only:
        raise StoreError(f"the store {store.name} is read-only for you: {_YOUR_OWN}")


def claim(places: Places) -> None:
    """Make sure that HPCML_HOME is this user's alone, before anything in it is executed, cancelled or removed.

    A warning in the log says where it was open to others and has been closed. Raises `NotPrivateError` where it is
    shared, and where the store is a file that others may write to, since the store says what there is to be cancelled.
    """
    if claim_home(places.home):
        log.warning("%s was open to others and is yours alone from now on (docs/shared-folders)", places.home)
    placement = place_of(places.store_url)
    if placement is not None and placement.path.exists() and not only_read(placement.path):
        check_lone(placement.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What there was to read, and the runs that had not ended, or not settled, before, with their state after it."""

    report: IngestReport
    runs: Sequence[RunRecord]


def collect(
    store: Database, places: Places, ask: Ask | None = None, *, is_anew: bool = False, is_silent: bool = False
) -> Collected:
    """Bring every run directory that is known into the store; as often as you like.

    New journal records are read (*is_anew*: all records, from the beginning). Then each run of this HPCML_HOME that has
    not ended is judged: is its agent dead, has its queue ended, what does its scheduler say? A verdict is journalled in
    the run first, then read into the store. Runs in folders elsewhere are read and nothing else.

    Runs and journals that cannot be read are left out: a warning in the log says so in one line, unless *is_silent*
    says that the caller will.

    *ask* is called with the runs that have not ended, or not settled, to query their schedulers; None: only this
    machine is looked at. A store that this user can only read stays as it is; it raises `StoreError` with *ask*.
    """
    if store.is_read_only:
        if ask is not None:
            raise StoreError(f"the store {store.name} is read-only for you, so nobody is asked: {_YOUR_OWN}")
        return Collected(report=IngestReport(), runs=open_runs(store))
    if store.is_shared:
        origin.mark(places.runs)
    report = ingest_all(store, *external_runs.roots(places), is_anew=is_anew)
    if not is_silent:
        tell_left_out(report.problems)
    unfinished = open_runs(store, places.runs)  # what others have in the store is theirs to find out
    before = read_words(store, [record.uid for record in unfinished]) if ask is not None else {}
    known = ask(unfinished) if ask is not None else {}  # also without one: jobs may live of which no run does
    if not unfinished:
        return Collected(report=report, runs=())
    submitting = _submissions_under_way(places)
    judged = [
        RunDir(Path(record.path)) for record in unfinished if _is_judged(record, known, before, submitting, places)
    ]
    with store.together():
        for run_dir in judged:
            _read_again(store, run_dir)
    changed = {run_dir.uid for run_dir in judged}
    now_known = [get_run(store, record.uid) if record.uid in changed else record for record in unfinished]
    return Collected(report=report, runs=now_known)


def _read_again(store: Database, run_dir: RunDir) -> None:
    try:
        ingest_run(store, run_dir)
    except StoreError:
        raise
    except HpcmlError as error:  # its run.json was damaged since it was read
        log.warning("run %s is shown as it was: %s", run_dir.uid, error)


def _is_judged(
    record: RunRecord,
    known: Mapping[str, Known | None],
    before: Mapping[str, tuple[Known, float]],
    submitting: Collection[str],
    places: Places,
) -> bool:
    """Tell whether the run has ended without saying so, and journal that end, unless it was journalled meanwhile."""
    run_dir, previous = RunDir(Path(record.path)), before.get(record.uid)
    try:
        if record.uid in known:
            was_final = previous is not None and previous[0].state.is_final
            verdict = _by_word(record, known, run_dir, places, was_final_before=was_final)
        else:
            verdict = _unasked(record, run_dir, places, is_being_submitted=record.submission in submitting)
        if verdict is not None and _still_stands(record, run_dir):
            pronounce(record, verdict)
    except FileNotFoundError:
        return False  # it is being removed
    except (HpcmlError, OSError) as error:  # of its journals: the other runs are judged all the same
        log.warning("whether run %s goes on cannot be told: %s", record.uid, error)
        return False
    return verdict is not None


def _unasked(record: RunRecord, run_dir: RunDir, places: Places, *, is_being_submitted: bool) -> Verdict | None:
    now = datetime.now().astimezone()
    return supervision.judge_unsupervised(
        record, run_dir, now, is_being_submitted=is_being_submitted, submissions=places.submissions
    )


def tell_left_out(problems: Sequence[str]) -> None:
    """Say in one line of the log what an answer leaves out, however much that is, and what to do; nothing if nothing.

    *problems* are those of the `IngestReport`: a line for each run or journal that could not be read.
    """
    if len(problems) == 1:
        log.warning("left out of this answer: %s (put it right, or remove the run's folder)", problems[0])
    elif problems:
        more = len(problems) - 1
        log.warning("left out of this answer: %s; and %d more: hpcml sync lists them", problems[0], more)


def pronounce(record: RunRecord, verdict: Verdict) -> None:
    """Journal *verdict* in the run of *record*.

    For an end its cause is judged and journalled too, the webhook is told, and the cancel mark is removed, so that a
    job script that is submitted again by hand runs. Raises `HpcmlError` where there was no room for it.
    """
    run_dir = RunDir(Path(record.path))
    told = _with_cause(verdict, run_dir) if verdict.is_end else verdict
    with JournalWriter.open(str(run_dir.journals), run=record.uid, attempt=told.attempt, writer="collect") as journal:
        journal.event(told.name, told.details)
        if told.is_end:
            tell_of_end(record, run_dir, told, tell=lambda name, **details: journal.event(name, details))
    if journal.dropped:
        raise HpcmlError(f"its end could not be written to {run_dir.journals}: is the disk full?")
    if told.is_end:
        unmark(run_dir)  # it has ended: whoever submits job.sh again wants it to run


def _by_word(
    record: RunRecord, words: Mapping[str, Known | None], run_dir: RunDir, places: Places, *, was_final_before: bool
) -> Verdict | None:
    known = words[record.uid]
    if known is not None and (known.state is State.RUNNING or known.state is record.state is State.PENDING):
        return None  # the usual answers, for which no file is opened
    started = supervision.last_start(run_dir)
    ran_as = None if started is None else started.details.get("job_id")
    if record.state is State.RUNNING and started is not None and ran_as is None:
        # by hand, outside any job: what the scheduler says of the job before it does not concern this attempt
        by_hand = replace(record, scheduler="local", job_id=record.job_id or "by hand")
        return _unasked(by_hand, run_dir, places, is_being_submitted=False)
    about = Circumstances(
        is_cancelled=is_cancelled(run_dir),
        quiet_s=_quiet_s(run_dir, time.time()),
        ran_as=None if ran_as is None else str(ran_as),
        was_final_before=was_final_before,
        waits_in_vain=supervision.why_never(record, run_dir) if record.state is State.PENDING else None,
        not_built_by=_failed_builder(run_dir, words) if record.state is State.PENDING else None,
    )
    return by_scheduler(record, known, about)


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


def _still_stands(record: RunRecord, run_dir: RunDir) -> bool:
    """Tell whether the run still stands as *record* says: its own words that came meanwhile go first.

    While an agent puts the run back into the queue, or has just done so, the scheduler's word may be of the job before.
    """
    seen = Watcher(run_dir).look()
    if (seen.state, seen.is_settled) != (record.state, record.is_settled) or seen.attempt > record.attempt:
        return False
    told = read_fold(run_dir)
    if told.job is not None and told.job.job_id != record.job_id:
        return False
    return not supervision.is_being_requeued(told) or _quiet_s(run_dir, time.time()) >= QUIET_S


def _quiet_s(run_dir: RunDir, now: float) -> float:
    written = [path.stat().st_mtime for path in run_dir.journal_files() if not is_by_user(path)]
    return now - max(written) if written else float("inf")


def _with_cause(verdict: Verdict, run_dir: RunDir) -> Verdict:
    if "cause" in verdict.details:
        return verdict
    if verdict.name == EventName.CANCELLED:
        cause = Cause.CANCELLED
    else:
        state = State.LOST if verdict.name == EventName.LOST else State(verdict.details["state"])
        cause = classify(
            state,
            reason=verdict.details.get("reason"),
            raw=verdict.details.get("raw"),
            exit_code=None,
            signal=None,
            log_tail=log_tail(run_dir),
        )
        cause = verdict.otherwise if cause is Cause.UNKNOWN else cause
    return replace(verdict, details={**verdict.details, "cause": cause.value})


def _submissions_under_way(places: Places) -> frozenset[str]:
    """Return the submissions that `hpcml run` is making, or was making when it died: `hpcml sync` finishes those."""
    return frozenset(path.name.partition(".")[0] for path in places.open_submissions.glob("*.json"))


# The webhook is told here of ends that no agent lived to tell.


def tell_of_end(record: RunRecord, run_dir: RunDir, verdict: Verdict, *, tell: Callable[..., None]) -> None:
    """Post the message that the run's ``schedule.notify`` asks for, if any, about an end that no agent lived to report.

    *tell* journals an event: `notified`, or `notify_failed` with the reason. Nothing is raised.
    """
    if record.params.get("schedule.notify") in (None, "never"):
        return
    # Imported here: what speaks HTTP costs a twentieth of a second, which hardly any command needs.
    from hpcml.agent import notify  # noqa: PLC0415
    from hpcml.agent.assignment import Turn  # noqa: PLC0415

    try:
        manifest = read_manifest(run_dir.manifest)
    except HpcmlError as error:
        tell("notify_failed", what=record.params.get("schedule.notify"), error=str(error))
        return
    notify.tell_of_end(
        Turn(run_dir=run_dir, source=run_dir.manifest, manifest=manifest, node=0, pack=None),
        state_after(verdict.name, verdict.details),
        reason=verdict.details.get("reason"),
        cause=verdict.details.get("cause"),
        wall_s=record.wall_s,
        tell=tell,
    )
