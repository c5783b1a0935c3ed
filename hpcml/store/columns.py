"""The values of all runs under one key (a setting, fact, metric or column), in a few queries for each key.

Conditions and sorting look values up here. Documented keys are those of `hpcml.model.record_keys`. A key is looked up
among these kinds, and of each run the first that has it counts: columns of the run, damage, tags and notes,
the age, settings, the last value of a metric, facts, measured values, a key with its kind in front (``params.seed``),
a statistic of a metric (``val_loss.min``), and a flag of the user's own program (``lr``, ``args.lr``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from hpcml.errors import StoreError
from hpcml.model.record_keys import (
    AGE,
    ARGUMENTS,
    INCOMPLETE,
    MEASURED,
    NOTE_WORDS,
    SCALED,
    SPACES,
    STATISTICS,
    TAG_WORDS,
    begun_at,
    flag_setting,
    is_measured,
    place_of,
    setting_value,
)
from hpcml.model.records import missing_records
from hpcml.model.state import State
from hpcml.spelling import did_you_mean
from hpcml.store.loading import COLUMNS, YES_OR_NO, load_measured
from hpcml.store.reading import StoreReader
from hpcml.store.settings import known_settings, values_of

# What tables call a key: headings of `hpcml runs` and `hpcml status`
_HEADED: Mapping[str, str] = {"run": "uid", "wall": "wall_s", "job": "job_id", "why": "reason"}
_COUNTED = ("bad_lines", "lost_records")  # over all journals of a run
# a total too large for a float is no mean
_MEAN = "CASE WHEN abs(total) <= 1.7976931348623157e308 THEN total END / nullif(n - n_nonfinite, 0)"
Values = Mapping[int, Any]  # by the run's number; a run without is absent


class Keyed:
    """Looks up the values of all runs by key, each key once; *now* is in unix seconds, for keys like the age.

    It keeps what it has found, so it is made for one question and thrown away with its reading.

    >>> values = Keyed(reading, now=time.time())  # doctest: +SKIP
    >>> values("seed")  # by row id of the run  # doctest: +SKIP
    {1: 0, 2: 1}
    """

    def __init__(self, reading: StoreReader, *, now: float) -> None:
        self._reading = reading
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
        reading = self._reading
        if key in COLUMNS:
            rows = reading.rows(f"SELECT id, run.{key} FROM run")  # noqa: S608 - a name of ours
            return (
                {at: None if value is None else bool(value) for at, value in rows} if key in YES_OR_NO else dict(rows)
            )
        if key in _COUNTED:
            counts = reading.rows(f"SELECT run_id, sum({key}) FROM journal GROUP BY run_id")  # noqa: S608 - as above
            return {run_id: int(count) for run_id, count in counts}
        if key == INCOMPLETE:
            return self._incomplete()
        if key in (*TAG_WORDS, *NOTE_WORDS):
            return _lists(reading, "run_tag", "tag") if key in TAG_WORDS else _lists(reading, "run_note", "text")
        if key == AGE:
            return self._ages()
        found: dict[int, Any] = {}
        for find in (_param, _last, _fact, _measured, _in_space, _statistic, _flag):
            found = {**find(reading, key), **found}
        if found or is_measured(key):  # a word that is known, whether or not anything was measured yet
            return found
        if not reading.rows("SELECT id FROM run LIMIT 1"):
            return {}  # an empty store knows no metric yet, and no run meets anything
        known = known_keys(reading)
        if key.startswith("metrics."):
            known = {f"metrics.{name}" for name in reading.column("SELECT name FROM metric")}
        meant = f"did you mean {_HEADED[key]}?" if key in _HEADED else did_you_mean(key, known)
        raise StoreError("; ".join(filter(None, (f"no run has anything called {key!r}", meant))))

    def _incomplete(self) -> Values:
        lost, bad = self("lost_records"), self("bad_lines")
        found = {run_id: missing_records(lost_records=lost[run_id], bad_lines=bad[run_id]) for run_id in lost}
        told = "SELECT id, reason FROM run WHERE state = :completed AND reason IS NOT NULL"
        rows = self._reading.rows(told, completed=State.COMPLETED.value)
        found |= {run_id: str(reason) for run_id, reason in rows}
        return {run_id: why for run_id, why in found.items() if why is not None}

    def _ages(self) -> Values:
        rows = self._reading.rows("SELECT id, submitted_at, t_start FROM run")
        begun = {run_id: begun_at(submitted_at, t_start) for run_id, submitted_at, t_start in rows}
        return {run_id: self._now - at for run_id, at in begun.items() if at is not None}


def known_keys(reading: StoreReader) -> set[str]:
    """Return every key that a condition may begin with, except composed ones (``val_loss.min``, ``params.seed``).

    `near` chooses from them what to suggest for a misspelt key.
    """
    params = known_settings(reading)
    groups = {key.removesuffix(".name") for key in params if key.endswith(".name")}
    facts = reading.column("SELECT DISTINCT key FROM run_fact")
    metrics = reading.column("SELECT name FROM metric")
    flags = {key.removeprefix(ARGUMENTS) for key in params if key.startswith(ARGUMENTS)}
    measured = {name for names in MEASURED.values() for name in names} | set(SCALED)
    return {*COLUMNS, *_COUNTED, INCOMPLETE, "tag", "note", AGE, *params, *groups, *flags, *facts, *metrics, *measured}


def _truth(value: object) -> bool | None:
    return None if value is None else bool(value)


def _lists(reading: StoreReader, table: str, column: str) -> Values:
    found: defaultdict[int, list[str]] = defaultdict(list)
    sql = f"SELECT run_id, {table}.{column} FROM {table} ORDER BY run_id, {table}.position"  # noqa: S608 - our own
    for run_id, text in reading.rows(sql):
        found[run_id].append(text)
    return {run_id: found.get(run_id, []) for run_id in reading.column("SELECT id FROM run")}


def _param(reading: StoreReader, key: str) -> Values:
    values = values_of(reading, key) or values_of(reading, f"{key}.name")
    return {run_id: setting_value(key, value) for run_id, value in values.items()}


def _flag(reading: StoreReader, key: str) -> Values:
    return {} if is_measured(key) else _param(reading, flag_setting(key))


def _fact(reading: StoreReader, key: str) -> Values:
    decoded: dict[str, Any] = {}  # of many runs most values are alike; a list may be shared, since nobody changes it
    found = {}
    for run_id, value in reading.rows("SELECT run_id, value FROM run_fact WHERE key = :key", key=key):
        if value not in decoded:
            decoded[value] = json.loads(value)
        found[run_id] = decoded[value]
    return found


def _last(reading: StoreReader, key: str) -> Values:
    values = _summaries(reading, key, "summary.last")
    if None in values.values():  # not finite, or nan only because it was not measured at the end
        sql = "SELECT run_id, metric_id FROM summary JOIN metric ON metric.id = metric_id WHERE name = :metric"
        known = load_measured(reading, {(run_id, metric_id) for run_id, metric_id in reading.rows(sql, metric=key)})
        values = {**values, **{run_id: of.values[-1] for (run_id, _), of in known.items()}}
    return values


def _usage(reading: StoreReader, key: str) -> Values:
    return _of_measured(reading, "usage", key)


def _work(reading: StoreReader, key: str) -> Values:
    return _of_measured(reading, "work", key)


def _measured(reading: StoreReader, key: str) -> Values:
    return _usage(reading, key) or _work(reading, key)


def _of_measured(reading: StoreReader, space: str, key: str) -> Values:
    place = place_of(space, key)
    if place is None:
        return {}
    name, divisor = place
    rows = reading.rows(f"SELECT run_id, {name} FROM run_{space}")  # noqa: S608 - a name of ours, from `MEASURED`
    if name == "energy_disagrees":
        return {at: bool(value) for at, value in rows}
    if divisor == 1.0:
        return dict(rows)
    return {at: None if value is None else value / divisor for at, value in rows}


def _in_space(reading: StoreReader, key: str) -> Values:
    space, _, name = key.partition(".")
    of_spaces = (_param, _last, _fact, _usage, _work)
    finders: Mapping[str, Callable[[StoreReader, str], Values]] = dict(zip(SPACES, of_spaces, strict=True))
    return finders[space](reading, name) if space in finders else {}


def _statistic(reading: StoreReader, key: str) -> Values:
    name, _, statistic = key.rpartition(".")
    if statistic not in STATISTICS:
        return {}
    number = _MEAN if statistic == "mean" else f"summary.{statistic}"
    return _summaries(reading, name, number) or _summaries(reading, name.removeprefix("metrics."), number)


def _summaries(reading: StoreReader, metric: str, number: str) -> Values:
    sql = f"SELECT run_id, {number} FROM summary JOIN metric ON metric.id = metric_id WHERE name = :metric"  # noqa: S608
    return dict(reading.rows(sql, metric=metric))
