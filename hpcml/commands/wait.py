"""Waiting until runs have ended, for ``hpcml wait`` and ``hpcml status --watch``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcml.commands.collect import collect
from hpcml.commands.follow import why_removed
from hpcml.commands.retry import Retried, is_going_on, retry_automatically
from hpcml.commands.retryable import to_retry
from hpcml.commands.selection import Selection, select
from hpcml.commands.status import SchedulersAsked, Standing, standing_of, start_queues_again
from hpcml.commands.submit.backends import Backends
from hpcml.errors import HpcmlError
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.store.database import Database
from hpcml.store.query import get_run

WAIT_PERIOD_S = 1.0
WATCH_PERIOD_S = 2.0
_SHARE = 4.0  # so many times longer than looking takes is slept: a thousand directories on a slow file system


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that has ended for good."""

    record: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A scheduler that gave no answer, a run that could not be retried, or a queue that was killed, in one line."""

    problem: str


class TimeIsUpError(Exception):
    """The time given for waiting is over, and `left` runs have not ended."""

    def __init__(self, left: int) -> None:
        super().__init__(f"{left} run has not ended" if left == 1 else f"{left} runs have not ended")
        self.left = left


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The open store, the places and the submitters that waiting needs."""

    store: Database
    places: Places
    backends: Backends
    interval_s: float  # of one call of a scheduler's program

    def asked(self) -> SchedulersAsked:
        """Return a new `SchedulersAsked` over the same store."""
        return SchedulersAsked(store=self.store, backends=self.backends, interval_s=self.interval_s)


def wait(waiting: Waiting, selection: Selection, *, timeout_s: float | None) -> Iterator[EndedRun | Retried | Silent]:
    """Yield each end of the selected runs as it happens, each retry, and each scheduler that stops answering.

    An empty selection means all runs that have not ended. The runs are fixed at the first look: later ones are not
    waited for. A run that is retried is waited for again. One whose directory was removed is lost. Between two looks at
    least a second passes, and four times as long as the look took.

    Raises `TimeIsUpError` where runs are left after *timeout_s* seconds; None waits for ever.
    """
    asked, store = waiting.asked(), waiting.store
    until = None if timeout_s is None else time.monotonic() + timeout_s
    left: dict[str, None] | None = None
    told: list[str] = []
    while True:
        began = time.monotonic()
        problems = start_queues_again(waiting.backends)
        collected = collect(store, waiting.places, asked)
        open_now = {record.uid for record in collected.runs if not _is_over(store, record)}
        removed = {record.uid: _lost(record) for record in collected.removed}
        if left is None:
            chosen = {record.uid for record in to_retry(store, waiting.places)} | open_now | set(removed)
            if not selection.is_empty:
                chosen = {record.uid for record in select(store, selection)}
            left = dict.fromkeys(sorted(chosen))
        problems += asked.problems
        yield from (Silent(problem=problem) for problem in problems if problem.partition(";")[0] not in told)
        told = [problem.partition(";")[0] for problem in problems]
        failed: defaultdict[str, list[str]] = defaultdict(list)
        for uid in [uid for uid in left if uid not in open_now]:
            record = removed.get(uid) or get_run(store, uid)
            if not _is_over(store, record):
                continue
            try:
                retried = (
                    None if uid in removed else retry_automatically(store, waiting.places, waiting.backends, record)
                )
            except HpcmlError as error:
                retried = None
                failed[str(error)].append(uid)
            if retried is not None:
                yield retried
                continue
            del left[uid]
            yield EndedRun(record=removed.get(uid) or get_run(store, uid))
        yield from (Silent(problem=line) for line in _not_retried(failed))
        if not left:
            return
        if until is not None and time.monotonic() >= until:
            raise TimeIsUpError(len(left))
        _sleep(began, WAIT_PERIOD_S, until)


def watch(waiting: Waiting, selection: Selection) -> Iterator[tuple[list[Standing], list[str]]]:
    """Yield the standing of the selected runs every few seconds, until all have ended.

    Of an empty selection these are all runs that have not ended, and those that are submitted meanwhile. With each
    comes a list of lines for the user: who gave no answer, and what was retried.
    """
    asked, store = waiting.asked(), waiting.store
    shown: dict[str, None] = {record.uid: None for record in to_retry(store, waiting.places)}
    given_up: set[str] = set()  # looked at once after their end, and not retried
    if not selection.is_empty:
        collect(store, waiting.places)
        shown = {record.uid: None for record in select(store, selection)}
    while True:
        began = time.monotonic()
        queues = start_queues_again(waiting.backends)
        collected = collect(store, waiting.places, asked)
        open_now = {record.uid: record for record in collected.runs}
        removed = {record.uid: _lost(record) for record in collected.removed}
        if selection.is_empty:
            shown |= dict.fromkeys(sorted(open_now))
        records = [open_now.get(uid) or removed.get(uid) or get_run(store, uid) for uid in shown]
        may_retry = [record for record in records if record.uid not in given_up and record.uid not in removed]
        notes, retried = retry_all(waiting, may_retry)
        given_up |= {record.uid for record in records if _is_over(store, record)} if not retried else set()
        yield standing_of(store, records), [*queues, *asked.problems, *notes]
        if not retried and all(_is_over(store, record) for record in records):
            return
        _sleep(began, WATCH_PERIOD_S, None)


def retry_all(waiting: Waiting, records: Sequence[RunRecord]) -> tuple[list[str], bool]:
    """Retry those of *records* that the cluster failed; return lines for the user, and whether any was queued.

    What cannot be retried is one of the lines; nothing is raised for it.
    """
    notes: list[str] = []
    failed: defaultdict[str, list[str]] = defaultdict(list)
    is_any = False
    for record in records:
        if not _is_over(waiting.store, record):
            continue
        try:
            retried = retry_automatically(waiting.store, waiting.places, waiting.backends, record)
        except HpcmlError as error:
            failed[str(error)].append(record.uid)
            continue
        if retried is not None:
            is_any = True
            notes.append(f"{retried.uid} {retried.why}")
    return [*notes, *_not_retried(failed)], is_any


def _not_retried(failed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each error in *failed*, which has the runs that could not be retried for it."""
    for error, uids in failed.items():
        which = uids[0] if len(uids) == 1 else f"{len(uids)} runs ({uids[0]}, ...)"
        yield f"{which} could not be retried: {error}"


def _lost(record: RunRecord) -> RunRecord:
    """Return the *record* of a run whose directory was removed before it had ended, as one that is lost."""
    return replace(record, state=State.LOST, is_settled=True, reason=why_removed(record.path))


def _is_over(store: Database, record: RunRecord) -> bool:
    return record.state.is_final and record.is_settled and not is_going_on(store, record, time.time())


def _sleep(began: float, period_s: float, until: float | None, now: Callable[[], float] = time.monotonic) -> None:
    pause_s = max(period_s, _SHARE * (now() - began))
    time.sleep(pause_s if until is None else max(0.0, min(pause_s, until - now())))
