"""Queries for runs, curves, events and experiments; what commands and the Python API read from the store.

All functions take an open `Database`, use one snapshot each, and change nothing. Values of runs are looked up by
`hpcml.store.columns`, records loaded by `hpcml.store.loading`.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, func, select

from hpcml.errors import NoSuchRunError, StoreError
from hpcml.model.records import Curve, RunRecord, StoredEvent
from hpcml.model.state import State
from hpcml.runs.layout import NEWEST
from hpcml.store.columns import Keyed, near
from hpcml.store.conditions import Condition, Every, meeting, sorted_by
from hpcml.store.database import Database
from hpcml.store.loading import is_below, load_curves, load_records, load_runs, select_runs
from hpcml.store.pieces import chunked
from hpcml.store.schema import EVENT, JOURNAL, RUN

_SHOWN = 5  # candidates in an error's one line
_OPTIONS = frozenset({"experiment", "submission", "state"})  # by which runs are selected, beside --where
_WRITTEN = frozenset({".html", ".md", ".tex", ".json", ".csv", ".parquet"})  # by report and export
_SHORTEST_END = 4  # of a uid: a slip of the finger must not mean a run, since this is also how runs are cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The number of runs with one experiment name, by state.

    `last_submitted_at` is ISO 8601; None where no run of it has a time of submission.
    """

    name: str
    runs: int
    states: Mapping[State, int]  # only those that occur
    last_submitted_at: str | None


def find_runs(
    store: Database,
    *,
    experiment: str | None = None,
    states: Collection[State] = (),
    filters: Sequence[Condition] = (),
    sort: str | None = None,
    descending: bool = False,
    limit: int | None = None,
    settings: Collection[str] | None = None,
) -> list[RunRecord]:
    """Return the runs that meet all conditions, sorted by *sort*, or else by uid, which is by time of submission.

    Empty *states* means any. *sort* is any key that a condition may begin with (``val_accuracy``, ``duration``); runs
    without a value come last in either direction. Raises `StoreError` for a key that no run ever had. *limit* counts
    after sorting; None means all. Times in *filters* without a zone are in this machine's. With
    *settings* the records are those of a list: they have these settings alone, and no facts, tags, notes or usage.

    >>> best = find_runs(  # doctest: +SKIP
    ...     store, filters=[parse_condition("precision=tf32")], sort="val_accuracy", descending=True, limit=1
    ... )
    """
    now = datetime.now()  # noqa: DTZ005 - without a zone: this machine's, with its rules of summer time
    with store.reading() as connection:
        query = select(RUN.c.id).order_by(RUN.c.uid.desc() if descending else RUN.c.uid)
        if experiment is not None:
            query = query.where(RUN.c.experiment == experiment)
        if states:
            query = query.where(RUN.c.state.in_([state.value for state in states]))
        ids = list(connection.execute(query).scalars())
        values = Keyed(connection, now=now.timestamp())
        if filters:
            found = meeting(Every(of=tuple(filters)), ids, values, now=now)
            ids = [run_id for run_id in ids if run_id in found]
        if sort is not None:
            ids = sorted_by(values(sort), ids, descending=descending)
        return load_runs(connection, ids[:limit], settings=settings)


def check_keys(store: Database, keys: Collection[str]) -> None:
    """Raise `StoreError` where no run ever had anything under one of *keys*; the message names similar keys.

    Commands with ``--columns`` or ``--by`` call it before they do anything else, so that a misspelt key is an error and
    not a column of nothing.
    """
    with store.reading() as connection:
        values = Keyed(connection, now=0.0)
        for key in keys:
            values(key)


def open_runs(store: Database, *roots: Path) -> list[RunRecord]:
    """Return the runs that may still change, by uid: waiting, running, or ended without a recorded reason.

    With *roots* (absolute folders) only those that lie in or below one of them. `hpcml status`, `cancel`, `rm` and the
    check for runs under way before a submission use it.
    """
    waiting_or_running = [state.value for state in State if not state.is_final]
    with store.reading() as connection:
        query = select_runs().where(RUN.c.state.in_(waiting_or_running) | ~RUN.c.is_settled)
        query = query.where(is_below(*roots)) if roots else query
        return load_records(connection, connection.execute(query.order_by(RUN.c.uid)).all())


def get_run(store: Database, reference: str) -> RunRecord:
    """Return the one run that *reference* means; raise `StoreError` where it means none or several (`runs_meant`).

    >>> get_run(store, "abcde").uid  # the end is enough  # doctest: +SKIP
    '20261121-083015-222abcde'
    """
    found = runs_meant(store, reference)
    if len(found) > 1:
        raise StoreError(f"{reference} is a submission of {_several([run.uid for run in found])}; name one of them")
    return found[0]


def get_runs(store: Database, uids: Sequence[str]) -> list[RunRecord]:
    """Return the runs with these whole uids, by uid; one that the store does not have is absent."""
    with store.reading() as connection:
        rows = [
            row
            for chunk in chunked(uids)
            for row in connection.execute(select_runs().where(RUN.c.uid.in_(chunk)).order_by(RUN.c.uid))
        ]
        return load_records(connection, rows)


def runs_meant(store: Database, reference: str) -> list[RunRecord]:
    """Return the run with this uid or unique name, or whose uid alone begins or ends with *reference*.

    ``@1`` is the newest run, ``@2`` the one before it; ``@-1`` are all runs of the last submission, ``@-2`` those of
    the one before it. A part of a uid has four characters or more. Raises `StoreError` where no run, or but for a
    submission more than one, is meant. Looked for in this order, and the first kind that matches counts: the whole
    uid, a name, a part of a uid. Upper and lower case are alike in such a part. The message of an error lists what was
    meant, or what is similar.
    """
    with store.reading() as connection:
        if found := NEWEST.fullmatch(reference):
            rows = connection.execute(_newest(int(found[2]), is_submission=bool(found[1]))).all()
            if rows:
                return load_records(connection, rows)
            raise StoreError(f"{reference}: there are fewer {'submissions' if found[1] else 'runs'} than that")
        rows = connection.execute(select_runs().where(RUN.c.uid == reference)).all()
        named = [] if rows else connection.execute(select_runs().where(RUN.c.name == reference)).all()
        if not rows and not named and len(reference) < _SHORTEST_END:
            raise StoreError(
                f"{reference!r} is no whole id or name: of an id give at least {_SHORTEST_END} characters of its end"
            )
        if not rows and len(named) != 1 and len(reference) >= _SHORTEST_END:
            uid = RUN.c.uid
            ends = uid.istartswith(reference, autoescape=True) | uid.iendswith(reference, autoescape=True)
            rows = connection.execute(select_runs().where(ends).order_by(uid)).all()
        rows = rows or sorted(named, key=lambda row: str(row.uid))
        if len(rows) == 1:
            return load_records(connection, rows)
        if rows:
            raise StoreError(f"{reference!r} means {_several([row.uid for row in rows])}; give more of the uid")
        words = connection.execute(select(RUN.c.uid, RUN.c.name)).all()
        raise NoSuchRunError(_not_found(reference, {word for row in words for word in row if word}), reference)


def _not_found(reference: str, known: Collection[str]) -> str:
    """Return that no run is called so, and what may be meant: a selection, or one of the *known* words."""
    key, sign, value = reference.partition("=")
    if sign:
        option = f"--{key} {shlex.quote(value)}" if key in _OPTIONS else f"--where {shlex.quote(reference)}"
        return f"no run is called {reference!r}: runs are selected by {option}"
    if Path(reference).suffix in _WRITTEN:
        return f"no run is called {reference!r}: a file to be written is named by -o {shlex.quote(reference)}"
    return f"no run is called {reference!r}{near(reference, known) or '; hpcml runs lists them'}"


def _newest(number: int, *, is_submission: bool) -> Select[Any]:
    """Return the question for the newest run but *number* - 1, or for the runs of such a submission, by uid."""
    if not is_submission:
        return select_runs().order_by(RUN.c.uid.desc()).offset(number - 1).limit(1)
    newest = select(RUN.c.submission).where(RUN.c.submission.is_not(None)).group_by(RUN.c.submission)
    wanted = newest.order_by(func.max(RUN.c.uid).desc()).offset(number - 1).limit(1).scalar_subquery()
    return select_runs().where(RUN.c.submission == wanted).order_by(RUN.c.uid)


def _several(uids: Sequence[str]) -> str:
    return f"{len(uids)} runs: {', '.join(uids[:_SHOWN])}{', ...' if len(uids) > _SHOWN else ''}"


def runs_by_spec(store: Database, hashes: Collection[str]) -> dict[str, list[tuple[str, State]]]:
    """Return uid and state of the runs with each configuration hash of *hashes*, oldest first.

    A hash without runs is absent. `hpcml run` and `hpcml retry` find by it which configurations have run already. Uids
    begin with the time of submission, hence "oldest first".
    """
    found: defaultdict[str, list[tuple[str, State]]] = defaultdict(list)
    with store.reading() as connection:
        for chunk in chunked(sorted(set(hashes))):
            query = select(RUN.c.spec_hash, RUN.c.uid, RUN.c.state).where(RUN.c.spec_hash.in_(chunk))
            for spec_hash, uid, state in connection.execute(query.order_by(RUN.c.uid)):
                found[spec_hash].append((uid, State(state)))
    return found


def curve(store: Database, uid: str, metric: str) -> Curve:
    """Return the run's curve of *metric* by step, times in seconds since its start; empty where it has none.

    Raises `StoreError` for an unknown uid. One point for each step, merged over writers and attempts
    (`hpcml.store.curves.merge`).
    """
    with store.reading() as connection:
        _run_id(connection, uid)
        return load_curves(connection, [uid], metric).get(uid, Curve())


def curves(store: Database, uids: Sequence[str], metric: str, *, is_timed: bool = True) -> dict[str, Curve]:
    """Return the curves of *uids* in that order; a run that is unknown or has none has an empty one.

    Times are seconds since the start of each run, or nan unless *is_timed*. A uid that is named twice is looked up
    once.
    """
    with store.reading() as connection:
        found = load_curves(connection, list(dict.fromkeys(uids)), metric, is_timed=is_timed)
        return {uid: found[uid] if uid in found else Curve() for uid in uids}


def events(store: Database, uid: str) -> list[StoredEvent]:
    """Return all events of the run by time, which is in seconds since its start.

    Raises `StoreError` for an unknown uid. Events of the same millisecond are in the order of their attempts and
    journals. Before the run started, times are negative.
    """
    with store.reading() as connection:
        run_id, clock_ms = _run_id(connection, uid)
        query = (
            select(EVENT.c.t_ms, JOURNAL.c.writer, JOURNAL.c.attempt, EVENT.c.name, EVENT.c.details)
            .join(JOURNAL, JOURNAL.c.id == EVENT.c.journal_id)
            .where(EVENT.c.run_id == run_id)
            .order_by(EVENT.c.t_ms, JOURNAL.c.attempt, JOURNAL.c.file, EVENT.c.ordinal)
        )
        return [
            StoredEvent(
                t_s=(t_ms - clock_ms) / 1000, writer=writer, attempt=attempt, name=name, details=json.loads(details)
            )
            for t_ms, writer, attempt, name, details in connection.execute(query)
        ]


def experiments(store: Database) -> list[Experiment]:
    """Return all experiments, sorted by name.

    Counted are all runs of the store, in whatever folder they lie.
    """
    columns = (RUN.c.experiment, RUN.c.state, func.count(), func.max(RUN.c.submitted_at))
    counts: dict[str, Counter[State]] = {}
    latest: dict[str, str | None] = {}
    with store.reading() as connection:
        query = select(*columns).group_by(RUN.c.experiment, RUN.c.state).order_by(RUN.c.experiment, RUN.c.state)
        for name, state, count, submitted_at in connection.execute(query):
            counts.setdefault(name, Counter())[State(state)] = count
            latest[name] = max(latest.get(name) or "", submitted_at or "") or None
    return [
        Experiment(name=name, runs=states.total(), states=dict(states), last_submitted_at=latest[name])
        for name, states in counts.items()
    ]


def _run_id(connection: Connection, uid: str) -> tuple[int, int]:
    row = connection.execute(select(RUN.c.id, RUN.c.clock_ms).where(RUN.c.uid == uid)).one_or_none()
    if row is None:
        raise StoreError(f"no run has the uid {uid!r}")
    return row.id, row.clock_ms
