"""Polling schedulers politely: when one may be asked again by all hpcml processes of this user, and its last answers.

A poll of n calls of the scheduler's programs allows the next one n intervals later; each failure in a row doubles that,
up to `LONGEST_BACK_OFF_S`. Times are unix seconds of clocks that may be set back or differ between login nodes: a wait
is at most doubled by that, never endless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from hpcml.model.records import Known
from hpcml.store.database import Database
from hpcml.store.parse import storable
from hpcml.store.pieces import chunked
from hpcml.store.reading import OverSqlalchemy, StoreReader
from hpcml.store.schema import POLL, WORD
from hpcml.store.server_locks import hold_scheduler, hold_words

LONGEST_BACK_OFF_S = 16 * 60.0
CLAIM_LAPSES_S = 5 * 60.0  # longer than any poll takes: who claimed it has died
_TEXTS = ("raw", "exit_code", "reason", "expected_start")
# What it used and whether it was killed is in the run's journal, where the end that it belongs to is told
_KEPT = (*_TEXTS, "is_live")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The last poll of a scheduler.

    `asked_at` and `next_at` are unix seconds. `problem` is one line for people on why the scheduler did not answer;
    None where it did.
    """

    asked_at: float
    next_at: float  # not to be asked before, by the interval of whoever asked
    failures: int  # in a row; 0: it answered
    problem: str | None


def claim_poll(store: Database, scheduler: str, *, now: float, interval_s: float) -> bool:
    """Whether the caller may ask *scheduler* now; if so, it must call `record_poll` afterwards.

    Atomic among all processes that use the store. A claim that is never recorded expires after `CLAIM_LAPSES_S`. *now*
    is in unix seconds. *interval_s* is how often this caller wants to ask. False where the last poll is more recent
    than the wait for it (`wait_s`), or where another process is asking. `hpcml status` is the caller. Raises
    `StoreError` where the store is read-only.

    >>> if claim_poll(store, "slurm", now=time.time(), interval_s=30.0):  # doctest: +SKIP
    ...     answers = submitter.query(tickets)  # then record_poll, also after a failure
    """
    with store.reading() as reading:
        if not _is_due(reading, scheduler, now, interval_s):
            return False  # the usual answer waits for nobody who writes
    with store.writing() as connection, connection.begin():
        hold_scheduler(connection, scheduler)
        if not _is_due(OverSqlalchemy(connection), scheduler, now, interval_s):
            return False
        _write(connection, scheduler, {"claimed_at": now}, {"calls": 0, "failures": 0})
        return True


def record_poll(
    store: Database,
    scheduler: str,
    *,
    now: float,
    calls: int,
    answered: bool,
    interval_s: float,
    problem: str | None,
) -> None:
    """End a claim: *calls* were made, *answered* says whether the scheduler answered, *problem* why not.

    With no call and no problem nothing was asked: the claim is given back and the rest stays as it was. *now* is in
    unix seconds. After an answer the count of failures is 0 again.
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


def last_poll(store: Database, scheduler: str) -> Poll | None:
    """Return the last poll of *scheduler*; None if there was none.

    A claim alone is no poll.
    """
    sql = "SELECT asked_at, next_at, failures, problem FROM poll WHERE scheduler = :scheduler AND asked_at IS NOT NULL"
    with store.reading() as reading:
        for asked_at, next_at, failures, problem in reading.rows(sql, scheduler=scheduler):
            return Poll(asked_at=asked_at, next_at=next_at, failures=failures, problem=problem)
    return None


def wait_s(calls: int, failures: int, interval_s: float) -> float:
    """Return the seconds from a poll of *calls* calls to the next one.

    *failures* counts failed polls in a row, including this one.

    >>> wait_s(1, 0, 30.0), wait_s(1, 2, 30.0), wait_s(1, 9, 30.0)
    (30.0, 120.0, 960.0)
    """
    plain = max(1, calls) * interval_s  # a poll that failed before its first call is no reason to hurry
    return max(plain, min(plain * 2.0 ** min(failures, 64), LONGEST_BACK_OFF_S))


def keep_words(store: Database, words: Mapping[str, Known], *, at: float) -> None:
    """Store what the schedulers reported of jobs at *at* (unix seconds), by uid of the run.

    A newer word replaces the older one of the same run. It is shown to people (`hpcml status`, `hpcml show`) and never
    decides the state of a run. Nothing is written for an empty *words*.
    """
    rows = []
    for uid, known in words.items():
        said = {**{name: getattr(known, name) for name in _KEPT}, "state": known.state.value}
        said |= {name: storable(said[name]) for name in _TEXTS if said[name] is not None}
        rows.append({"uid": uid, "at": at, **said})
    if not rows:
        return
    with store.writing() as connection, connection.begin():
        hold_words(connection)
        for chunk in chunked(list(words)):
            connection.execute(delete(WORD).where(WORD.c.uid.in_(chunk)))
        connection.execute(insert(WORD), rows)


def _write(
    connection: Connection, scheduler: str, values: Mapping[str, object], at_first: Mapping[str, object]
) -> None:
    """Update the row of *scheduler* with *values*, or insert it with *at_first* too; the caller holds its lock."""
    done = connection.execute(update(POLL).where(POLL.c.scheduler == scheduler).values(**values))
    if done.rowcount == 0:
        connection.execute(insert(POLL).values(scheduler=scheduler, **at_first, **values))


def _is_due(reading: StoreReader, scheduler: str, now: float, interval_s: float) -> bool:
    sql = "SELECT claimed_at, asked_at, calls, failures FROM poll WHERE scheduler = :scheduler"
    for claimed_at, asked_at, calls, failures in reading.rows(sql, scheduler=scheduler):
        if claimed_at is not None and abs(now - claimed_at) < CLAIM_LAPSES_S:
            return False
        if asked_at is not None:
            wait = wait_s(calls, failures, interval_s)  # by the caller's interval: it may be in more of a hurry
            return not -wait <= now - float(asked_at) < wait  # so far back only a clock goes that was set
    return True
