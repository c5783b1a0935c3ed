"""Asking schedulers politely: when one may be asked again by all hpcml of this user together, and what it said last.

A poll of n calls of the scheduler's programs allows the next one n intervals later; each failure in a row doubles that,
up to `LONGEST_BACK_OFF_S`. Times are unix seconds of clocks that may be set back or differ between login nodes: a wait
is at most doubled by that, never endless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select, update

from hpcml.records import Known
from hpcml.states import State
from hpcml.store.engine import Store
from hpcml.store.intake import storable
from hpcml.store.loading import chunked
from hpcml.store.locks import hold_scheduler, hold_words
from hpcml.store.tables import POLL, WORD

LONGEST_BACK_OFF_S = 16 * 60.0
CLAIM_LAPSES_S = 5 * 60.0  # longer than any poll takes: who claimed it has died
_TEXTS = ("raw", "exit_code", "reason", "expected_start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The last time that a scheduler was asked."""

    asked_at: float
    next_at: float  # not to be asked before, by the interval of whoever asked
    failures: int  # in a row; 0: it answered
    problem: str | None


def claim_poll(store: Store, scheduler: str, *, now: float, interval_s: float) -> bool:
    """Tell whether the caller is the one who may ask *scheduler* now; if so, it must then call `record_poll`.

    Atomic among all processes that use the store. A claim that is never recorded lapses after `CLAIM_LAPSES_S`.
    """
    with store.reading() as connection:
        if not _is_due(connection, scheduler, now, interval_s):
            return False  # the usual answer waits for nobody who writes
    with store.writing() as connection, connection.begin():
        hold_scheduler(connection, scheduler)
        if not _is_due(connection, scheduler, now, interval_s):
            return False
        _write(connection, scheduler, {"claimed_at": now}, {"calls": 0, "failures": 0})
        return True


def record_poll(
    store: Store,
    scheduler: str,
    *,
    now: float,
    calls: int,
    answered: bool,
    interval_s: float,
    problem: str | None,
) -> None:
    """End the claim: *calls* were made, and *answered* says whether the scheduler did; *problem* is why not.

    Where no call was made and nothing went wrong, nothing was asked: the claim is given back, the rest stays.
    """
    with store.writing() as connection, connection.begin():
        hold_scheduler(connection, scheduler)
        if calls == 0 and answered:
            connection.execute(update(POLL).where(POLL.c.scheduler == scheduler).values(claimed_at=None))
            return
        before = select(POLL.c.failures).where(POLL.c.scheduler == scheduler)
        failures = 0 if answered else 1 + (connection.execute(before).scalar_one_or_none() or 0)
        values = {
            "claimed_at": None,
            "asked_at": now,
            "next_at": now + wait_s(calls, failures, interval_s),
            "calls": calls,
            "failures": failures,
            "problem": None if problem is None else storable(problem),
        }
        _write(connection, scheduler, values, {})


def last_poll(store: Store, scheduler: str) -> Poll | None:
    """Return when *scheduler* was last asked; None if it never was."""
    with store.reading() as connection:
        row = connection.execute(select(POLL).where(POLL.c.scheduler == scheduler)).one_or_none()
    if row is None or row.asked_at is None:
        return None
    return Poll(asked_at=row.asked_at, next_at=row.next_at, failures=row.failures, problem=row.problem)


def wait_s(calls: int, failures: int, interval_s: float) -> float:
    """Return how long a poll of *calls* calls, the last of so many *failures* in a row, keeps from the next one."""
    plain = max(1, calls) * interval_s  # a poll that failed before its first call is no reason to hurry
    return max(plain, min(plain * 2.0 ** min(failures, 64), LONGEST_BACK_OFF_S))


def keep_words(store: Store, words: Mapping[str, Known], *, at: float) -> None:
    """Remember what the schedulers said *at* that time, by uid."""
    rows = []
    for uid, known in words.items():
        said = {**asdict(known), "state": known.state.value}
        said |= {name: storable(said[name]) for name in _TEXTS if said[name] is not None}
        rows.append({"uid": uid, "at": at, **said})
    if not rows:
        return
    with store.writing() as connection, connection.begin():
        hold_words(connection)
        for chunk in chunked(list(words)):
            connection.execute(delete(WORD).where(WORD.c.uid.in_(chunk)))
        connection.execute(insert(WORD), rows)


def read_words(store: Store, uids: Sequence[str]) -> dict[str, tuple[Known, float]]:
    """Return the last word on each run of *uids*, and when it was said; a run without one is absent."""
    said: dict[str, tuple[Known, float]] = {}
    with store.reading() as connection:
        for chunk in chunked(uids):
            for uid, at, state, *rest in connection.execute(select(WORD).where(WORD.c.uid.in_(chunk))):
                raw, exit_code, reason, expected_start, is_live = rest
                said[uid] = (
                    Known(
                        state=State(state),
                        raw=raw,
                        exit_code=exit_code,
                        reason=reason,
                        expected_start=expected_start,
                        is_live=is_live,
                    ),
                    at,
                )
    return said


def _write(
    connection: Connection, scheduler: str, values: Mapping[str, object], at_first: Mapping[str, object]
) -> None:
    """Set *values*; where the scheduler is new, *at_first* too. Nobody else writes its row meanwhile."""
    done = connection.execute(update(POLL).where(POLL.c.scheduler == scheduler).values(**values))
    if done.rowcount == 0:
        connection.execute(insert(POLL).values(scheduler=scheduler, **at_first, **values))


def _is_due(connection: Connection, scheduler: str, now: float, interval_s: float) -> bool:
    row = connection.execute(select(POLL).where(POLL.c.scheduler == scheduler)).one_or_none()
    if row is None:
        return True
    if row.claimed_at is not None and abs(now - row.claimed_at) < CLAIM_LAPSES_S:
        return False
    if row.asked_at is None:
        return True
    wait = wait_s(row.calls, row.failures, interval_s)  # by the caller's interval: it may be in more of a hurry
    since = now - float(row.asked_at)
    return not -wait <= since < wait  # so far back only a clock goes that was set
