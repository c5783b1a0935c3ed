"""What all runs have under one key, in one query each: what conditions, orders and columns are looked up by."""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Table, case, func, literal, select

from hpcml.errors import StoreError
from hpcml.record_keys import (
    AGE,
    MEASURED,
    NOTE_WORDS,
    SCALED,
    SPACES,
    STATISTICS,
    TAG_WORDS,
    begun_at,
    is_measured,
    place_of,
)
from hpcml.store.loading import COLUMNS
from hpcml.store.tables import (
    JOURNAL,
    METRIC,
    RUN,
    RUN_FACT,
    RUN_NOTE,
    RUN_PARAM,
    RUN_TAG,
    RUN_USAGE,
    RUN_WORK,
    SUMMARY,
)

_SHOWN = 5  # candidates in an error's one line
_COUNTED = ("bad_lines", "lost_records")  # over all journals of a run
_MEAN = case(
    # a total too large for a float is no mean
    (func.abs(SUMMARY.c.total) <= literal(1.7976931348623157e308), SUMMARY.c.total),
) / func.nullif(SUMMARY.c.n - SUMMARY.c.n_nonfinite, 0)
Values = Mapping[int, Any]  # by the run's number; a run without is absent


class Keyed:
    """Values under keys, each key looked up once; *now* is in unix seconds."""

    def __init__(self, connection: Connection, *, now: float) -> None:
        self._connection = connection
        self._now = now
        self._found: dict[str, Values] = {}

    def __call__(self, key: str) -> Values:
        """Return what all runs have under *key*; `StoreError` with what is near where no run ever had such a thing."""
        if key not in self._found:
            self._found[key] = self._look_up(key)
        return self._found[key]

    def _look_up(self, key: str) -> Values:  # noqa: PLR0911 - one return for each kind
        connection = self._connection
        if key in COLUMNS:
            return _plain(connection, RUN.c.id, RUN.c[key])
        if key in _COUNTED:
            query = select(JOURNAL.c.run_id, func.sum(JOURNAL.c[key])).group_by(JOURNAL.c.run_id)
            return {run_id: int(count) for run_id, count in connection.execute(query)}
        if key in TAG_WORDS:
            return _lists(connection, RUN_TAG, RUN_TAG.c.tag)
        if key in NOTE_WORDS:
            return _lists(connection, RUN_NOTE, RUN_NOTE.c.text)
        if key == AGE:
            return self._ages()
        for find in (_param, _last, _fact, _measured, _in_space, _statistic):
            if values := find(connection, key):
                return values
        if is_measured(key):
            return {}  # a word that is known, whether or not anything was measured yet
        if not connection.execute(select(RUN.c.id).limit(1)).all():
            return {}  # an empty store knows no metric yet, and no run meets anything
        raise StoreError(f"no run has anything called {key!r}{near(key, known_keys(connection))}")

    def _ages(self) -> Values:
        rows = self._connection.execute(select(RUN.c.id, RUN.c.submitted_at, RUN.c.t_start))
        begun = {run_id: begun_at(submitted_at, t_start) for run_id, submitted_at, t_start in rows}
        return {run_id: self._now - at for run_id, at in begun.items() if at is not None}


def known_keys(connection: Connection) -> set[str]:
    """Return every word that a condition may begin with, but for those made of others."""
    params = set(connection.execute(select(RUN_PARAM.c.key).distinct()).scalars())
    groups = {key.removesuffix(".name") for key in params if key.endswith(".name")}
    facts = connection.execute(select(RUN_FACT.c.key).distinct()).scalars()
    metrics = connection.execute(select(METRIC.c.name)).scalars()
    measured = {name for names in MEASURED.values() for name in names} | set(SCALED)
    return {*COLUMNS, *_COUNTED, "tag", "note", AGE, *params, *groups, *facts, *metrics, *measured}


def near(word: str, known: Collection[str]) -> str:
    """Return the end of a message that says which of the *known* words may have been meant; "" where none is near."""
    found = difflib.get_close_matches(word, sorted(known), n=_SHOWN) or sorted(k for k in known if word and word in k)
    return f"; did you mean {', '.join(found[:_SHOWN])}?" if found else ""


def _plain(connection: Connection, run_id: Column[Any], column: Any) -> Values:  # noqa: ANN401 - SQLAlchemy's own
    return {at: value for at, value in connection.execute(select(run_id, column))}  # noqa: C416 - rows are no pairs to mypy


def _lists(connection: Connection, table: Table, column: Column[Any]) -> Values:
    found: defaultdict[int, list[str]] = defaultdict(list)
    query = select(table.c.run_id, column).order_by(table.c.run_id, table.c.position)
    for run_id, text in connection.execute(query):
        found[run_id].append(text)
    empty: Iterable[int] = connection.execute(select(RUN.c.id)).scalars()
    return {run_id: found.get(run_id, []) for run_id in empty}


def _param(connection: Connection, key: str) -> Values:
    return _json(connection, RUN_PARAM, key) or _json(connection, RUN_PARAM, f"{key}.name")


def _fact(connection: Connection, key: str) -> Values:
    return _json(connection, RUN_FACT, key)


def _last(connection: Connection, key: str) -> Values:
    return _summaries(connection, key, SUMMARY.c.last)


def _usage(connection: Connection, key: str) -> Values:
    return _of_measured(connection, RUN_USAGE, "usage", key)


def _work(connection: Connection, key: str) -> Values:
    return _of_measured(connection, RUN_WORK, "work", key)


def _measured(connection: Connection, key: str) -> Values:
    return _usage(connection, key) or _work(connection, key)


def _of_measured(connection: Connection, table: Table, space: str, key: str) -> Values:
    place = place_of(space, key)
    if place is None:
        return {}
    name, divisor = place
    rows = connection.execute(select(table.c.run_id, table.c[name]))
    if divisor == 1.0:
        return {at: value for at, value in rows}  # noqa: C416 - rows are no pairs to mypy
    return {at: None if value is None else value / divisor for at, value in rows}


def _in_space(connection: Connection, key: str) -> Values:
    space, _, name = key.partition(".")
    of_spaces = (_param, _last, _fact, _usage, _work)
    finders: Mapping[str, Callable[[Connection, str], Values]] = dict(zip(SPACES, of_spaces, strict=True))
    return finders[space](connection, name) if space in finders else {}


def _statistic(connection: Connection, key: str) -> Values:
    name, _, statistic = key.rpartition(".")
    if statistic not in STATISTICS:
        return {}
    column = _MEAN if statistic == "mean" else SUMMARY.c[statistic]
    return _summaries(connection, name, column) or _summaries(connection, name.removeprefix("metrics."), column)


def _summaries(connection: Connection, metric: str, column: Any) -> Values:  # noqa: ANN401 - SQLAlchemy's own
    query = select(SUMMARY.c.run_id, column).join(METRIC, METRIC.c.id == SUMMARY.c.metric_id)
    return {at: value for at, value in connection.execute(query.where(METRIC.c.name == metric))}  # noqa: C416 - as above


def _json(connection: Connection, table: Table, key: str) -> Values:
    rows = connection.execute(select(table.c.run_id, table.c.value).where(table.c.key == key))
    decoded: dict[str, Any] = {}  # of many runs most values are alike; a list may be shared, since nobody changes it
    found = {}
    for run_id, value in rows:
        if value not in decoded:
            decoded[value] = json.loads(value)
        found[run_id] = decoded[value]
    return found
