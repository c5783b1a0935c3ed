"""The values of all runs under one key (a setting, fact, metric or column), in one query for each key.

Conditions, sorting and ``--columns`` look values up here. Documented keys are those of `hpcml.model.record_keys`. A key
is looked up among these kinds, and the first that has it counts: columns of the run, damage, tags and notes,
the age, settings, the last value of a metric, facts, measured values, a key with its kind in front (``params.seed``),
and a statistic of a metric (``val_loss.min``).
"""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Table, case, func, literal, select

from hpcml.errors import StoreError
from hpcml.model.record_keys import (
    AGE,
    INCOMPLETE,
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
from hpcml.model.records import missing_records
from hpcml.model.state import State
from hpcml.store.loading import COLUMNS
from hpcml.store.schema import (
    JOURNAL,
    METRIC,
    RUN,
    RUN_FACT,
    RUN_NOTE,
    RUN_TAG,
    RUN_USAGE,
    RUN_WORK,
    SUMMARY,
)
from hpcml.store.settings import known_settings, values_of

_SHOWN = 5  # candidates in an error's one line
_COUNTED = ("bad_lines", "lost_records")  # over all journals of a run
_MEAN = case(
    # a total too large for a float is no mean
    (func.abs(SUMMARY.c.total) <= literal(1.7976931348623157e308), SUMMARY.c.total),
) / func.nullif(SUMMARY.c.n - SUMMARY.c.n_nonfinite, 0)
Values = Mapping[int, Any]  # by the run's number; a run without is absent


class Keyed:
    """Looks up the values of all runs by key, each key once; *now* is in unix seconds, for keys like the age.

    It keeps what it has found, so it is made for one question and thrown away with its connection.

    >>> values = Keyed(connection, now=time.time())  # doctest: +SKIP
    >>> values("seed")  # by row id of the run  # doctest: +SKIP
    {1: 0, 2: 1}
    """

    def __init__(self, connection: Connection, *, now: float) -> None:
        self._connection = connection
        self._now = now
        self._found: dict[str, Values] = {}

    def __call__(self, key: str) -> Values:
        """Return the values under *key* by row id of the run; a run without one is absent.

        Raises `StoreError`, with similar keys, where no run ever had such a thing.

        Settings and facts are decoded JSON, a metric is its last value, tags and notes are lists of texts (empty for a
        run without any), times and durations are in the unit that the key's name says. A stored value may be None.
        """
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
        if key == INCOMPLETE:
            return self._incomplete()
        if key in (*TAG_WORDS, *NOTE_WORDS):
            table, column = (RUN_TAG, RUN_TAG.c.tag) if key in TAG_WORDS else (RUN_NOTE, RUN_NOTE.c.text)
            return _lists(connection, table, column)
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

    def _incomplete(self) -> Values:
        lost, bad = self("lost_records"), self("bad_lines")
        found = {run_id: missing_records(lost_records=lost[run_id], bad_lines=bad[run_id]) for run_id in lost}
        is_told = (RUN.c.state == State.COMPLETED.value) & RUN.c.reason.is_not(None)
        rows = self._connection.execute(select(RUN.c.id, RUN.c.reason).where(is_told))
        found |= {run_id: str(reason) for run_id, reason in rows}
        return {run_id: why for run_id, why in found.items() if why is not None}

    def _ages(self) -> Values:
        rows = self._connection.execute(select(RUN.c.id, RUN.c.submitted_at, RUN.c.t_start))
        begun = {run_id: begun_at(submitted_at, t_start) for run_id, submitted_at, t_start in rows}
        return {run_id: self._now - at for run_id, at in begun.items() if at is not None}


def known_keys(connection: Connection) -> set[str]:
    """Return every key that a condition may begin with, except composed ones (``val_loss.min``, ``params.seed``).

    `near` chooses from them what to suggest for a misspelt key.
    """
    params = known_settings(connection)
    groups = {key.removesuffix(".name") for key in params if key.endswith(".name")}
    facts = connection.execute(select(RUN_FACT.c.key).distinct()).scalars()
    metrics = connection.execute(select(METRIC.c.name)).scalars()
    measured = {name for names in MEASURED.values() for name in names} | set(SCALED)
    return {*COLUMNS, *_COUNTED, INCOMPLETE, "tag", "note", AGE, *params, *groups, *facts, *metrics, *measured}


def near(word: str, known: Collection[str]) -> str:
    """Return "; did you mean ...?" with those of *known* that are similar to *word*; "" where none is.

    Similar are words by `difflib`; where none is, words that contain *word*. At most five are shown.

    >>> near("sed", {"seed", "state"})
    '; did you mean seed?'
    """
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
    return values_of(connection, key) or values_of(connection, f"{key}.name")


def _fact(connection: Connection, key: str) -> Values:
    rows = connection.execute(select(RUN_FACT.c.run_id, RUN_FACT.c.value).where(RUN_FACT.c.key == key))
    decoded: dict[str, Any] = {}  # of many runs most values are alike; a list may be shared, since nobody changes it
    found = {}
    for run_id, value in rows:
        if value not in decoded:
            decoded[value] = json.loads(value)
        found[run_id] = decoded[value]
    return found


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
