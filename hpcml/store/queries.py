"""What the store answers: runs, their curves and their events."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, func, select

from hpcml.errors import StoreError
from hpcml.records import Point, RunRecord, StoredEvent
from hpcml.states import State
from hpcml.store.conditions import Condition, Every, meeting
from hpcml.store.engine import Store
from hpcml.store.filters import sorted_by
from hpcml.store.keyed import Keyed, near
from hpcml.store.loading import chunked, load_curves, load_records, load_runs, select_runs
from hpcml.store.paths import is_below
from hpcml.store.tables import EVENT, JOURNAL, RUN

_SHOWN = 5  # candidates in an error's one line
_SHORTEST_END = 4  # of a uid: a slip of the finger must not mean a run, since this is also how runs are cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The runs of one name, counted."""

    name: str
    runs: int
    states: Mapping[State, int]  # only those that occur
    last_submitted_at: str | None


def find_runs(
    store: Store,
    *,
    experiment: str | None = None,
    states: Collection[State] = (),
    filters: Sequence[Condition] = (),
    sort: str | None = None,
    descending: bool = False,
    limit: int | None = None,
) -> list[RunRecord]:
    """Return the runs that meet all conditions, by *sort* or else by uid, which is by time.

    Empty *states* means any. *sort* is any word that a condition may begin with; runs without it come last.
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
        found = meeting(Every(of=tuple(filters)), ids, values, now=now)
        ids = [run_id for run_id in ids if run_id in found]
        if sort is not None:
            ids = sorted_by(values(sort), ids, descending=descending)
        return load_runs(connection, ids[:limit])


def check_keys(store: Store, keys: Collection[str]) -> None:
    """Raise `StoreError` where no run ever had anything under one of *keys*."""
    with store.reading() as connection:
        values = Keyed(connection, now=0.0)
        for key in keys:
            values(key)


def open_runs(store: Store, *roots: Path) -> list[RunRecord]:
    """Return the runs of which more is to come, by uid: they wait, run, or nobody has said yet why they ended.

    With *roots* only those that lie below one of them.
    """
    waiting_or_running = [state.value for state in State if not state.is_final]
    with store.reading() as connection:
        query = select_runs().where(RUN.c.state.in_(waiting_or_running) | ~RUN.c.is_settled)
        query = query.where(is_below(*roots)) if roots else query
        return load_records(connection, connection.execute(query.order_by(RUN.c.uid)).all())


def get_run(store: Store, reference: str) -> RunRecord:
    """Return the run that *reference* means: its uid, its name if no other run has it, or a unique end of its uid.

    An end has four characters or more.
    """
    with store.reading() as connection:
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
            return load_records(connection, rows)[0]
        if rows:
            shown = ", ".join(row.uid for row in rows[:_SHOWN]) + (", ..." if len(rows) > _SHOWN else "")
            raise StoreError(f"{reference!r} means {len(rows)} runs: {shown}; give more of the uid")
        words = connection.execute(select(RUN.c.uid, RUN.c.name)).all()
        candidates = near(reference, {word for row in words for word in row if word})
        raise StoreError(f"no run is called {reference!r}{candidates or '; hpcml runs lists them'}")


def runs_by_spec(store: Store, hashes: Collection[str]) -> dict[str, list[tuple[str, State]]]:
    """Return the uids and states of the runs whose configuration has one of the *hashes*, oldest first."""
    found: defaultdict[str, list[tuple[str, State]]] = defaultdict(list)
    with store.reading() as connection:
        for chunk in chunked(sorted(set(hashes))):
            query = select(RUN.c.spec_hash, RUN.c.uid, RUN.c.state).where(RUN.c.spec_hash.in_(chunk))
            for spec_hash, uid, state in connection.execute(query.order_by(RUN.c.uid)):
                found[spec_hash].append((uid, State(state)))
    return found


def curve(store: Store, uid: str, metric: str) -> list[Point]:
    """Return the run's curve by step; empty where it has none. An unknown run raises `StoreError`."""
    with store.reading() as connection:
        _run_id(connection, uid)
        return load_curves(connection, [uid], metric).get(uid, [])


def curves(store: Store, uids: Sequence[str], metric: str) -> dict[str, list[Point]]:
    """Return the curves of many runs, in the order of *uids*; a run without one has an empty list."""
    with store.reading() as connection:
        found = load_curves(connection, list(dict.fromkeys(uids)), metric)
        return {uid: found.get(uid, []) for uid in uids}


def events(store: Store, uid: str) -> list[StoredEvent]:
    """Return everything that happened in the run, by time."""
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


def experiments(store: Store) -> list[Experiment]:
    """Return all experiments by name."""
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
