"""Waiting until runs have ended, for ``hpcml wait``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hpcml.commands import repairs
from hpcml.commands.collect import collect
from hpcml.commands.follow import why_removed
from hpcml.commands.retry import is_going_on
from hpcml.commands.selection import Selection, select
from hpcml.commands.status import SchedulersAsked
from hpcml.commands.submit.backends import Backends
from hpcml.errors import OF_THE_DISK, NoSuchRunError, StoreError, why_not
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.store.database import Database
from hpcml.store.query import get_run

_PERIOD_S = 1.0
_MAY_BE_AWAY_S = 600.0  # a store, or the file system with the runs
_SHARE = 4.0  # so many times longer than looking takes is slept: a thousand directories on a slow file system


class TimeIsUpError(Exception):
    """The time given for waiting is over, and `left` runs have not ended."""

    def __init__(self, left: int) -> None:
        super().__init__(f"{left} run has not ended" if left == 1 else f"{left} runs have not ended")
        self.they = "it goes" if left == 1 else "they go"


def wait(
    store: Database, backends: Backends, selection: Selection, *, interval_s: float, timeout_s: float | None
) -> Iterator[RunRecord | str]:
    """Yield each of the selected runs as it ends; lines of text say who does not answer, and what wants repair.

    Schedulers are asked once in *interval_s* seconds.
    An empty selection means all runs that have not ended. The runs are fixed at the first look: later ones are not
    waited for. One whose directory was removed is lost. Between two looks at least a second passes, and four times as
    long as the look took.

    A store or a file system that does not answer after the first look is asked again, for ten minutes at most; then
    `StoreError` or `OSError` is raised. So is `TimeIsUpError` where runs are left after *timeout_s* seconds; None waits
    for ever.
    """
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    asked = SchedulersAsked(backends=backends, interval_s=interval_s)
    left: list[str] | None = None  # uids, once they are known
    away_since, before = None, set[str]()  # the lines of the last look, without what changes all the time
    while True:
        began, ended = time.monotonic(), list[RunRecord]()
        try:
            now, notes = _look(store, backends.places, asked)
            if left is None:
                chosen = [] if selection.is_empty else select(store, selection)
                left = sorted(now) if selection.is_empty else [record.uid for record in chosen]
            records = [now.get(uid) or get_run(store, uid) for uid in left]
            ended = sorted((record for record in records if _is_over(store, record)), key=lambda record: record.uid)
            away_since = None
        except (StoreError, OSError) as error:
            if left is None:
                raise
            away_since = away_since or began
            notes = [_patience_with(error, began - away_since)]
        over = {record.uid for record in ended}
        left = [uid for uid in left if uid not in over]
        notes += _stuck({uid: why for uid, why in asked.stuck.items() if uid in left})
        yield from (note for note in notes if note.partition(";")[0] not in before)
        before = {note.partition(";")[0] for note in notes}
        yield from ended
        yield from repairs.of_failed(backends.places, ended)
        if not left:
            return
        if time.monotonic() >= until:
            raise TimeIsUpError(len(left))
        pause_s = max(_PERIOD_S, _SHARE * (time.monotonic() - began))
        time.sleep(max(0.0, min(pause_s, until - time.monotonic())))


def _stuck(whys: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason why runs wait that do not start by themselves; *whys* are by uid."""
    for why in dict.fromkeys(whys.values()):
        uids = [uid for uid, its in whys.items() if its == why]
        yield f"{repairs.which(uids)} {'waits' if len(uids) == 1 else 'wait'}: {why}"


def _patience_with(error: StoreError | OSError, away_s: float) -> str:
    """Return one line about *error*, or raise it where it does not pass, or has lasted for ten minutes."""
    is_passing = not isinstance(error, NoSuchRunError) and (isinstance(error, StoreError) or error.errno in OF_THE_DISK)
    if not is_passing or away_s >= _MAY_BE_AWAY_S:
        raise error
    why = why_not(error, "HPCML_HOME") if isinstance(error, OSError) else str(error)
    return f"{why}; it is tried again for ten minutes"


def _look(store: Database, places: Places, asked: SchedulersAsked) -> tuple[dict[str, RunRecord], list[str]]:
    """Return the runs that had not ended before, by uid, and lines about silent schedulers and what wants repair.

    One whose directory was removed is lost.
    """
    collected = collect(store, places, asked)
    now = {record.uid: record for record in collected.runs}
    for record in collected.removed:
        now[record.uid] = replace(record, state=State.LOST, is_settled=True, reason=why_removed(record.path))
    return now, [*asked.problems, *repairs.of_queues(places), *repairs.of_cancelled(store, places)]


def _is_over(store: Database, record: RunRecord) -> bool:
    return record.state.is_final and record.is_settled and not is_going_on(store, record, time.time())
