"""What happened to the runs, brought into the store: journals read on, and runs that nobody tends any more found out.

The run directories are the truth: a verdict reached here is journalled in them first, then read from there. Several
processes may do this at once: a verdict is the same whoever reaches it, and so is what two equal ones mean.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from hpcml.causes import Cause, classify
from hpcml.errors import ConfigError, HpcmlError, StoreError
from hpcml.manifest import read_manifest
from hpcml.operations import elsewhere, notify, tending
from hpcml.operations.last_words import log_tail
from hpcml.operations.verdicts import Circumstances, Verdict, by_scheduler
from hpcml.operations.watcher import Watcher
from hpcml.places import Places
from hpcml.records import Known, RunRecord
from hpcml.rundir import RunDir, is_by_user
from hpcml.states import State
from hpcml.store import homes
from hpcml.store.engine import Store, open_store
from hpcml.store.ingest import IngestReport, ingest_all, ingest_run
from hpcml.store.polls import read_words
from hpcml.store.queries import get_run, open_runs
from hpcml_client.journal import JournalWriter

log = logging.getLogger(__name__)

_YOUR_OWN = "choose one of your own (--store, HPCML_STORE)"

# For each run that was asked about: what its scheduler knows, or None if it has forgotten it. A run whose scheduler
# gave no answer, or was not asked, is left out.
Ask = Callable[[Sequence[RunRecord]], Mapping[str, Known | None]]


@contextmanager
def opened(places: Places, *, to_write: bool = False) -> Iterator[Store]:
    """Open the store, made at first use, and close it again.

    One that this user can only read is shown as it is, with a warning; *to_write* refuses it.
    """
    if places.store_url == str(places.home / "store.db"):
        try:
            places.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"HPCML_HOME={places.home} cannot be made: {error.strerror} (choose another)") from error
    store = open_store(places.store_url)
    try:
        if store.is_read_only:
            if to_write:
                raise StoreError(f"the store {store.name} is read-only for you: {_YOUR_OWN}")
            log.warning("the store %s is read-only for you: it is shown as it was at its last ingest", store.name)
        yield store
    finally:
        store.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What there was to read, and as they are now the runs that had not ended, or not settled, when it was read."""

    report: IngestReport
    runs: Sequence[RunRecord]


def collect(store: Store, places: Places, ask: Ask | None = None, *, is_anew: bool = False) -> Collected:
    """Bring every run directory that is known into the store; as often as you like.

    Those that lie elsewhere are read and nothing else: what became of their jobs is not ours to find out.
    With *ask* the schedulers are asked for the runs that have not ended, or not settled; without it only this machine
    is looked at. A store that this user can only read stays as it is, and nobody is asked.
    """
    if store.is_read_only:
        if ask is not None:
            raise StoreError(f"the store {store.name} is read-only for you, so nobody is asked: {_YOUR_OWN}")
        return Collected(report=IngestReport(), runs=open_runs(store))
    if store.is_shared:
        homes.mark(places.runs)
    report = ingest_all(store, *elsewhere.roots(places), is_anew=is_anew)
    unfinished = open_runs(store, places.runs)  # what others have in the store is theirs to find out
    if not unfinished:
        return Collected(report=report, runs=())
    before = read_words(store, [record.uid for record in unfinished]) if ask is not None else {}
    known = ask(unfinished) if ask is not None else {}
    submitting = _submissions_under_way(places)
    judged: list[RunDir] = []
    for record in unfinished:
        run_dir = RunDir(Path(record.path))
        if record.uid in known:
            previous = before.get(record.uid)
            was_final = previous is not None and previous[0].state.is_final
            verdict = _by_word(record, known, run_dir, was_final_before=was_final)
        else:
            is_being_submitted = record.submission in submitting
            now = datetime.now().astimezone()
            verdict = tending.by_sight(record, run_dir, now, is_being_submitted=is_being_submitted)
        if verdict is None:
            continue
        if _still_stands(record, run_dir):
            pronounce(record, verdict)
        judged.append(run_dir)
    with store.together():
        for run_dir in judged:
            ingest_run(store, run_dir)
    changed = {run_dir.uid for run_dir in judged}
    now_known = [get_run(store, record.uid) if record.uid in changed else record for record in unfinished]
    return Collected(report=report, runs=now_known)


def pronounce(record: RunRecord, verdict: Verdict) -> None:
    """Journal *verdict*, and tell whoever wants to know of an end."""
    run_dir = RunDir(Path(record.path))
    told = _with_cause(verdict, run_dir) if verdict.is_end else verdict
    with JournalWriter.open(str(run_dir.journals), run=record.uid, attempt=told.attempt, writer="collect") as journal:
        journal.event(told.name, told.details)
        if told.is_end:
            notify.tell_of_end(record, run_dir, told, tell=lambda name, **details: journal.event(name, details))
    if told.is_end:
        run_dir.cancel_mark.unlink(missing_ok=True)  # it has ended: whoever submits job.sh again wants it to run


def _by_word(
    record: RunRecord, words: Mapping[str, Known | None], run_dir: RunDir, *, was_final_before: bool
) -> Verdict | None:
    known = words[record.uid]
    if known is not None and (known.state is State.RUNNING or known.state is record.state is State.PENDING):
        return None  # the usual answers, for which no file is opened
    started = tending.last_start(run_dir)
    ran_as = None if started is None else started.details.get("job_id")
    if record.state is State.RUNNING and started is not None and ran_as is None:
        # by hand, outside any job: what the scheduler says of the job before it does not concern this attempt
        now = datetime.now().astimezone()
        by_hand = replace(record, scheduler="local", job_id=record.job_id or "by hand")
        return tending.by_sight(by_hand, run_dir, now, is_being_submitted=False)
    about = Circumstances(
        is_cancelled=run_dir.cancel_mark.exists(),
        quiet_s=_quiet_s(run_dir, time.time()),
        ran_as=None if ran_as is None else str(ran_as),
        was_final_before=was_final_before,
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
    """Tell whether the run still stands as *record* says: its own words that came meanwhile go first."""
    seen = Watcher(run_dir).look()
    return (seen.state, seen.is_settled) == (record.state, record.is_settled) and seen.attempt <= record.attempt


def _quiet_s(run_dir: RunDir, now: float) -> float:
    written = [path.stat().st_mtime for path in run_dir.journal_files() if not is_by_user(path)]
    return now - max(written) if written else float("inf")


def _with_cause(verdict: Verdict, run_dir: RunDir) -> Verdict:
    if "cause" in verdict.details:
        return verdict
    if verdict.name == "cancelled":
        cause = Cause.CANCELLED
    else:
        state = State.LOST if verdict.name == "lost" else State(verdict.details["state"])
        cause = classify(
            state,
            reason=verdict.details.get("reason"),
            raw=verdict.details.get("raw"),
            exit_code=None,
            signal=None,
            log_tail=log_tail(run_dir),
        )
    return replace(verdict, details={**verdict.details, "cause": cause.value})


def _submissions_under_way(places: Places) -> frozenset[str]:
    """Return the submissions that `hpcml run` is making, or was making when it died: `hpcml sync` finishes those."""
    return frozenset(path.name.partition(".")[0] for path in places.open_submissions.glob("*.json"))
