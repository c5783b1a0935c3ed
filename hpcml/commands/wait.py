"""Waiting until runs have ended, for ``hpcml wait`` and ``hpcml status --watch``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    ended: set[str] = set()
    told: list[str] = []  # at the last look, without what changes all the time
    told_stuck: set[tuple[str, str]] = set()  # runs, and why they wait
    for look in _looks(waiting, selection, period_s=WAIT_PERIOD_S, until=until):
        yield from (Silent(problem=note) for note in look.notes if note.partition(";")[0] not in told)
        told = [note.partition(";")[0] for note in look.notes]
        stuck = [one for one in look.stuck.items() if one not in told_stuck]
        told_stuck.update(stuck)
        for why in dict.fromkeys(why for _, why in stuck):
            uids = [uid for uid, its in stuck if its == why]
            yield Silent(problem=f"{repairs.which(uids)} {'waits' if len(uids) == 1 else 'wait'}: {why}")
        new = sorted((record for record in look.over if record.uid not in ended), key=lambda record: record.uid)
        ended.update(record.uid for record in new)
        yield from (EndedRun(record=record) for record in new)
        yield from (Silent(problem=line) for line in repairs.of_failed(waiting.places, new))


def watch(waiting: Waiting, selection: Selection) -> Iterator[tuple[list[Standing], list[str]]]:
    """Yield the standing of the selected runs every few seconds, until all have ended.

    Of an empty selection these are all runs that have not ended, and those that are submitted meanwhile. With each
    comes a list of lines for the user: who gave no answer, and what `hpcml sync` would repair.
    """
    for look in _looks(waiting, selection, period_s=WATCH_PERIOD_S, takes_new=selection.is_empty):
        yield look.standings, [*look.notes, *repairs.of_failed(waiting.places, look.over)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """How the runs stand, in the order in which they came."""

    standings: list[Standing]
    over: Sequence[RunRecord]  # those that have ended for good
    stuck: Mapping[str, str]  # by uid, why others wait that do not start by themselves
    notes: Sequence[str]


def _looks(
    waiting: Waiting, selection: Selection, *, period_s: float, takes_new: bool = False, until: float | None = None
) -> Iterator[_Look]:
    """Yield how the selected runs stand, again and again until all have ended, or until *until* (monotonic)."""
    store, last, patience = waiting.store, None, _Patience()
    asked = SchedulersAsked(backends=waiting.backends, interval_s=waiting.interval_s)
    uids: dict[str, None] = {}
    while True:
        began = time.monotonic()
        try:
            now, notes = _look(waiting, asked)
            if takes_new or last is None:
                uids |= dict.fromkeys(
                    sorted(now) if selection.is_empty else [record.uid for record in select(store, selection)]
                )
            records = [now.get(uid) or get_run(store, uid) for uid in uids]
            over = [record for record in records if _is_over(store, record)]
            left = uids.keys() - {record.uid for record in over}
            stuck = {uid: why for uid, why in asked.stuck.items() if uid in left}
            last = _Look(standings=standing_of(waiting.places.home, records), over=over, stuck=stuck, notes=notes)
            patience = _Patience()
        except (StoreError, OSError) as error:
            if last is None:
                raise
            last = replace(last, notes=[patience.after(error)])
        yield last
        count = len(last.standings) - len(last.over)
        if not count:
            return
        if until is not None and time.monotonic() >= until:
            raise TimeIsUpError(count)
        pause_s = max(period_s, _SHARE * (time.monotonic() - began))
        time.sleep(pause_s if until is None else max(0.0, min(pause_s, until - time.monotonic())))


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
