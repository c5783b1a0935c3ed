"""Loading runs, curves and clocks from the tables, in a few queries for any number of runs.

The functions take an open connection, so that several see one state of the store. Also here: the condition that a run
lies below a folder (`is_below`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
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
from hpcml.store.pieces import chunked, within
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
)  # of a metric, in the order of `_load_summaries`
_TOGETHER = 10_000  # runs: what they are made of takes as much memory as they do
_NO_POINTS = Columns()
RunRow = Row[*tuple[Any, ...]]


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
        (among,) = within(RUN.c.id, piece)
        rows = {row[0]: row for row in connection.execute(select_runs().where(among))}
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
    ids = [row[0] for row in rows]
    every = ids if settings is None else []
    params, facts = load_settings(connection, ids, settings), _load_facts(connection, every)
    tags, metrics = _load_tags(connection, every), _load_summaries(connection, ids)
    notes, missing = _load_notes(connection, every), _load_missing(connection, ids)
    usage, work = _load_rows(connection, RUN_USAGE, every), _load_rows(connection, RUN_WORK, every)
    state_at, states = COLUMNS.index("state"), {state.value: state for state in State}
    names = [*COLUMNS, "tags", "notes", "bad_lines", "lost_records", "params", "facts", "metrics", "usage", "work"]
    records = []
    seen: dict[Any, Any] = {}  # most texts are those of other runs: kept once
    for run_id, *values in rows:
        columns = [seen.setdefault(value, value) if type(value) is str else value for value in values]
        columns[state_at] = states[columns[state_at]]
        told = (tuple(tags.get(run_id, ())), tuple(notes[run_id]), *missing[run_id])
        found = (params[run_id], facts[run_id], metrics[run_id])
        used, done = usage.get(run_id), work.get(run_id)
        measured = (Usage(**used) if used is not None else None, Work(**done) if done is not None else None)
        records.append(RunRecord(**dict(zip(names, (*columns, *told, *found, *measured), strict=True))))
    return records


def load_curves(connection: Connection, uids: Sequence[str], metric: str) -> dict[str, Curve]:
    """Return each run's curve of *metric*, merged over writers and attempts, by step; a run without one is absent.

    Times are seconds since the start of the run; before its clock begins they are negative. A step that is nan in the
    journal has nan as its value. *uids* that are unknown are absent, too.
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
    for chunk in chunked(uids):
        series = connection.execute(which.where(RUN.c.uid.in_(chunk))).all()
        columns = load_points(connection, [row.id for row in series])
        by_run: defaultdict[tuple[str, int], list[RunRow]] = defaultdict(list)
        for row in series:
            by_run[row.uid, row.clock_ms].append(row)
        for (uid, clock_ms), of_run in by_run.items():
            steps, times_ms, values = merge(
                [
                    (Precedence.of(attempt=attempt, writer=writer, t0=t0, file=file), columns.get(at, _NO_POINTS))
                    for at, _, _, attempt, writer, t0, file in of_run
                ]
            )
            curves[uid] = Curve(steps, [(t_ms - clock_ms) / 1000 for t_ms in times_ms], values)
    return curves


def load_points(connection: Connection, series_ids: Sequence[int]) -> dict[int, Columns]:
    """Return the points of each series that has any, nan where NULL; times count from the run's epoch."""
    return dict(_columns_of_points(connection, series_ids))


def _columns_of_points(connection: Connection, series_ids: Sequence[int]) -> Iterator[tuple[int, Columns]]:
    query = select(POINT).order_by(POINT.c.series_id, POINT.c.step)
    for among in within(POINT.c.series_id, series_ids):
        cursor = connection.execute(query.where(among)).cursor
        assert cursor is not None
        rows = iter(cursor.fetchone, None)  # the driver's tuples: a third of the time
        for series_id, of_series in groupby(rows, key=itemgetter(0)):
            _, steps, times_ms, values = zip(*of_series, strict=True)
            if None in values:
                values = tuple(math.nan if value is None else value for value in values)
            yield series_id, Columns(steps, times_ms, values)


def _load_facts(connection: Connection, ids: Sequence[int]) -> defaultdict[int, dict[str, Any]]:
    """Return the decoded facts of each run; runs with the same facts have the same object, which nobody may change."""
    found: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    table = RUN_FACT
    query = select(table.c.run_id, table.c.key, table.c.value).order_by(table.c.run_id, table.c.key)
    shared: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    keys: dict[str, str] = {}
    for among in within(table.c.run_id, ids):
        cursor = connection.execute(query.where(among)).cursor
        assert cursor is not None
        rows = iter(cursor.fetchone, None)  # the driver's tuples: a third of the time
        for run_id, of_run in groupby(rows, key=itemgetter(0)):
            texts = tuple(map(itemgetter(1, 2), of_run))
            if texts not in shared:
                shared[texts] = {keys.setdefault(key, key): json.loads(value) for key, value in texts}
            found[run_id] = shared[texts]
    return found


def _load_tags(connection: Connection, ids: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {run_id: [] for run_id in ids}
    query = select(RUN_TAG.c.run_id, RUN_TAG.c.tag).order_by(RUN_TAG.c.run_id, RUN_TAG.c.position)
    for among in within(RUN_TAG.c.run_id, ids):
        for run_id, tag in connection.execute(query.where(among)):
            found[run_id].append(tag)
    return found


def _load_notes(connection: Connection, ids: Sequence[int]) -> defaultdict[int, list[Note]]:
    found: defaultdict[int, list[Note]] = defaultdict(list)
    columns = (RUN_NOTE.c.run_id, RUN_NOTE.c.at, RUN_NOTE.c.author, RUN_NOTE.c.text)
    query = select(*columns).order_by(RUN_NOTE.c.run_id, RUN_NOTE.c.position)
    for among in within(RUN_NOTE.c.run_id, ids):
        for run_id, at, author, text in connection.execute(query.where(among)):
            found[run_id].append(Note(at=at, author=author, text=text))
    return found


def _load_missing(connection: Connection, ids: Sequence[int]) -> defaultdict[int, tuple[int, int]]:
    """Return how many lines of each run's journals were unreadable, and how many records are not there."""
    found: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    sums = (func.sum(JOURNAL.c.bad_lines), func.sum(JOURNAL.c.lost_records))
    query = (
        select(JOURNAL.c.run_id, *sums)
        .where((JOURNAL.c.bad_lines > 0) | (JOURNAL.c.lost_records > 0))
        .group_by(JOURNAL.c.run_id)
    )
    for among in within(JOURNAL.c.run_id, ids):
        for run_id, bad_lines, lost_records in connection.execute(query.where(among)):
            found[run_id] = (int(bad_lines), int(lost_records))
    return found


def _load_rows(connection: Connection, table: Table, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the row of *table* for each run, by column name; a run without a row is absent."""
    columns = [column for column in table.c if column.name != "run_id"]
    names = [column.name for column in columns]
    return {
        run_id: dict(zip(names, values, strict=True))
        for among in within(table.c.run_id, ids)
        for run_id, *values in connection.execute(select(table.c.run_id, *columns).where(among))
    }


def _load_summaries(connection: Connection, ids: Sequence[int]) -> defaultdict[int, dict[str, MetricSummary]]:
    found: defaultdict[int, dict[str, MetricSummary]] = defaultdict(dict)
    columns = [SUMMARY.c[name] for name in _SUMMARIZED]
    query = (
        select(SUMMARY.c.run_id, METRIC.c.name, *columns)
        .join(METRIC, METRIC.c.id == SUMMARY.c.metric_id)
        .order_by(SUMMARY.c.run_id, METRIC.c.name)
    )
    names: dict[str, str] = {}
    for among in within(SUMMARY.c.run_id, ids):
        cursor = connection.execute(query.where(among)).cursor
        assert cursor is not None
        for run_id, word, n, n_nonfinite, first, last, last_step, low, low_step, high, high_step, total in iter(
            cursor.fetchone, None
        ):
            name = names.setdefault(word, word)
            found[run_id][name] = MetricSummary(
                name=name,
                n=n,
                n_nonfinite=n_nonfinite,
                first=first,
                last=last,
                last_step=last_step,
                min=low,
                min_step=low_step,
                max=high,
                max_step=high_step,
                mean=mean_of(total, n - n_nonfinite),
            )
    return found


def is_below(*roots: Path) -> ColumnElement[bool]:
    """Return the condition that a run's directory is one of *roots* (absolute paths) or lies below one.

    Where the folder has a mark (`hpcml.store.origin`), runs are left out whose directories have the same path on
    another host.
    """
    itself = RUN.c.path.in_([storable(str(root)) for root in roots])
    return or_(itself, *map(_is_inside, roots))


def _is_inside(root: Path) -> ColumnElement[bool]:
    inside = RUN.c.path.startswith(f"{storable(str(root))}/", autoescape=True)
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
