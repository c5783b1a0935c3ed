"""Loading runs, curves and clocks from the tables, in a few queries for any number of runs.

The functions take an open connection, so that several see one state of the store. Also here: the condition that a run
lies below a folder (`is_below`).
"""

from __future__ import annotations

import json
import math
import operator
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    cast,
    func,
    or_,
    select,
)

from hpcml.model.records import Curve, MetricSummary, Note, RunRecord, Usage, Work
from hpcml.model.state import State
from hpcml.store.curves import Columns, Precedence, mean_of, merge
from hpcml.store.database import Database
from hpcml.store.origin import mark_of
from hpcml.store.parse import storable
from hpcml.store.pieces import among, chunked, within
from hpcml.store.schema import (
    JOURNAL,
    METRIC,
    POINT,
    RUN,
    RUN_FACT,
    RUN_NOTE,
    RUN_TAG,
    RUN_USAGE,
    RUN_WORK,
    SERIES,
    SUMMARY,
)
from hpcml.store.settings import load_settings

COLUMNS = (
    *("uid", "path", "experiment", "name", "spec_hash", "state", "is_settled", "cause", "reason", "exit_code"),
    *("attempt", "scheduler", "job_id", "array_index", "job_name", "is_shared", "submission"),
    *("submitted_at", "t_start", "t_end", "wall_s", "seed"),
    *("precision", "precision_effective", "numerics", "git_commit", "git_dirty"),
)  # of RunRecord and of the table alike

_SUMMARIZED = (
    *("n", "n_nonfinite", "first", "last", "last_step", "min", "min_step", "max", "max_step", "total"),
)  # of a metric, in the order of `MetricSummary`, but that the total comes last
_DECODER = json.JSONDecoder()
_AT_ONCE = 20_000  # points, or summaries
_TOGETHER = 10_000  # runs: what they are made of takes as much memory as they do
_NO_POINTS = Columns()
_STATES = {state.value: state for state in State}
_YES_OR_NO = frozenset(name for name in COLUMNS if isinstance(RUN.c[name].type, Boolean))
_SHARED = frozenset(name for name in COLUMNS if isinstance(RUN.c[name].type, Text)) - {"uid", "path", "job_id"}
RunRow = Sequence[Any]
T = TypeVar("T")


def select_runs() -> Select[*tuple[Any, ...]]:
    """Return the query whose rows `load_records` takes: the id of each run, then `COLUMNS`.

    Add conditions and an order.
    """
    return select(RUN.c.id, *(RUN.c[name] for name in COLUMNS))


def load_runs(
    connection: Connection, ids: Sequence[int], *, settings: Collection[str] | None = None
) -> list[RunRecord]:
    """Return the runs with these row ids (not uids), in the order of *ids*; *settings* as in `load_records`.

    Raises `KeyError` for an unknown one. A constant number of queries for each 10,000 runs, however many settings and
    metrics they have. An empty *ids* gives an empty list.
    """
    records: list[RunRecord] = []
    for piece in chunked(ids, _TOGETHER):
        (chosen,) = within(RUN.c.id, piece)
        cursor = connection.execute(select_runs().where(chosen)).cursor
        assert cursor is not None
        rows = {row[0]: row for row in cursor.fetchall()}  # the driver's tuples: a third of the time
        records += load_records(connection, [rows[run_id] for run_id in piece], settings=settings)
    return records


def load_records(
    connection: Connection, rows: Sequence[RunRow], *, settings: Collection[str] | None = None
) -> list[RunRecord]:
    """Return the runs of *rows* (from `select_runs`) in their order.

    Complete with settings, facts, metrics and usage; where *settings* is given, with these settings alone, and without
    facts, tags, notes and usage. Settings and facts are decoded JSON, metrics are their summaries by name. `usage` and
    `work` are None for a run without a measurement; bad lines and lost records are summed over its journals.
    """
    if not rows:
        return []
    ids, *columns = zip(*rows, strict=True)
    every = ids if settings is None else []
    found = {
        **{name: _column(name, values) for name, values in zip(COLUMNS, columns, strict=True)},
        "tags": _of_runs(ids, _load_tags(connection, every), ()),
        "notes": _of_runs(ids, _load_notes(connection, every), ()),
        "params": _of_runs(ids, load_settings(connection, ids, settings), _NOTHING),
        "facts": _of_runs(ids, _load_facts(connection, every), _NOTHING),
        "metrics": _of_runs(ids, _load_summaries(connection, ids), _NOTHING),
        "usage": _of_runs(ids, _load_rows(connection, RUN_USAGE, Usage, every), None),
        "work": _of_runs(ids, _load_rows(connection, RUN_WORK, Work, every), None),
    }
    missing = _load_missing(connection, ids)
    for at, name in enumerate(("bad_lines", "lost_records")):
        found[name] = [missing.get(run_id, (0, 0))[at] for run_id in ids]
    return [RunRecord(**dict(zip(found, values, strict=True))) for values in zip(*found.values(), strict=True)]


_NOTHING: Mapping[str, Any] = {}  # shared, as all settings and facts that are alike


def _of_runs(ids: Sequence[int], found: Mapping[int, T], nothing: T) -> list[T]:
    return [found.get(run_id, nothing) for run_id in ids] if found else [nothing] * len(ids)


def _column(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the *values* of a column of table ``run`` as records have them; texts that are alike are kept once."""
    if name == "state":
        return list(map(_STATES.__getitem__, values))
    if name in _YES_OR_NO:
        return [None if value is None else bool(value) for value in values]
    if name not in _SHARED:
        return values
    known = {value: value for value in values}
    return list(map(known.__getitem__, values))


def load_curves(connection: Connection, uids: Sequence[str], metric: str, *, is_timed: bool = True) -> dict[str, Curve]:
    """Return each run's curve of *metric*, merged over writers and attempts, by step; a run without one is absent.

    Times are seconds since the start of the run; before its clock begins they are negative. They are nan, and not
    read, unless *is_timed*. A step that is nan in the journal has nan as its value. *uids* that are unknown are absent,
    too.
    """
    which = (
        select(
            SERIES.c.id, RUN.c.uid, RUN.c.clock_ms, JOURNAL.c.attempt, JOURNAL.c.writer, JOURNAL.c.t0, JOURNAL.c.file
        )
        .join(RUN, RUN.c.id == SERIES.c.run_id)
        .join(JOURNAL, JOURNAL.c.id == SERIES.c.journal_id)
        .join(METRIC, METRIC.c.id == SERIES.c.metric_id)
        .where(METRIC.c.name == metric)
    )
    curves: dict[str, Curve] = {}
    untimed: dict[int, array[float]] = {}
    for piece in chunked(uids, _TOGETHER):
        (chosen,) = among(RUN.c.uid, piece)
        by_run: defaultdict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
        cursor = connection.execute(which.where(chosen)).cursor
        assert cursor is not None
        for row in cursor.fetchall():
            by_run[row[1:3]].append(row)
        columns = load_points(connection, [row[0] for of in by_run.values() for row in of], is_timed=is_timed)
        for (uid, clock_ms), series in by_run.items():
            steps, times_ms, values = _of_writers(series, columns)
            if is_timed:
                curves[uid] = Curve(steps, [(t_ms - clock_ms) / 1000 for t_ms in times_ms], values)
            else:
                curves[uid] = Curve.untimed(steps, values, untimed)
    return curves


def _of_writers(series: Sequence[tuple[Any, ...]], columns: Mapping[int, Columns]) -> Columns:
    if len(series) == 1:
        return columns.get(series[0][0], _NO_POINTS)
    ranked = []
    for at, _, _, attempt, writer, t0, file in series:
        of = columns.get(at, _NO_POINTS)
        of = of._replace(times_ms=of.times_ms or of.steps)  # where no times were read, merging takes any
        ranked.append((Precedence.of(attempt=attempt, writer=writer, t0=t0, file=file), of))
    return merge(ranked)


def load_points(connection: Connection, series_ids: Sequence[int], *, is_timed: bool = True) -> dict[int, Columns]:
    """Return the points of each series that has any, nan where NULL; times count from the run's epoch.

    Times are not read, and absent, unless *is_timed*.
    """
    found: dict[int, tuple[array[int], array[int], array[float]]] = {}
    columns = [POINT.c.series_id, POINT.c.step, POINT.c.value, *([POINT.c.t_ms] if is_timed else [])]
    query = select(*columns).order_by(POINT.c.series_id, POINT.c.step)
    for piece in within(POINT.c.series_id, series_ids):
        cursor = connection.execute(query.where(piece)).cursor
        assert cursor is not None
        while rows := cursor.fetchmany(_AT_ONCE):  # the driver's tuples: a third of the time
            ids, steps, values, *timed = zip(*rows, strict=True)
            if None in values:
                values = tuple(math.nan if value is None else value for value in values)
            begin = 0
            while begin < len(ids):
                at = ids[begin]
                end = bisect_right(ids, at, begin)
                if at not in found:
                    found[at] = (array("q"), array("q"), array("d"))
                of = found[at]
                of[0].extend(steps[begin:end])
                of[2].extend(values[begin:end])
                for times_ms in timed:
                    of[1].extend(times_ms[begin:end])
                begin = end
    return {at: Columns(*of) for at, of in found.items()}


def _load_facts(connection: Connection, ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """Return the decoded facts of each run; runs with the same facts have the same object, which nobody may change."""
    table = RUN_FACT
    told = (
        cast(func.length(table.c.key), Text) + ":" + table.c.key + table.c.value
    )  # one text for each run: most are alike
    query = select(table.c.run_id, func.aggregate_strings(told, ",")).group_by(table.c.run_id)
    found: dict[int, Mapping[str, Any]] = {}
    read: dict[str, Mapping[str, Any]] = {}
    shared: dict[str, Mapping[str, Any]] = {}
    keys: dict[str, str] = {}
    for piece in within(table.c.run_id, ids):
        for run_id, text in connection.execute(query.where(piece)).cursor.fetchall():
            if text not in read:
                facts = dict(sorted(_facts_in(text, keys)))
                read[text] = shared.setdefault(repr(facts), facts)  # a server tells them in any order
            found[run_id] = read[text]
    return found


def _facts_in(text: str, keys: dict[str, str]) -> Iterator[tuple[str, Any]]:
    at = 0
    while at < len(text):
        begin = text.index(":", at) + 1
        end = begin + int(text[at : begin - 1])
        key = text[begin:end]
        value, at = _DECODER.raw_decode(text, end)
        at += 1  # the comma
        yield keys.setdefault(key, key), value


def _load_tags(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    query = select(RUN_TAG.c.run_id, RUN_TAG.c.tag).order_by(RUN_TAG.c.run_id, RUN_TAG.c.position)
    for piece in within(RUN_TAG.c.run_id, ids):
        for run_id, tag in connection.execute(query.where(piece)):
            found[run_id].append(tag)
    return {run_id: tuple(of) for run_id, of in found.items()}


def _load_notes(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[Note, ...]]:
    found: defaultdict[int, list[Note]] = defaultdict(list)
    columns = (RUN_NOTE.c.run_id, RUN_NOTE.c.at, RUN_NOTE.c.author, RUN_NOTE.c.text)
    query = select(*columns).order_by(RUN_NOTE.c.run_id, RUN_NOTE.c.position)
    for piece in within(RUN_NOTE.c.run_id, ids):
        for run_id, at, author, text in connection.execute(query.where(piece)):
            found[run_id].append(Note(at=at, author=author, text=text))
    return {run_id: tuple(of) for run_id, of in found.items()}


def _load_missing(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return how many lines of each run's journals were unreadable, and how many records are not there."""
    found: dict[int, tuple[int, int]] = {}
    sums = (func.sum(JOURNAL.c.bad_lines), func.sum(JOURNAL.c.lost_records))
    query = (
        select(JOURNAL.c.run_id, *sums)
        .where((JOURNAL.c.bad_lines > 0) | (JOURNAL.c.lost_records > 0))
        .group_by(JOURNAL.c.run_id)
    )
    for piece in within(JOURNAL.c.run_id, ids):
        for run_id, bad_lines, lost_records in connection.execute(query.where(piece)):
            found[run_id] = (int(bad_lines), int(lost_records))
    return found


def _load_rows(connection: Connection, table: Table, kind: type[T], ids: Sequence[int]) -> dict[int, T]:
    """Return the row of *table* for each run as an instance of *kind*; a run without a row is absent."""
    columns = [column for column in table.c if column.name != "run_id"]
    names = [column.name for column in columns]
    return {
        run_id: kind(**dict(zip(names, values, strict=True)))
        for piece in within(table.c.run_id, ids)
        for run_id, *values in connection.execute(select(table.c.run_id, *columns).where(piece))
    }


def _load_summaries(connection: Connection, ids: Sequence[int]) -> dict[int, dict[str, MetricSummary]]:
    found: defaultdict[int, dict[str, MetricSummary]] = defaultdict(dict)
    names = {at: name for at, name in connection.execute(select(METRIC.c.id, METRIC.c.name))}  # noqa: C416 - rows are no pairs to mypy
    query = select(SUMMARY.c.run_id, SUMMARY.c.metric_id, *(SUMMARY.c[name] for name in _SUMMARIZED))
    for piece in within(SUMMARY.c.run_id, ids):
        cursor = connection.execute(query.where(piece)).cursor
        assert cursor is not None
        while rows := cursor.fetchmany(_AT_ONCE):
            of_runs, of_metrics, counts, counts_nonfinite, *columns, totals = zip(*rows, strict=True)
            means = map(mean_of, totals, map(operator.sub, counts, counts_nonfinite))
            called = [names[at] for at in of_metrics]
            made = map(MetricSummary, called, counts, counts_nonfinite, *columns, means)
            for run_id, name, summary in zip(of_runs, called, made, strict=True):
                found[run_id][name] = summary
    return {
        run_id: of if (by_name := sorted(of)) == list(of) else {name: of[name] for name in by_name}
        for run_id, of in found.items()
    }


def is_below(*roots: Path) -> ColumnElement[bool]:
    """Return the condition that a run's directory is one of *roots* (absolute paths) or lies below one.

    Where the folder has a mark (`hpcml.store.origin`), runs are left out whose directories have the same path on
    another host.
    """
    itself = RUN.c.path.in_([storable(str(root)) for root in roots])
    return or_(itself, *map(_is_inside, roots))


def _is_inside(root: Path) -> ColumnElement[bool]:
    folder = f"{storable(str(root))}/"
    inside = func.substr(RUN.c.path, 1, len(folder)) == folder  # no LIKE, which in SQLite takes RUNS for runs
    # the same path on another host, from where the same store is filled, is another folder
    mark = mark_of(root)
    return inside if mark is None else and_(inside, or_(RUN.c.home.is_(None), RUN.c.home == mark))


def clock_zeros(store: Database, uids: Sequence[str]) -> dict[str, float]:
    """Return by uid the unix seconds from which the times of each run's points and events count.

    A run that is not in the store is absent: `hpcml import` asks in this way whether it is there. Add a zero to the
    `t_s` of a point to get its unix time.
    """
    query = select(RUN.c.uid, RUN.c.epoch_ms, RUN.c.clock_ms)
    zeros: dict[str, float] = {}
    with store.reading() as connection:
        for chunk in chunked(uids):
            for uid, epoch_ms, clock_ms in connection.execute(query.where(RUN.c.uid.in_(chunk))):
                zeros[uid] = (epoch_ms + clock_ms) / 1000
    return zeros
