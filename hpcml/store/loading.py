"""Loading runs and curves from the tables, in a few questions for any number of runs.

The functions take a connection, so that several see one state of the store. Also here: the condition that a run lies
below a folder (`is_below`).
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, false, func, or_, select

from hpcml.model.metric_sources import PRINTED_LOSS
from hpcml.model.records import Curve, MetricSummary, Note, RunRecord, Usage, Work
from hpcml.model.state import State
from hpcml.store.curves import mean_of
from hpcml.store.database import Database, chunked
from hpcml.store.origin import mark_of
from hpcml.store.parse import storable
from hpcml.store.schema import METRIC, POINT, RUN, SETTINGS

_DOCUMENTS = ("tags", "notes", "facts", "usage", "work")  # JSON
COLUMNS = tuple(
    field.name for field in fields(RunRecord) if field.name in RUN.c and field.name not in _DOCUMENTS
)  # of RunRecord and of the table alike
_NOTHING: Mapping[str, Any] = {}  # shared, as all settings and facts that are alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which parts of runs are loaded, beside their columns and metrics: all, or what a question needs."""

    settings: Collection[str] | None = None  # these keys alone; None: all
    facts: Collection[str] | None = None
    documents: Collection[str] = _DOCUMENTS  # tags, notes, usage, work


ALL = Parts()


def parts_of_list(settings: Collection[str]) -> Parts:
    """Return what a list of runs shows: these *settings*, and of the facts the one that a run diverged."""
    return Parts(settings=settings, facts=[PRINTED_LOSS], documents=())


def load_uids(connection: Connection, uids: Sequence[str], parts: Parts = ALL) -> list[RunRecord]:
    """Return the runs with these uids, in their order; one that is not there is absent."""
    found = {run.uid: run for chunk in chunked(uids) for run in load_runs(connection, RUN.c.uid.in_(chunk), parts)}
    return [found[uid] for uid in uids if uid in found]


def load_runs(connection: Connection, where: ColumnElement[bool], parts: Parts = ALL) -> list[RunRecord]:
    """Return the runs that meet *where*, by uid; nobody may change them, since what is alike is shared.

    Settings and facts are decoded JSON, metrics their summaries by name. `usage` and `work` are None for a run without
    a measurement.
    """
    keys = list(parts.facts or ())
    documents = [name for name in _DOCUMENTS if name in parts.documents and (name != "facts" or parts.facts is None)]
    columns = [*(RUN.c[name] for name in (*COLUMNS, *documents)), *(RUN.c.facts[key] for key in keys)]
    rows = connection.execute(select(RUN.c.id, RUN.c.settings, *columns).where(where).order_by(RUN.c.uid)).all()
    if not rows:
        return []
    settings = load_settings(connection, {tuple(row[1]) for row in rows}, parts.settings)
    metrics = _load_metrics(connection, where)
    found = []
    n_plain, n_documents = len(COLUMNS) + 2, len(COLUMNS) + 2 + len(documents)
    for row in rows:
        run = dict(zip(COLUMNS, row[2:n_plain], strict=True))
        run |= _decoded(dict(zip(documents, row[n_plain:n_documents], strict=True)))
        if keys:
            run["facts"] = {key: fact for key, fact in zip(keys, row[n_documents:], strict=True) if fact is not None}
        run["state"] = State(run["state"])
        found.append(RunRecord(**run, params=settings[tuple(row[1])], metrics=metrics.get(row[0], _NOTHING)))
    return found


def _decoded(documents: dict[str, Any]) -> dict[str, Any]:
    if "tags" in documents:
        documents["tags"] = tuple(documents["tags"])
    if "notes" in documents:
        documents["notes"] = tuple(Note(**note) for note in documents["notes"])
    for name, kind in (("usage", Usage), ("work", Work)):
        if documents.get(name) is not None:
            documents[name] = kind(**documents[name])
    return documents


def load_settings(
    connection: Connection, wanted: Collection[tuple[int, ...]], keys: Collection[str] | None = None
) -> dict[tuple[int, ...], Mapping[str, Any]]:
    """Return, by the ids of `SETTINGS` that a run has, its settings by whole key; of *keys* alone, if they are given.

    Those that are alike in several groups are kept once.
    """
    ids = sorted({at for one in wanted for at in one})
    contents = {
        at: content
        for chunk in chunked(ids)
        for at, content in connection.execute(select(SETTINGS.c.id, SETTINGS.c.content).where(SETTINGS.c.id.in_(chunk)))
    }
    if keys is not None:
        contents = {at: {key: content[key] for key in keys if key in content} for at, content in contents.items()}
    return {
        one: dict(sorted((pair for at in one for pair in contents[at].items()), key=itemgetter(0))) for one in wanted
    }


def _load_metrics(connection: Connection, where: ColumnElement[bool]) -> dict[int, dict[str, MetricSummary]]:
    found: defaultdict[int, dict[str, MetricSummary]] = defaultdict(dict)
    names = ("run_id", "name", "n", "n_nonfinite", "first", "last", "last_step", "min", "min_step", "max", "max_step")
    others = ("total", "n_unmeasured", "measured", "measured_step")
    query = select(*(METRIC.c[name] for name in (*names, *others))).join(RUN, RUN.c.id == METRIC.c.run_id)
    for row in connection.execute(query.where(where)):
        name, n, n_nonfinite, first, last, last_step, *extremes, total, n_unmeasured, measured, measured_step = row[1:]
        if n_unmeasured:
            last, last_step = measured, measured_step
        mean = mean_of(total, n - n_nonfinite)
        values = (name, n, n_nonfinite, first, last, last_step, *extremes, mean, n_unmeasured)
        found[row.run_id][name] = MetricSummary(*values)
    return {run_id: dict(sorted(metrics.items())) for run_id, metrics in found.items()}


def load_curves(connection: Connection, uids: Sequence[str], metric: str, *, is_timed: bool = True) -> dict[str, Curve]:
    """Return each run's curve of *metric* by step; a run without one is absent.

    Times are seconds since the start of the run; before its clock begins they are negative. They are nan, and not
    read, unless *is_timed*. A step that is nan in the journal has nan as its value. *uids* that are unknown are absent,
    too.
    """
    curves = {}
    columns = (POINT.c.step, POINT.c.value, POINT.c.t_ms) if is_timed else (POINT.c.step, POINT.c.value)
    which = select(METRIC.c.id, RUN.c.uid, RUN.c.clock_ms).join(RUN, RUN.c.id == METRIC.c.run_id)
    for chunk in chunked(uids):
        runs = {
            at: (uid, clock_ms)
            for at, uid, clock_ms in connection.execute(
                which.where(METRIC.c.name == storable(metric), RUN.c.uid.in_(chunk))
            )
        }
        points: dict[int, tuple[array[Any], array[Any], array[Any]]] = {
            at: (array("q"), array("d"), array("d")) for at in runs
        }
        query = select(POINT.c.metric_id, *columns).where(POINT.c.metric_id.in_(list(runs)))
        for at, step, value, *t_ms in connection.execute(query.order_by(POINT.c.metric_id, POINT.c.step)):
            steps, values, times_s = points[at]
            steps.append(step)
            values.append(math.nan if value is None else value)
            times_s.append((t_ms[0] - runs[at][1]) / 1000 if is_timed else math.nan)
        for at, (steps, values, times_s) in points.items():
            curves[runs[at][0]] = Curve(steps, times_s, values)
    return curves


def is_below(*roots: Path) -> ColumnElement[bool]:
    """Return the condition that a run's directory is one of *roots* (absolute paths) or lies below one.

    Where the folder has a mark (`hpcml.store.origin`), runs are left out whose directories have the same path on
    another host.
    """
    conditions = []
    for root in roots:
        folder = f"{storable(str(root))}/"
        # no LIKE, which in SQLite takes RUNS for runs
        inside: ColumnElement[bool] = func.substr(RUN.c.path, 1, len(folder)) == folder
        # the same path on another host, from where the same store is filled, is another folder
        if (mark := mark_of(root)) is not None:
            inside = and_(inside, or_(RUN.c.home.is_(None), RUN.c.home == mark))
        conditions += [RUN.c.path == folder[:-1], inside]
    return or_(false(), *conditions)


def clock_zeros(store: Database, uids: Sequence[str]) -> dict[str, float]:
    """Return by uid the unix seconds from which the times of each run's points and events count.

    A run that is not in the store is absent: `hpcml import` asks in this way whether it is there. Add a zero to the
    `t_s` of a point to get its unix time.
    """
    query = select(RUN.c.uid, RUN.c.epoch_ms, RUN.c.clock_ms)
    with store.reading() as connection:
        return {
            uid: (epoch_ms + clock_ms) / 1000
            for chunk in chunked(uids)
            for uid, epoch_ms, clock_ms in connection.execute(query.where(RUN.c.uid.in_(chunk)))
        }
