"""Waiting until runs have ended, for ``hpcml wait`` and ``hpcml status --watch``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from hpcml.commands import repairs
from hpcml.commands.collect import collect
from hpcml.commands.follow import why_removed
from hpcml.commands.retry import is_going_on
from hpcml.commands.selection import Selection, select
from hpcml.commands.status import SchedulersAsked, Standing, standing_of
from hpcml.commands.submit.backends import Backends
from hpcml.errors import OF_THE_DISK, NoSuchRunError, StoreError, why_not
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.store.database import Database
from hpcml.store.query import get_run

WAIT_PERIOD_S = 1.0
WATCH_PERIOD_S = 2.0
_MAY_BE_AWAY_S = 600.0  # a store, or the file system with the runs
_SHARE = 4.0  # so many times longer than looking takes is slept: a thousand directories on a slow file system


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that has ended for good."""

    record: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """In one line: a silent scheduler, a run that waits for somebody, or what `hpcml sync` would repair."""

    problem: str


class TimeIsUpError(Exception):
    """The time given for waiting is over, and `left` runs have not ended."""

    def __init__(self, left: int) -> None:
        super().__init__(f"{left} run has not ended" if left == 1 else f"{left} runs have not ended")
        self.left = left
        self.they = "it goes" if left == 1 else "they go"


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


def wait(waiting: Waiting, selection: Selection, *, timeout_s: float | None) -> Iterator[EndedRun | Silent]:
    """Yield each end of the selected runs as it happens, each scheduler that stops answering, and what wants repair.

    An empty selection means all runs that have not ended. The runs are fixed at the first look: later ones are not
    waited for. One whose directory was removed is lost. Between two looks at least a second passes, and four times as
    long as the look took.

    A store or a file system that does not answer after the first look is asked again, for ten minutes at most; then
    `StoreError` or `OSError` is raised. So is `TimeIsUpError` where runs are left after *timeout_s* seconds; None waits
    for ever.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    following, patience, said = _Following(waiting, selection), _Patience(), ""
    while True:
        began = time.monotonic()
        try:
            yield from following.look()
            patience = _Patience()
            said = ""
        except (StoreError, OSError) as error:
            if following.left is None:
                raise
            if (line := patience.after(error)) != said:
                yield Silent(problem=line)
            said = line
        if following.left is not None and not following.left:
            return
        if until is not None and time.monotonic() >= until:
            raise TimeIsUpError(len(following.left or ()))
        _sleep(began, WAIT_PERIOD_S, until)


@dataclass(slots=True)
class _Following:
    """The runs that are waited for: those that have not ended are in `left`, which is None before the first look."""

    waiting: Waiting
    selection: Selection
    left: dict[str, None] | None = None
    _told: list[str] = field(default_factory=list)
    _told_stuck: set[tuple[str, str]] = field(default_factory=set)  # runs, and why they wait
    _asked: SchedulersAsked = field(init=False)

    def __post_init__(self) -> None:
        self._asked = self.waiting.asked()

    def look(self) -> Iterator[EndedRun | Silent]:
        """Yield what happened since the last look; raises `StoreError` and `OSError`, and is then called again."""
        store = self.waiting.store
        now, problems = _look(self.waiting, self._asked)
        open_now = {uid for uid, record in now.items() if not _is_over(store, record)}
        if self.left is None:
            chosen = now if self.selection.is_empty else {record.uid for record in select(store, self.selection)}
            self.left = dict.fromkeys(sorted(chosen))
        yield from (Silent(problem=problem) for problem in problems if problem.partition(";")[0] not in self._told)
        self._told = [problem.partition(";")[0] for problem in problems]
        yield from (Silent(problem=line) for line in self._stuck(open_now))
        ended = [now.get(uid) or get_run(store, uid) for uid in self.left if uid not in open_now]
        ended = [record for record in ended if _is_over(store, record)]
        for record in ended:
            del self.left[record.uid]
            yield EndedRun(record=record)
        yield from (Silent(problem=line) for line in repairs.of_failed(self.waiting.places, ended))

    def _stuck(self, open_now: Collection[str]) -> Iterator[str]:
        """Yield a line for each reason, not told yet, for which runs wait that do not start by themselves."""
        of_why: defaultdict[str, list[str]] = defaultdict(list)
        for uid, why in self._asked.stuck.items():
            if uid in open_now and uid in (self.left or ()) and (uid, why) not in self._told_stuck:
                self._told_stuck.add((uid, why))
                of_why[why].append(uid)
        for why, uids in of_why.items():
            yield f"{repairs.which(uids)} {'waits' if len(uids) == 1 else 'wait'}: {why}"


@dataclass(slots=True)
class _Patience:
    """How long a store or a file system that does not answer is asked again, once it has answered before."""

    _since: float | None = None

    def after(self, error: StoreError | OSError) -> str:
        """Return one line about *error*, or raise it where it does not pass, or has lasted for ten minutes."""
        if isinstance(error, NoSuchRunError) or (isinstance(error, OSError) and error.errno not in OF_THE_DISK):
            raise error
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since >= _MAY_BE_AWAY_S:
            raise error
        told = why_not(error, "HPCML_HOME") if isinstance(error, OSError) else str(error)
        return f"{told}; it is tried again for ten minutes"


def watch(waiting: Waiting, selection: Selection) -> Iterator[tuple[list[Standing], list[str]]]:
    """Yield the standing of the selected runs every few seconds, until all have ended.

    Of an empty selection these are all runs that have not ended, and those that are submitted meanwhile. With each
    comes a list of lines for the user: who gave no answer, and what `hpcml sync` would repair.
    """
    watching, patience = _Watching(waiting, selection), _Patience()
    last: list[Standing] | None = None
    while True:
        began = time.monotonic()
        try:
            last, notes, is_over = watching.look()
            patience = _Patience()
        except (StoreError, OSError) as error:
            if last is None:
                raise
            notes, is_over = [patience.after(error)], False
        yield last, notes
        if is_over:
            return
        _sleep(began, WATCH_PERIOD_S, None)


@dataclass(slots=True)
class _Watching:
    """The runs that are watched, in the order in which they came."""

    waiting: Waiting
    selection: Selection
    _asked: SchedulersAsked = field(init=False)
    _shown: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._asked, store = self.waiting.asked(), self.waiting.store
        if not self.selection.is_empty:
            collect(store, self.waiting.places)
            self._shown = {record.uid: None for record in select(store, self.selection)}

    def look(self) -> tuple[list[Standing], list[str], bool]:
        """Return how the runs stand, lines for the user, and whether all have ended for good."""
        store = self.waiting.store
        now, notes = _look(self.waiting, self._asked)
        if self.selection.is_empty:
            self._shown |= dict.fromkeys(sorted(now))
        records = [now.get(uid) or get_run(store, uid) for uid in self._shown]
        ended = [record for record in records if _is_over(store, record)]
        notes += repairs.of_failed(self.waiting.places, ended)
        return standing_of(store, records), notes, len(ended) == len(records)


def _look(waiting: Waiting, asked: SchedulersAsked) -> tuple[dict[str, RunRecord], list[str]]:
    """Return the runs that had not ended before, by uid, and lines about silent schedulers and what wants repair.

    One whose directory was removed is lost.
    """
    store, places = waiting.store, waiting.places
    collected = collect(store, places, asked)
    now = {record.uid: record for record in collected.runs}
    for record in collected.removed:
        now[record.uid] = replace(record, state=State.LOST, is_settled=True, reason=why_removed(record.path))
    return now, [*asked.problems, *repairs.of_queues(places), *repairs.of_cancelled(store, places)]


def _is_over(store: Database, record: RunRecord) -> bool:
    return record.state.is_final and record.is_settled and not is_going_on(store, record, time.time())


def _sleep(began: float, period_s: float, until: float | None, now: Callable[[], float] = time.monotonic) -> None:
    pause_s = max(period_s, _SHARE * (now() - began))
    time.sleep(pause_s if until is None else max(0.0, min(pause_s, until - now())))
