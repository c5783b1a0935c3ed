"""Runs waited for: looked at again and again, the schedulers as often as is polite, until all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpcml.errors import HpcmlError
from hpcml.operations.backends import Backends
from hpcml.operations.collect import collect
from hpcml.operations.consult import Selection, select
from hpcml.operations.retry import Retried, is_going_on, retry_automatically, to_retry
from hpcml.operations.standing import SchedulersAsked, Standing, standing_of
from hpcml.places import Places
from hpcml.records import RunRecord
from hpcml.store.engine import Store
from hpcml.store.queries import get_run

WAIT_PERIOD_S = 1.0
WATCH_PERIOD_S = 2.0
_SHARE = 4.0  # so many times longer than looking takes is slept: a thousand directories on a slow file system


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that has ended for good."""

    record: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A scheduler that gave no answer, in one line."""

    problem: str


class TimeIsUpError(Exception):
    """The time given for waiting is over; `left` have not ended."""

    def __init__(self, left: int) -> None:
        super().__init__(f"{left} runs have not ended")
        self.left = left


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waiting needs."""

    store: Store
    places: Places
    backends: Backends
    interval_s: float  # of one call of a scheduler's program

    def asked(self) -> SchedulersAsked:
        """Return who asks the schedulers."""
        return SchedulersAsked(store=self.store, backends=self.backends, interval_s=self.interval_s)


def wait(waiting: Waiting, selection: Selection, *, timeout_s: float | None) -> Iterator[Ended | Retried | Silent]:
    """Yield every end of the selected runs, or of all that have not ended, as it happens, and what is retried.

    Raises `TimeIsUpError` after *timeout_s*.
    """
    asked, store = waiting.asked(), waiting.store
    until = None if timeout_s is None else time.monotonic() + timeout_s
    left: dict[str, None] | None = None
    told: list[str] = []
    while True:
        began = time.monotonic()
        open_now = {record.uid for record in collect(store, waiting.places, asked).runs if not _is_over(store, record)}
        if left is None:
            chosen = {record.uid for record in to_retry(store, waiting.places)} | open_now
            if not selection.is_empty:
                chosen = {record.uid for record in select(store, selection)}
            left = dict.fromkeys(sorted(chosen))
        yield from (Silent(problem=problem) for problem in asked.problems if problem.partition(";")[0] not in told)
        told = [problem.partition(";")[0] for problem in asked.problems]
        for uid in [uid for uid in left if uid not in open_now]:
            record = get_run(store, uid)
            if not _is_over(store, record):
                continue
            try:
                retried = retry_automatically(store, waiting.places, waiting.backends, record)
            except HpcmlError as error:
                retried = None
                yield Silent(problem=f"{uid} could not be retried: {error}")
            if retried is not None:
                yield retried
                continue
            del left[uid]
            yield Ended(record=get_run(store, uid))
        if not left:
            return
        if until is not None and time.monotonic() >= until:
            raise TimeIsUpError(len(left))
        _sleep(began, WAIT_PERIOD_S, until)


def watch(waiting: Waiting, references: Sequence[str]) -> Iterator[tuple[list[Standing], list[str]]]:
    """Yield where the runs stand, the named or all that have not ended, every few seconds until all have ended.

    With each comes what there is to say: who gave no answer, and what was retried.
    """
    asked, store = waiting.asked(), waiting.store
    shown: dict[str, None] = {} if references else {record.uid: None for record in to_retry(store, waiting.places)}
    given_up: set[str] = set()  # looked at once after their end, and not retried
    if references:
        collect(store, waiting.places)
        shown = {record.uid: None for record in select(store, Selection(references=references))}
    while True:
        began = time.monotonic()
        runs = collect(store, waiting.places, asked).runs
        open_now = {record.uid: record for record in runs}
        if not references:
            shown |= dict.fromkeys(sorted(open_now))
        records = [open_now.get(uid) or get_run(store, uid) for uid in shown]
        notes, retried = retry_all(waiting, [record for record in records if record.uid not in given_up])
        given_up |= {record.uid for record in records if _is_over(store, record)} if not retried else set()
        yield standing_of(store, records), [*asked.problems, *notes]
        if not retried and all(_is_over(store, record) for record in records):
            return
        _sleep(began, WATCH_PERIOD_S, None)


def retry_all(waiting: Waiting, records: Sequence[RunRecord]) -> tuple[list[str], bool]:
    """Try again those of *records* that the cluster failed; return what there is to say, and whether any is queued."""
    notes: list[str] = []
    is_any = False
    for record in records:
        if not _is_over(waiting.store, record):
            continue
        try:
            retried = retry_automatically(waiting.store, waiting.places, waiting.backends, record)
        except HpcmlError as error:
            notes.append(f"{record.uid} could not be retried: {error}")
            continue
        if retried is not None:
            is_any = True
            notes.append(f"{retried.uid} {retried.why}")
    return notes, is_any


def _is_over(store: Store, record: RunRecord) -> bool:
    return record.state.is_final and record.is_settled and not is_going_on(store, record, time.time())


def _sleep(began: float, period_s: float, until: float | None, now: Callable[[], float] = time.monotonic) -> None:
    pause_s = max(period_s, _SHARE * (now() - began))
    time.sleep(pause_s if until is None else max(0.0, min(pause_s, until - now())))
