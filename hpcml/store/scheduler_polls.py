"""Polling schedulers politely: when one may be asked again by all hpcml processes of this user, and its last answers.

Both stand in one small file of the user's home, since no run directory says them and a store may be deleted. Whoever
changes it holds a lock.

A poll of n calls of the scheduler's programs allows the next one n intervals later; each failure in a row doubles that,
up to `LONGEST_BACK_OFF_S`. Times are unix seconds of clocks that may be set back or differ between login nodes: a wait
is at most doubled by that, never endless.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcml.errors import StoreError
from hpcml.model.records import Known
from hpcml.model.state import State
from hpcml.runs.atomic import write_text
from hpcml.runs.files import read_json
from hpcml.runs.lock import Lock, Patience, kept_alive, wait_for

LONGEST_BACK_OFF_S = 16 * 60.0
CLAIM_LAPSES_S = 5 * 60.0  # longer than any poll takes: who claimed it has died
_FILE, _LOCKS, _LOCK = "schedulers.json", "locks", "schedulers"
_PATIENCE = Patience(poll_s=0.05)
_KEPT_S = 30 * 86400.0  # a word of a job that nobody has asked about for so long is of no use
_WORDS = ("raw", "exit_code", "reason", "expected_start", "is_live")


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


def claim_poll(home: Path, scheduler: str, *, now: float, interval_s: float) -> bool:
    """Whether the caller may ask *scheduler* now; if so, it must call `record_poll` afterwards.

    Atomic among all processes that use the home. A claim that is never recorded expires after `CLAIM_LAPSES_S`. *now*
    is in unix seconds. *interval_s* is how often this caller wants to ask. False where the last poll is more recent
    than the wait for it (`wait_s`), or where another process is asking. `hpcml status` is the caller. Raises
    `StoreError` where the home cannot be written.

    >>> if claim_poll(places.home, "slurm", now=time.time(), interval_s=30.0):  # doctest: +SKIP
    ...     answers = submitter.query(tickets)  # then record_poll, also after a failure
    """
    if not _is_due(_polls(_read(home)).get(scheduler), now, interval_s):
        return False  # the usual answer waits for nobody
    with _changing(home) as content:
        polls = _polls(content)
        if not _is_due(polls.get(scheduler), now, interval_s):
            return False
        polls.setdefault(scheduler, {})["claimed_at"] = now
        return True


def record_poll(
    home: Path,
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
    with _changing(home) as content:
        poll = _polls(content).setdefault(scheduler, {})
        poll.pop("claimed_at", None)
        if calls == 0 and answered:
            return
        failures = 0 if answered else 1 + poll.get("failures", 0)
        next_at = now + wait_s(calls, failures, interval_s)
        poll |= {"asked_at": now, "next_at": next_at, "calls": calls, "failures": failures, "problem": problem}


def last_poll(home: Path, scheduler: str) -> Poll | None:
    """Return the last poll of *scheduler*; None if there was none.

    A claim alone is no poll.
    """
    poll = _polls(_read(home)).get(scheduler, {})
    if "asked_at" not in poll:
        return None
    return Poll(**{name: poll[name] for name in Poll.__dataclass_fields__})


def wait_s(calls: int, failures: int, interval_s: float) -> float:
    """Return the seconds from a poll of *calls* calls to the next one.

    *failures* counts failed polls in a row, including this one.

    >>> wait_s(1, 0, 30.0), wait_s(1, 2, 30.0), wait_s(1, 9, 30.0)
    (30.0, 120.0, 960.0)
    """
    plain = max(1, calls) * interval_s  # a poll that failed before its first call is no reason to hurry
    return max(plain, min(plain * 2.0 ** min(failures, 64), LONGEST_BACK_OFF_S))


def keep_words(home: Path, words: Mapping[str, Known], *, at: float) -> None:
    """Keep what the schedulers reported of jobs at *at* (unix seconds), by uid of the run.

    A newer word replaces the older one of the same run. It is shown to people (`hpcml status`, `hpcml show`) and never
    decides the state of a run. Nothing is written for an empty *words*.
    """
    if not words:
        return
    with _changing(home) as content:
        kept = {uid: word for uid, word in content.get("words", {}).items() if at - word["at"] < _KEPT_S}
        for uid, known in words.items():
            kept[uid] = {"at": at, "state": known.state.value, **{name: getattr(known, name) for name in _WORDS}}
        content["words"] = kept


def read_words(home: Path, uids: Collection[str]) -> dict[str, tuple[Known, float]]:
    """Return by uid what a scheduler reported last of the run, and when (unix seconds).

    A run without a report is absent. How old a word may be is for the caller to judge.
    """
    words = _read(home).get("words", {})
    return {
        uid: (Known(state=State(word["state"]), **{name: word[name] for name in _WORDS}), word["at"])
        for uid in uids
        if (word := words.get(uid)) is not None
    }


def _polls(content: dict[str, Any]) -> dict[str, Any]:
    polls: dict[str, Any] = content.setdefault("polls", {})
    return polls


def _read(home: Path) -> dict[str, Any]:
    """Return what the file says; nothing where there is none, or what is no longer readable."""
    try:
        content = read_json(home / _FILE)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def _changing(home: Path) -> Iterator[dict[str, Any]]:
    """Give what the file says, to be changed, and write it at the end of the block, if it was."""
    try:
        for holder in wait_for(home / _LOCKS, _LOCK, patience=_PATIENCE):
            if isinstance(holder, Lock):
                with kept_alive(holder):
                    content = _read(home)
                    before = json.dumps(content)
                    yield content
                    if (after := json.dumps(content)) != before:
                        write_text(home / _FILE, after)
    except OSError as error:
        raise StoreError(f"{home / _FILE} cannot be written: {error.strerror}") from error


def _is_due(poll: Mapping[str, Any] | None, now: float, interval_s: float) -> bool:
    if poll is None:
        return True
    if "claimed_at" in poll and abs(now - poll["claimed_at"]) < CLAIM_LAPSES_S:
        return False
    if "asked_at" in poll:
        wait = wait_s(
            poll["calls"], poll["failures"], interval_s
        )  # by the caller's interval: it may be in more of a hurry
        return not -wait <= now - poll["asked_at"] < wait  # so far back only a clock goes that was set
    return True
