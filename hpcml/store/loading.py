"""Loading runs, curves and clocks from the tables, in a few questions for any number of runs.

The functions take a `StoreReader`, so that several see one state of the store. Also here: the condition that a run lies
below a folder (`is_below`).
"""

from __future__ import annotations

import json
import math
import operator
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hpcml.model.metric_sources import PRINTED_LOSS
from hpcml.model.records import Curve, MetricSummary, Note, RunRecord, Usage, Work
from hpcml.model.state import State
from hpcml.store.curves import Columns, Precedence, mean_of, measured, merge
from hpcml.store.database import Database
from hpcml.store.origin import mark_of
from hpcml.store.parse import storable
from hpcml.store.reading import Row, StoreReader
from hpcml.store.settings import load_settings

COLUMNS = (
    *("uid", "path", "experiment", "name", "spec_hash", "state", "is_settled", "cause", "reason", "exit_code"),
    *("attempt", "scheduler", "job_id", "array_index", "job_name", "job_cluster", "is_shared", "submission"),
    *("submitted_at", "t_start", "t_end", "wall_s", "seed"),
    *("precision", "precision_effective", "numerics", "git_commit", "git_dirty"),
)  # of RunRecord and of the table alike

# What `load_records` takes: the id of each run, then `COLUMNS`; add conditions and an order.
RUNS = f"SELECT run.id, {', '.join(f'run.{name}' for name in COLUMNS)} FROM run"  # noqa: S608 - our own names

_SUMMARIZED = (
    *("n", "n_nonfinite", "first", "last", "last_step", "min", "min_step", "max", "max_step", "total"),
)  # of a metric, in the order of `MetricSummary`, but that the total comes last
_DECODER = json.JSONDecoder()
_TOGETHER = 10_000  # runs: what they are made of takes as much memory as they do
_NO_POINTS = Columns()
_STATES = {state.value: state for state in State}
_WORDS = {field.name: str(field.type).partition(" ")[0] for field in fields(RunRecord)}  # its fields, in their order
YES_OR_NO = frozenset(name for name in COLUMNS if _WORDS[name] == "bool")  # which SQLite keeps as 0 and 1
_SHARED = frozenset(name for name in COLUMNS if _WORDS[name] == "str") - {"uid", "path", "job_id"}
T = TypeVar("T")


class Where(NamedTuple):
    """A condition on rows of table ``run``, in SQL, and the values that are named in it."""

    sql: str
    values: Mapping[str, object]


def load_runs(reading: StoreReader, ids: Sequence[int], *, settings: Collection[str] | None = None) -> list[RunRecord]:
    """Return the runs with these row ids (not uids), in the order of *ids*; *settings* as in `load_records`.

    Raises `KeyError` for an unknown one. A constant number of queries for each 10,000 runs, however many settings and
    metrics they have. An empty *ids* gives an empty list.
    """
    records: dict[int, RunRecord] = {}
    ordered = sorted(ids)
    for at in range(0, len(ordered), _TOGETHER):
        rows = reading.rows(f"{RUNS} WHERE id IN :ids", ids=ordered[at : at + _TOGETHER])
        records |= zip([row[0] for row in rows], load_records(reading, rows, settings=settings), strict=True)
    return [records[run_id] for run_id in ids]


def load_records(
    reading: StoreReader, rows: Sequence[Row], *, settings: Collection[str] | None = None
) -> list[RunRecord]:
    """Return the runs of *rows* (from `RUNS`) in their order.

    Complete with settings, facts, metrics and usage; where *settings* is given, with these settings alone, without
    tags, notes and usage, and of the facts with the one that a run diverged. Settings and facts are decoded JSON,
    metrics are their summaries by name. `usage` and `work` are None for a run without a measurement; bad lines and lost
    records are summed over its journals.
    """
    if not rows:
        return []
    ids, *columns = zip(*rows, strict=True)
    every = ids if settings is None else []
    found = {
        **{name: _column(name, values) for name, values in zip(COLUMNS, columns, strict=True)},
        "tags": _of_runs(ids, _load_tags(reading, every), ()),
        "notes": _of_runs(ids, _load_notes(reading, every), ()),
        "params": _of_runs(ids, load_settings(reading, ids, settings), _NOTHING),
        "facts": _of_runs(ids, _load_facts(reading, ids, None if settings is None else PRINTED_LOSS), _NOTHING),
        "metrics": _of_runs(ids, _load_summaries(reading, ids), _NOTHING),
        "usage": _of_runs(ids, _load_measured(reading, "run_usage", Usage, every), None),
        "work": _of_runs(ids, _load_measured(reading, "run_work", Work, every), None),
    }
    missing = _load_missing(reading, ids)
    for at, name in enumerate(("bad_lines", "lost_records")):
        found[name] = [missing.get(run_id, (0, 0))[at] for run_id in ids]
    assert found.keys() == _WORDS.keys()
    return list(map(RunRecord, *(found[name] for name in _WORDS)))  # by place: half the time of by keyword


_NOTHING: Mapping[str, Any] = {}  # shared, as all settings and facts that are alike


def _of_runs(ids: Sequence[int], found: Mapping[int, T], nothing: T) -> list[T]:
    return [found.get(run_id, nothing) for run_id in ids] if found else [nothing] * len(ids)


def _column(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the *values* of a column of table ``run`` as records have them; texts that are alike are kept once."""
    if name == "state":
        return list(map(_STATES.__getitem__, values))
    if name in YES_OR_NO:
        return [None if value is None else bool(value) for value in values]
    if name not in _SHARED:
        return values
    known = {value: value for value in values}
    return list(map(known.__getitem__, values))


_SERIES = """
SELECT series.id, run.uid, run.clock_ms
FROM series JOIN run ON run.id = series.run_id JOIN metric ON metric.id = series.metric_id
WHERE metric.name = :metric AND run.uid IN :uids
"""
_RANKS = """
SELECT series.id, journal.attempt, journal.writer, journal.t0, journal.file
FROM series JOIN journal ON journal.id = series.journal_id WHERE series.id IN :ids
"""
_SPANS = """
SELECT series_id, count(*), min(step), max(step) FROM point WHERE series_id IN :ids
GROUP BY series_id ORDER BY series_id
"""


def load_curves(reading: StoreReader, uids: Sequence[str], metric: str, *, is_timed: bool = True) -> dict[str, Curve]:
    """Return each run's curve of *metric*, merged over writers and attempts, by step; a run without one is absent.

    Times are seconds since the start of the run; before its clock begins they are negative. They are nan, and not
    read, unless *is_timed*. A step that is nan in the journal has nan as its value. *uids* that are unknown are absent,
    too. Curves may share their steps, which nobody may change.
    """
    curves: dict[str, Curve] = {}
    no_times: dict[int, array[float]] = {}
    for begin in range(0, len(uids), _TOGETHER):
        series: defaultdict[str, list[int]] = defaultdict(list)
        clocks: dict[str, int] = {}
        for at, uid, clock_ms in reading.rows(_SERIES, metric=metric, uids=uids[begin : begin + _TOGETHER]):
            series[uid].append(at)
            clocks[uid] = clock_ms
        columns = load_points(reading, [at for of in series.values() for at in of], is_timed=is_timed)
        ranks = _load_ranks(reading, [at for of in series.values() if len(of) > 1 for at in of])
        for uid, of_run in series.items():
            one = columns.get(of_run[0], _NO_POINTS) if len(of_run) == 1 else _of_writers(of_run, columns, ranks)
            steps, times_ms, values = one
            if is_timed:
                times_s = array("d", [(t_ms - clocks[uid]) / 1000 for t_ms in times_ms])
            elif len(steps) in no_times:
                times_s = no_times[len(steps)]
            else:
                times_s = no_times[len(steps)] = array("d", [math.nan]) * len(steps)
            curves[uid] = Curve(steps, times_s, values)
    return curves


def _load_ranks(reading: StoreReader, series_ids: Sequence[int]) -> dict[int, Precedence]:
    return {
        at: Precedence.of(attempt=attempt, writer=writer, t0=t0, file=file)
        for at, attempt, writer, t0, file in reading.rows(_RANKS, ids=series_ids)
    }


def _of_writers(series: Sequence[int], columns: Mapping[int, Columns], ranks: Mapping[int, Precedence]) -> Columns:
    ranked = []
    for at in series:
        of = columns.get(at, _NO_POINTS)
        of = of._replace(times_ms=of.times_ms or of.steps)  # where no times were read, merging takes any
        ranked.append((ranks[at], of))
    return merge(ranked)


def load_points(reading: StoreReader, series_ids: Sequence[int], *, is_timed: bool = True) -> dict[int, Columns]:
    """Return the points of each series that has any, nan where NULL; times count from the run's epoch.

    Times are not read, and absent, unless *is_timed*. Series may share their steps, which nobody may change. Several
    statements must see one state: the caller keeps others from writing points of these series, or reads a snapshot.
    """
    found: dict[int, Columns] = {}
    ordered = sorted(series_ids)
    for first in range(0, len(ordered), _TOGETHER):
        piece = ordered[first : first + _TOGETHER]
        spans = reading.rows(_SPANS, ids=piece)
        steps = _steps_of(reading, spans)
        values = _of_points(reading, "value", piece, "d")
        times_ms = _of_points(reading, "t_ms", piece, "q") if is_timed else array("q")
        begin = 0
        for at, n, _, _ in spans:
            end = begin + n
            found[at] = Columns(steps[at], times_ms[begin:end] if is_timed else times_ms, values[begin:end])
            begin = end
    return found


def _steps_of(reading: StoreReader, spans: Sequence[Row]) -> dict[int, array[int]]:
    """Return the steps of series by id, of which *spans* say the number of steps, the first, and the last.

    They are read where some between the first and the last are missing, which are few series; else they are known.
    """
    known: dict[tuple[int, int], array[int]] = {}  # kept once: a sweep has the same for thousands of runs
    with_gaps = [(at, n) for at, n, first, last in spans if last - first >= n]
    read = _of_points(reading, "step", [at for at, _ in with_gaps], "q")
    found: dict[int, array[int]] = {}
    begin = 0
    for at, n in with_gaps:
        found[at] = read[begin : begin + n]
        begin += n
    for at, _, first, last in spans:
        if at not in found:
            if (first, last) not in known:
                known[first, last] = array("q", range(first, last + 1))
            found[at] = known[first, last]
    return found


def _of_points(reading: StoreReader, name: str, series_ids: Sequence[int], typecode: str) -> array[Any]:
    """Return column *name* of all points of these series one after the other, by the ids of the series and by step."""
    found = array(typecode)
    sql = f"SELECT point.{name} FROM point WHERE series_id IN :ids ORDER BY series_id, step"  # noqa: S608 - our own
    for rows in reading.each(sql, ids=series_ids):
        told: list[Any] = list(chain.from_iterable(rows))
        if None in told:
            told = [math.nan if each is None else each for each in told]
        found.fromlist(told)
    return found


_FACTS = """
SELECT run_id, group_concat(CAST(length(key) AS TEXT) || ':' || key || value, ',') FROM run_fact
WHERE run_id IN :ids{} GROUP BY run_id
"""  # one text for each run: most are alike


def _load_facts(reading: StoreReader, ids: Sequence[int], key: str | None) -> dict[int, Mapping[str, Any]]:
    """Return the decoded facts of each run, with a *key* that one alone.

    Runs with the same facts have the same object, which nobody may change.
    """
    found: dict[int, Mapping[str, Any]] = {}
    read: dict[str, Mapping[str, Any]] = {}
    shared: dict[str, Mapping[str, Any]] = {}
    keys: dict[str, str] = {}
    one, named = ("", {}) if key is None else (" AND key = :key", {"key": key})
    for run_id, text in reading.rows(_FACTS.format(one), ids=ids, **named):
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


def _load_tags(reading: StoreReader, ids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    sql = "SELECT run_id, tag FROM run_tag WHERE run_id IN :ids ORDER BY run_id, run_tag.position"
    for run_id, tag in reading.rows(sql, ids=ids):
        found[run_id].append(tag)
    return {run_id: tuple(of) for run_id, of in found.items()}


def _load_notes(reading: StoreReader, ids: Sequence[int]) -> dict[int, tuple[Note, ...]]:
    found: defaultdict[int, list[Note]] = defaultdict(list)
    columns = "run_note.run_id, run_note.at, run_note.author, run_note.text"
    sql = f"SELECT {columns} FROM run_note WHERE run_id IN :ids ORDER BY run_id, run_note.position"  # noqa: S608
    for run_id, at, author, text in reading.rows(sql, ids=ids):
        found[run_id].append(Note(at=at, author=author, text=text))
    return {run_id: tuple(of) for run_id, of in found.items()}


_MISSING = """
SELECT run_id, sum(bad_lines), sum(lost_records) FROM journal
WHERE (bad_lines > 0 OR lost_records > 0) AND run_id IN :ids GROUP BY run_id
"""


def _load_missing(reading: StoreReader, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return how many lines of each run's journals were unreadable, and how many records are not there."""
    return {run_id: (int(bad), int(lost)) for run_id, bad, lost in reading.rows(_MISSING, ids=ids)}


def _load_measured(reading: StoreReader, table: str, kind: type[T], ids: Sequence[int]) -> dict[int, T]:
    """Return the row of *table* for each run as an instance of *kind*; a run without a row is absent."""
    words = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    sql = f"SELECT run_id, {', '.join(f'{table}.{name}' for name in words)} FROM {table} WHERE run_id IN :ids"  # noqa: S608
    return {
        run_id: kind(
            **{
                name: bool(value) if word == "bool" else value
                for (name, word), value in zip(words.items(), values, strict=True)
            }
        )
        for run_id, *values in reading.rows(sql, ids=ids)
    }


def _load_summaries(reading: StoreReader, ids: Sequence[int]) -> dict[int, dict[str, MetricSummary]]:
    found: defaultdict[int, dict[str, MetricSummary]] = defaultdict(dict)
    names: dict[int, str] = dict(reading.rows("SELECT id, name FROM metric"))
    columns = ", ".join(f"summary.{name}" for name in ("run_id", "metric_id", *_SUMMARIZED))
    doubtful: set[tuple[int, int]] = set()  # runs and metrics of which some values are nan or infinite
    for rows in reading.each(f"SELECT {columns} FROM summary WHERE run_id IN :ids", ids=ids):  # noqa: S608 - our own
        of_runs, of_metrics, counts, counts_nonfinite, *values, totals = zip(*rows, strict=True)
        if any(counts_nonfinite):
            every = zip(of_runs, of_metrics, counts, counts_nonfinite, strict=True)
            doubtful |= {(run_id, metric_id) for run_id, metric_id, n, n_nonfinite in every if 0 < n_nonfinite < n}
        means = map(mean_of, totals, map(operator.sub, counts, counts_nonfinite))
        called = list(map(names.__getitem__, of_metrics))
        made = map(MetricSummary, called, counts, counts_nonfinite, *values, means)
        for run_id, name, summary in zip(of_runs, called, made, strict=True):
            found[run_id][name] = summary
    for (run_id, metric_id), known in load_measured(reading, doubtful).items():
        summary = found[run_id][names[metric_id]]
        summary.n_unmeasured = summary.n - len(known.steps)
        summary.last_step, summary.last = known.steps[-1], known.values[-1]
    return {
        run_id: of if (by_name := sorted(of)) == list(of) else {name: of[name] for name in by_name}
        for run_id, of in found.items()
    }


_SERIES_OF = """
SELECT series.id, series.run_id, series.metric_id FROM series WHERE run_id IN :ids AND metric_id IN :metrics
"""


def load_measured(reading: StoreReader, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], Columns]:
    """Return what is `measured` of these metrics of runs, by the row ids of run and metric, where other values are nan.

    A metric of which all that is nan counts as such is absent.
    """
    if not wanted:
        return {}
    ids, metrics = (sorted(set(of)) for of in zip(*wanted, strict=True))
    series: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for at, run_id, metric_id in reading.rows(_SERIES_OF, ids=ids, metrics=metrics):
        if (run_id, metric_id) in wanted:
            series[run_id, metric_id].append(at)
    columns = load_points(reading, [at for of in series.values() for at in of], is_timed=False)
    ranks = _load_ranks(reading, [at for of in series.values() if len(of) > 1 for at in of])
    found = {}
    for key, of in series.items():
        points = columns.get(of[0], _NO_POINTS) if len(of) == 1 else _of_writers(of, columns, ranks)
        if (known := measured(points.steps, points.values)) is not None:
            found[key] = known
    return found


def is_below(*roots: Path) -> Where:
    """Return the condition that a run's directory is one of *roots* (absolute paths) or lies below one.

    Where the folder has a mark (`hpcml.store.origin`), runs are left out whose directories have the same path on
    another host.
    """
    words = ["run.path IN :roots"]
    values: dict[str, object] = {"roots": [storable(str(root)) for root in roots]}
    for at, root in enumerate(roots):
        folder = f"{storable(str(root))}/"
        values |= {f"root{at}": folder, f"length{at}": len(folder)}
        inside = f"substr(run.path, 1, :length{at}) = :root{at}"  # no LIKE, which in SQLite takes RUNS for runs
        # the same path on another host, from where the same store is filled, is another folder
        if (mark := mark_of(root)) is not None:
            values[f"home{at}"] = mark
            inside = f"({inside} AND (run.home IS NULL OR run.home = :home{at}))"
        words.append(inside)
    return Where(f"({' OR '.join(words)})", values)


def clock_zeros(store: Database, uids: Sequence[str]) -> dict[str, float]:
    """Return by uid the unix seconds from which the times of each run's points and events count.

    A run that is not in the store is absent: `hpcml import` asks in this way whether it is there. Add a zero to the
    `t_s` of a point to get its unix time.
    """
    with store.reading() as reading:
        rows = reading.rows("SELECT uid, epoch_ms, clock_ms FROM run WHERE uid IN :uids", uids=uids)
    return {uid: (epoch_ms + clock_ms) / 1000 for uid, epoch_ms, clock_ms in rows}
