"""Queries for runs, curves and events; what commands and the Python API read from the store.

All functions take an open `Database`, use one snapshot each, and change nothing. Records are loaded by
`hpcml.store.loading`; `hpcml.store.keys` says what a key of a condition may be.
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, and_, cast, func, not_, or_, select

from hpcml.errors import NoSuchRunError, StoreError
from hpcml.model.record_keys import flag_setting
from hpcml.model.records import Curve, RunRecord, StoredEvent
from hpcml.model.state import State
from hpcml.runs.layout import NEWEST
from hpcml.spelling import did_you_mean
from hpcml.store.database import Database, chunked
from hpcml.store.keys import check_known, known_settings, parts_of, plain_value, varied_settings
from hpcml.store.loading import ALL, is_below, load_curves, load_runs, load_uids, parts_of_list
from hpcml.store.parse import storable
from hpcml.store.schema import EVENT, METRIC, RUN
from hpcml.store.where import Condition, Every, keys_of, meeting, sorted_by

_SHOWN = 5  # candidates in an error's one line
_OPTIONS = frozenset({"experiment", "submission", "state"})  # by which runs are selected, beside --where
_WRITTEN = frozenset({".html", ".md", ".tex", ".json", ".csv", ".parquet"})  # by report and export
_SHORTEST_END = 4  # of a uid: a slip of the finger must not mean a run, since this is also how runs are cancelled


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
    after sorting, and by time it is the newest that are kept; None means all. Times in *filters* without a zone are in
    this machine's. With *settings* the records are those of a list: they have these settings alone, no tags, notes or
    usage, and of facts the one that a run diverged.

    >>> best = find_runs(  # doctest: +SKIP
    ...     store, filters=[parse_condition("precision=tf32")], sort="val_accuracy", descending=True, limit=1
    ... )
    """
    now = datetime.now()  # noqa: DTZ005 - without a zone: this machine's, with its rules of summer time
    parts = ALL if settings is None else parts_of_list(settings)
    where = _selecting(experiment, states)
    keys = {key for condition in filters for key in keys_of(condition)} | ({sort} if sort is not None else set())
    with store.reading() as connection:
        if not keys and limit is None:
            runs = load_runs(connection, where, parts)
            return runs[::-1] if descending else runs
        values: dict[str, dict[str, Any]] = {}
        if keys:
            check_known(connection, keys)
            some = load_runs(connection, where, parts_of(keys))
            values = {key: {run.uid: plain_value(run, key, now=now.timestamp()) for run in some} for key in keys}
            uids = [run.uid for run in some]
        else:
            uids = list(connection.execute(select(RUN.c.uid).where(where).order_by(RUN.c.uid)).scalars())
        if descending:
            uids.reverse()
        if filters:
            found = meeting(Every(of=tuple(filters)), uids, values.__getitem__, now=now)
            uids = [uid for uid in uids if uid in found]
        if sort is not None:
            uids = sorted_by(values[sort], uids, descending=descending)
        is_by_time = sort is None and not descending
        kept = uids[-limit:] if is_by_time and limit is not None else uids[:limit]
        return load_uids(connection, kept, parts)


def varied_keys(store: Database) -> set[str]:
    """Return the keys of the settings of which the store has several values."""
    with store.reading() as connection:
        return varied_settings(connection)


def _selecting(experiment: str | None, states: Collection[State]) -> ColumnElement[bool]:
    by_name = [RUN.c.experiment == storable(experiment)] if experiment is not None else []
    by_state = [RUN.c.state.in_([state.value for state in states])] if states else []
    return and_(RUN.c.id.is_not(None), *by_name, *by_state)


def check_keys(store: Database, keys: Collection[str]) -> None:
    """Raise `StoreError` where no run ever had anything under one of *keys*; the message names similar keys.

    Commands with ``--columns`` or ``--by`` call it before they do anything else, so that a misspelt key is an error and
    not a column of nothing.
    """
    with store.reading() as connection:
        check_known(connection, keys)


def open_runs(store: Database, *roots: Path) -> list[RunRecord]:
    """Return the runs that may still change, by uid: waiting, running, or ended without a recorded reason.

    With *roots* (absolute folders) only those that lie in or below one of them. `hpcml status`, `cancel`, `rm` and the
    check for runs under way before a submission use it.
    """
    changing = or_(RUN.c.state.in_([state.value for state in State if not state.is_final]), not_(RUN.c.is_settled))
    where = and_(changing, is_below(*roots)) if roots else changing
    with store.reading() as connection:
        return load_runs(connection, where)


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
        return load_uids(connection, sorted({storable(uid) for uid in uids}))


def runs_meant(store: Database, reference: str) -> list[RunRecord]:
    """Return the run with this uid or unique name, or whose uid alone begins or ends with *reference*.

    ``@1`` is the newest run, ``@2`` the one before it; ``@-1`` are all runs of the last submission, ``@-2`` those of
    the one before it. A part of a uid has four characters or more. Raises `StoreError` where no run, or but for a
    submission more than one, is meant. Looked for in this order, and the first kind that matches counts: the whole
    uid, a name, a part of a uid. Upper and lower case are alike in such a part. The message of an error lists what was
    meant, or what is similar.
    """
    word = storable(reference)
    with store.reading() as connection:
        if found := NEWEST.fullmatch(word):
            if runs := _newest(connection, int(found[2]), is_submission=bool(found[1])):
                return runs
            raise StoreError(f"{reference}: there are fewer {'submissions' if found[1] else 'runs'} than that")
        is_whole = connection.execute(select(RUN.c.id).where(RUN.c.uid == word)).first() is not None
        # a variable of the shell that is not set means no run, whatever its name
        is_named = not is_whole and word != ""
        named = _uids(connection, RUN.c.name == word) if is_named else []
        if not is_whole and not named and len(word) < _SHORTEST_END:
            what = f"; of an id give at least {_SHORTEST_END} characters of its end"
            raise StoreError(f"no run is called {reference!r}{_other_thing(connection, word) or what}")
        uids = [word] if is_whole else named
        if len(uids) != 1 and len(word) >= _SHORTEST_END:
            uids = _uids(connection, _has_part(word)) or named
        if len(uids) == 1:
            return load_uids(connection, uids)
        if uids:
            raise StoreError(f"{reference!r} means {_several(uids)}; give more of the uid")
        words = {word for row in connection.execute(select(RUN.c.uid, RUN.c.name)) for word in row if word}
        words |= {uid.rpartition("-")[2] for uid in _uids(connection, RUN.c.id.is_not(None))}
        experiments = connection.execute(select(RUN.c.experiment).distinct()).scalars().all()
        other = _other_thing(connection, word)
        told = f"no run is called {reference!r}{other}" if other else _not_found(reference, words, experiments)
        raise NoSuchRunError(told, reference)


def _uids(connection: Connection, where: ColumnElement[bool]) -> list[str]:
    return list(connection.execute(select(RUN.c.uid).where(where).order_by(RUN.c.uid)).scalars())


def _has_part(word: str) -> ColumnElement[bool]:
    """Return the condition that a uid begins or ends with *word*, in upper or lower case."""
    uid, size = func.lower(RUN.c.uid), len(word)
    ends = func.substr(uid, func.length(uid) - size + 1) == word.lower()
    return and_(func.length(uid) >= size, or_(func.substr(uid, 1, size) == word.lower(), ends))


def _other_thing(connection: Connection, word: str) -> str:
    """Return "; it is an experiment: ..." for a *word* that is known as something else than a run; "" for others."""
    things: Sequence[tuple[str, str, ColumnElement[bool]]] = (
        ("an experiment", "--experiment", RUN.c.experiment == word),
        ("a submission", "--submission", RUN.c.submission == word),
        ("a metric", "--metric", RUN.c.id.in_(select(METRIC.c.run_id).where(METRIC.c.name == word))),
        ("a tag", "--where tag=", cast(RUN.c.tags, Text).contains(json.dumps(word), autoescape=True)),
        ("a precision", "--where precision=", RUN.c.precision == word),
    )
    found = [(what, option) for what, option, where in things if _uids(connection, where)[:1]]
    if not found and {word, f"{word}.name", flag_setting(word)} & known_settings(connection):
        found = [("a setting", "--by")]
    for what, option in found:
        return f"; it is {what}: {option}{'' if option.endswith('=') else ' '}{shlex.quote(word)}"
    return f"; it is a state: --state {word.upper()}" if word.upper() in State.__members__ else ""


def _not_found(reference: str, known: Collection[str], experiments: Collection[str]) -> str:
    """Return that no run is called so, and what may be meant: a selection, a *known* word, or an experiment."""
    key, sign, value = reference.partition("=")
    if sign:
        option = f"--{key} {shlex.quote(value)}" if key in _OPTIONS else f"--where {shlex.quote(reference)}"
        return f"no run is called {reference!r}: runs are selected by {option}"
    if Path(reference).suffix in _WRITTEN:
        return f"no run is called {reference!r}: a file to be written is named by -o {shlex.quote(reference)}"
    of_experiment = did_you_mean(reference, experiments).replace("did you mean", "did you mean the experiment")
    meant = did_you_mean(reference, known) or of_experiment
    return f"no run is called {reference!r}; {meant or 'hpcml runs lists them'}"


def _newest(connection: Connection, number: int, *, is_submission: bool) -> list[RunRecord]:
    """Return the newest run but *number* - 1, or the runs of such a submission, by uid."""
    if not is_submission:
        newest = select(RUN.c.uid).order_by(RUN.c.uid.desc()).limit(1).offset(number - 1)
        return load_runs(connection, RUN.c.uid.in_(newest))
    submissions = select(RUN.c.submission).where(RUN.c.submission.is_not(None)).group_by(RUN.c.submission)
    wanted = submissions.order_by(func.max(RUN.c.uid).desc()).limit(1).offset(number - 1)
    return load_runs(connection, RUN.c.submission.in_(wanted))


def _several(uids: Sequence[str]) -> str:
    return f"{len(uids)} runs: {', '.join(uids[:_SHOWN])}{', ...' if len(uids) > _SHOWN else ''}"


def runs_by_spec(store: Database, hashes: Collection[str]) -> dict[str, list[tuple[str, State]]]:
    """Return uid and state of the runs with each configuration hash of *hashes*, oldest first.

    A hash without runs is absent. `hpcml run` and `hpcml retry` find by it which configurations have run already. Uids
    begin with the time of submission, hence "oldest first".
    """
    found: defaultdict[str, list[tuple[str, State]]] = defaultdict(list)
    query = select(RUN.c.spec_hash, RUN.c.uid, RUN.c.state).order_by(RUN.c.uid)
    with store.reading() as connection:
        for chunk in chunked(sorted(set(hashes))):
            for spec_hash, uid, state in connection.execute(query.where(RUN.c.spec_hash.in_(chunk))):
                found[spec_hash].append((uid, State(state)))
    return found


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
    columns = (EVENT.c.t_ms, EVENT.c.writer, EVENT.c.attempt, EVENT.c.name, EVENT.c.details)
    order = (EVENT.c.t_ms, EVENT.c.attempt, EVENT.c.file, EVENT.c.ordinal)
    with store.reading() as connection:
        run_id, clock_ms = _run_id(connection, uid)
        return [
            StoredEvent(t_s=(t_ms - clock_ms) / 1000, writer=writer, attempt=attempt, name=name, details=details)
            for t_ms, writer, attempt, name, details in connection.execute(
                select(*columns).where(EVENT.c.run_id == run_id).order_by(*order)
            )
        ]


def _run_id(connection: Connection, uid: str) -> tuple[int, int]:
    row = connection.execute(select(RUN.c.id, RUN.c.clock_ms).where(RUN.c.uid == storable(uid))).first()
    if row is None:
        raise StoreError(f"no run has the uid {uid!r}")
    return row[0], row[1]
