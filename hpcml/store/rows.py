"""Writing the rows of one run, inside the caller's transaction; also bulk inserts, and forgetting a run.

`hpcml.store.ingest` calls `ensure_run`, `write_stretch` and `refold`. Bulk inserts take executemany in SQLite and COPY
on a PostgreSQL server (PostgreSQL manual, "Populating a Database"). `forget_runs` is for runs whose directory is gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam, delete, insert, select, update

from hpcml.model.records import Usage, Work
from hpcml.model.state import State
from hpcml.store.curves import Columns
from hpcml.store.database import Database
from hpcml.store.facts import ANNOTATING, FOLDED, Happening, JournalStart, fold, fold_notes, fold_tags
from hpcml.store.journal_rows import Cursor
from hpcml.store.manifest_rows import Description, as_json
from hpcml.store.origin import home_mark_of
from hpcml.store.parse import Stretch, storable
from hpcml.store.pieces import chunked, insert_rows, within
from hpcml.store.schema import (
    EVENT,
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
    WORD,
)
from hpcml.store.server_locks import hold_names, hold_run, is_server
from hpcml.store.setting_rows import forget_settings, forget_unused, replace_settings
from hpcml.store.telemetry_rows import forget_samples
from hpcml.store.usage import MEASURED, Carbon, fold_usage, fold_work


def ensure_run(connection: Connection, described: Description) -> tuple[int, bool]:
    """Write what run.json says of the run, if that is new; return the run's row id, and whether anything was written.

    Where it was, the caller must `refold`. The caller holds the lock of the run (`hpcml.store.server_locks`). Settings
    are replaced as a whole. Where the time of submission changed, all that was read from journals is forgotten, since
    stored times count from it.
    """
    told = ("path", "manifest_stamp", "home")
    columns = (RUN.c.id, RUN.c.epoch_ms, *(RUN.c[name] for name in told))
    known = connection.execute(select(*columns).where(RUN.c.uid == described.uid)).one_or_none()
    if known is None:
        unknown = {
            "numerics": described.columns["planned_numerics"],
            "scheduler": described.columns["planned_scheduler"],
        }
        unknown |= {"state": State.PENDING.value, "attempt": 0, "clock_ms": 0}
        run_id = _insert_one(connection, insert(RUN).values(uid=described.uid, **described.columns, **unknown))
    elif all(getattr(known, name) == described.columns[name] for name in told):
        return int(known.id), False
    else:
        run_id = known.id
        connection.execute(update(RUN).where(RUN.c.id == run_id).values(**described.columns))
        if known.epoch_ms != described.epoch_ms:
            forget_journals(connection, run_id)  # their times count from the old one
    replace_settings(connection, run_id, described.settings)
    return run_id, True


def forget_journals(connection: Connection, run_id: int) -> None:
    """Delete all that was read from the run's journals and telemetry; the next ingest reads it anew.

    The row of the run stays, with its settings. The caller holds the lock of the run.
    """
    series = select(SERIES.c.id).where(SERIES.c.run_id == run_id)
    connection.execute(delete(POINT).where(POINT.c.series_id.in_(series)))
    for table in (SERIES, SUMMARY, EVENT, JOURNAL):
        connection.execute(delete(table).where(table.c.run_id == run_id))
    forget_samples(connection, run_id)


def write_stretch(connection: Connection, run_id: int, cursor: Cursor, stretch: Stretch) -> dict[str, int]:
    """Add the events of *stretch*, and its points over those of the same step; return the series id of each metric.

    Events are numbered from where *cursor* stands. A point that is nan is stored as NULL. The cursor itself is moved by
    `hpcml.store.journals.move_cursor`, in the same transaction.
    """
    if stretch.events:
        events = [(cursor.id, cursor.events + at, run_id, *event) for at, event in enumerate(stretch.events)]
        insert_events(connection, events)
    if not stretch.points:
        return {}
    series_ids = _ensure_series(connection, run_id, cursor.id, stretch.points)
    write_points(connection, [(series_ids[name], columns) for name, columns in stretch.points.items()])
    return series_ids


def _insert_one(connection: Connection, statement: Insert) -> int:
    result = connection.execute(statement)
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def _ensure_series(connection: Connection, run_id: int, journal_id: int, names: Collection[str]) -> dict[str, int]:
    """Return the journal's series ids by metric, adding those that are missing.

    The caller holds the lock of the run. A series is what one journal says of one metric.
    """
    query = (
        select(METRIC.c.name, SERIES.c.id)
        .join(SERIES, SERIES.c.metric_id == METRIC.c.id)
        .where(SERIES.c.journal_id == journal_id)
    )
    series = {name: int(at) for name, at in connection.execute(query)}
    if missing := [name for name in names if name not in series]:
        metrics = _metric_ids(connection, missing)
        if new := [name for name in missing if name not in metrics]:
            add_metrics(connection, new)
            metrics = _metric_ids(connection, missing)
        keys = {"run_id": run_id, "journal_id": journal_id}
        connection.execute(insert(SERIES), [{**keys, "metric_id": metrics[name]} for name in missing])
        series = {name: int(at) for name, at in connection.execute(query)}
    return series


def _metric_ids(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    return {
        name: at
        for chunk in chunked(names)
        for name, at in connection.execute(select(METRIC.c.name, METRIC.c.id).where(METRIC.c.name.in_(chunk)))
    }


TELLING = frozenset((*FOLDED, *ANNOTATING, *MEASURED))  # names of the events that say something of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What run.json and all events say of a run, as its rows in several tables."""

    columns: Mapping[str, Any]  # of the table `run`, beside those of its `Description`
    is_over: bool  # it has ended, and nothing about that is open
    facts: Mapping[str, str]  # JSON
    lists: Mapping[Table, Sequence[Mapping[str, Any]]]  # tags and notes, in their order; absent: they stay
    measured: Mapping[Table, Mapping[str, Any]]  # usage and work; those that nothing was reported of are absent


def folded(described: Description, journals: Sequence[JournalStart], happenings: Sequence[Happening]) -> Folded:
    """Return the rows of a run; the order of *journals* and *happenings* makes no difference.

    The rules are in `hpcml.store.facts` and `hpcml.store.usage`.
    """
    known = fold(
        journals,
        happenings,
        requested=described.columns["precision"],
        is_observed=described.setting("precision.observe") == '"always"',
    )
    plain = ("is_settled", "exit_code", "attempt", "array_index", "is_shared", "t_start", "t_end", "wall_s")
    columns = {name: getattr(known, name) for name in plain}
    for name in ("cause", "reason", "job_id", "job_name", "job_cluster", "precision_effective"):
        text = getattr(known, name)
        columns[name] = None if text is None else storable(text)
    clock_ms = 0 if known.clock_zero is None else round(known.clock_zero * 1000 - described.epoch_ms)
    columns |= {"state": known.state.value, "clock_ms": clock_ms}
    for name in ("numerics", "scheduler"):
        text = getattr(known, name)
        columns[name] = described.columns[f"planned_{name}"] if text is None else storable(text)
    lists: dict[Table, Sequence[Mapping[str, Any]]] = {}
    if described.tags is not None:
        lists[RUN_TAG] = [{"tag": storable(tag)} for tag in fold_tags(described.tags, happenings)]
        lists[RUN_NOTE] = [
            {"at": note.at, "author": storable(note.author), "text": storable(note.text)}
            for note in fold_notes(happenings)
        ]
    usage = fold_usage(happenings, known.counted, _carbon(described))
    measured = {RUN_USAGE: usage, RUN_WORK: fold_work(happenings, known.counted)}
    return Folded(
        columns=columns,
        is_over=known.state.is_final and known.is_settled,
        facts={storable(key): as_json(value) for key, value in {**known.facts, **described.facts}.items()},
        lists=lists,
        measured={table: _storable_fields(found) for table, found in measured.items() if found is not None},
    )


def _storable_fields(found: Usage | Work) -> dict[str, Any]:
    return {name: storable(value) if isinstance(value, str) else value for name, value in asdict(found).items()}


def refold(connection: Connection, run_id: int, described: Description) -> None:
    """Write the run's state, facts, tags, notes and usage anew, as `refold_all` does."""
    refold_all(connection, {run_id: described})


def refold_all(
    connection: Connection,
    runs: Mapping[int, Description],
    journals: Mapping[int, Mapping[int, JournalStart]] | None = None,
) -> dict[int, Folded]:
    """Write the state, facts, tags, notes and usage of *runs*, computed anew from run.json and all of their events.

    Called whenever events were added or run.json changed; the order in which things were read makes no difference.
    *runs* is by row id, and the caller holds the locks of all; *journals* are all of theirs (`journal_starts`), where
    the caller knows them. Return what was written.
    """
    journals = journal_starts(connection, list(runs)) if journals is None else journals
    happenings: dict[int, list[Happening]] = {run_id: [] for run_id in runs}
    events = select(EVENT.c.run_id, EVENT.c.journal_id, EVENT.c.ordinal, EVENT.c.t_ms, EVENT.c.name, EVENT.c.details)
    events = events.where(EVENT.c.name.in_(sorted(TELLING)))
    for chunk in within(EVENT.c.run_id, list(runs)):
        for run_id, at, ordinal, t_ms, name, details in connection.execute(events.where(chunk)).all():
            happenings[run_id].append(
                Happening(
                    journal=journals[run_id][at],
                    ordinal=ordinal,
                    at=(runs[run_id].epoch_ms + t_ms) / 1000,
                    name=name,
                    details=json.loads(details),
                )
            )
    new = {at: folded(runs[at], list(journals[at].values()), happenings[at]) for at in runs}
    _write_folded(connection, new)
    return new


def journal_starts(connection: Connection, run_ids: Sequence[int]) -> dict[int, dict[int, JournalStart]]:
    """Return by run, and by the row id of the journal, who wrote each journal and since when."""
    found: dict[int, dict[int, JournalStart]] = {run_id: {} for run_id in run_ids}
    columns = (JOURNAL.c.run_id, JOURNAL.c.id, JOURNAL.c.file, JOURNAL.c.writer, JOURNAL.c.attempt, JOURNAL.c.t0)
    for chunk in within(JOURNAL.c.run_id, run_ids):
        for run_id, at, file, writer, attempt, t0 in connection.execute(select(*columns).where(chunk)):
            found[run_id][at] = JournalStart(file=file, writer=writer, attempt=attempt, t0=t0)
    return found


def _write_folded(connection: Connection, new: Mapping[int, Folded]) -> None:
    """Write rows of runs, by row id, in place of those that are there."""
    values: list[dict[str, Any]] = [{"at": run_id, **of.columns} for run_id, of in new.items()]
    if values:
        connection.execute(update(RUN).where(RUN.c.id == bindparam("at")), values)
    of_table: dict[Table, list[dict[str, Any]]] = {
        table: [] for table in (RUN_FACT, RUN_TAG, RUN_NOTE, RUN_USAGE, RUN_WORK)
    }
    for run_id, of in new.items():
        of_table[RUN_FACT] += ({"run_id": run_id, "key": key, "value": value} for key, value in of.facts.items())
        for table, found in of.lists.items():
            of_table[table] += ({**row, "run_id": run_id, "position": at} for at, row in enumerate(found))
        for table, measured in of.measured.items():
            of_table[table].append({**measured, "run_id": run_id})
    annotated = [run_id for run_id, of in new.items() if of.lists]
    for table, rows in of_table.items():
        for chunk in within(table.c.run_id, annotated if table in (RUN_TAG, RUN_NOTE) else list(new)):
            connection.execute(delete(table).where(chunk))
        insert_anywhere(connection, table, rows)


def _carbon(described: Description) -> Carbon | None:
    """Return the CO2 of the cluster's electricity from the run's configuration; None where it is not configured."""
    told = [described.setting(f"cluster.{key}") or "null" for key in ("co2_g_per_kwh", "co2_source")]
    if "null" in told:
        return None
    factor, source = map(json.loads, told)
    is_known = isinstance(factor, int | float) and not isinstance(factor, bool)
    return Carbon(g_per_kwh=float(factor), source=str(source)) if is_known else None


EventRow = tuple[int, int, int, int, str, str]  # journal_id, ordinal, run_id, t_ms, name, details
_PointRow = tuple[int, int, int, float | None]  # series_id, step, t_ms, value

_EVENT = "event (journal_id, ordinal, run_id, t_ms, name, details)"
_EVENT_WIDTH = 6
_POINT = "point (series_id, step, t_ms, value)"
_POINT_WIDTH = 4
_OVER = "ON CONFLICT (series_id, step) DO UPDATE SET t_ms = excluded.t_ms, value = excluded.value"

_INSERT_METRIC = "INSERT INTO metric (name) VALUES (?)"
_ADD_METRICS = "INSERT INTO metric (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING"

_COPY_EVENT = f"COPY {_EVENT} FROM STDIN (FORMAT BINARY)"
_EVENT_TYPES = ("int4", "int4", "int4", "int8", "text", "text")
_COPY_POINT = "COPY {} (series_id, step, t_ms, value) FROM STDIN (FORMAT BINARY)"
_POINT_TYPES = ("int4", "int8", "int8", "float8")
_LAST_STEPS = "SELECT id, (SELECT max(step) FROM point WHERE series_id = id) FROM unnest(%s::int4[]) AS id"
_MAKE_STAGE = (
    "CREATE TEMPORARY TABLE IF NOT EXISTS new_point (series_id int4, step int8, t_ms int8, value float8)"
    " ON COMMIT DELETE ROWS"
)
_FROM_STAGE = f"INSERT INTO point SELECT series_id, step, t_ms, value FROM new_point {_OVER}"  # noqa: S608


def add_metrics(connection: Connection, names: Sequence[str]) -> None:
    """Add metric names that *connection* does not see yet; on a server another process may be adding them right now.

    There it is done at once, in a transaction of its own: until a name is committed, others who need it wait, and two
    could wait for each other. A name that then stays without a point does no harm.
    """
    if not is_server(connection):
        connection.exec_driver_sql(_INSERT_METRIC, [(name,) for name in names])
        return
    with connection.engine.connect() as other, other.begin():
        other.exec_driver_sql(_ADD_METRICS, (sorted(names),))


def insert_events(connection: Connection, events: Sequence[EventRow]) -> None:
    """Add events, none of which is there yet.

    A row that is there already raises `IntegrityError`: two processes then read the same journal, which the run's lock
    prevents.
    """
    if is_server(connection):
        _copy(connection, _COPY_EVENT, _EVENT_TYPES, events)
    else:
        insert_rows(connection, _EVENT, list(chain.from_iterable(events)), _EVENT_WIDTH)


def insert_anywhere(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert *rows*, which all have the same columns, in few statements, and into a server by COPY."""
    if not rows:
        return
    columns = tuple(rows[0])
    into, values = f"{table.name} ({', '.join(columns)})", map(itemgetter(*columns), rows)
    if not is_server(connection):
        insert_rows(connection, into, list(chain.from_iterable(values)), len(columns))
        return
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
        for row in values:
            copy.write_row(row)


def write_points(connection: Connection, series: Sequence[tuple[int, Columns]]) -> None:
    """Add the points of *series*, by id, replacing those of the same series and step; none is there twice.

    A COPY cannot replace rows: on a server, points of a series that repeats steps go through a temporary table. COPY is
    used where it can be: it is PostgreSQL's fastest way in ("Populating a Database" in its manual).
    """
    if not is_server(connection):
        insert_rows(connection, _POINT, _in_rows(series), _POINT_WIDTH, over=_OVER)
        return
    points: list[_PointRow] = [
        (at, *point) for at, of in series for point in zip(of.steps, of.times_ms, _storable_values(of), strict=True)
    ]
    first: dict[int, int] = {}
    for series_id, step, *_ in points:
        first[series_id] = min(step, first.get(series_id, step))
    last = {at: step for at, step in connection.exec_driver_sql(_LAST_STEPS, (list(first),)) if step is not None}
    repeating = {at for at, step in first.items() if at in last and step <= last[at]}
    if new := [point for point in points if point[0] not in repeating]:
        _copy(connection, _COPY_POINT.format("point"), _POINT_TYPES, new)
    if repeating:  # COPY cannot write over what is there
        connection.exec_driver_sql(_MAKE_STAGE)
        again = (point for point in points if point[0] in repeating)
        _copy(connection, _COPY_POINT.format("new_point"), _POINT_TYPES, again)
        connection.exec_driver_sql(_FROM_STAGE)


def _in_rows(series: Sequence[tuple[int, Columns]]) -> list[Any]:
    """Return the values of table ``point``, one row after the other."""
    rows: list[Any] = [None] * (_POINT_WIDTH * sum(len(columns.steps) for _, columns in series))
    begin = 0
    for series_id, columns in series:
        n = len(columns.steps)
        end = begin + _POINT_WIDTH * n
        for place, column in enumerate(([series_id] * n, columns.steps, columns.times_ms, _storable_values(columns))):
            rows[begin + place : end : _POINT_WIDTH] = column
        begin = end
    return rows


def _storable_values(columns: Columns) -> Sequence[float | None]:
    if math.isfinite(sum(columns.values)):  # nearly always; no sum with nan is
        return columns.values
    return [None if math.isnan(value) else value for value in columns.values]


def _copy(connection: Connection, statement: str, types: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)


def forget_run(store: Database, uid: str) -> bool:
    """Delete all that the store has of the run *uid*; return whether there was anything.

    Its directory must be gone already: whatever still lies below the runs' folder, the next ingest brings back. Used
    where a submission is recovered. Raises `StoreError` where the store is read-only.
    """
    return forget_runs(store, [uid]) == 1


def forget_runs(store: Database, uids: Sequence[str]) -> int:
    """Delete all that the store has of the runs *uids*, each in a transaction; return how many were there.

    `hpcml rm` and `sync --forget` use it. Unknown uids are passed over. Where one fails, those before it are forgotten
    and the others left as they are. What schedulers reported of the runs goes, and names of metrics that no run has any
    more. Raises `StoreError` where the store is read-only.
    """
    if not uids:
        return 0
    with store.writing() as connection:
        found = sum(forget_rows(connection, uid) for uid in uids)
        forget_names(connection)
        return found


def forget_names(connection: Connection) -> None:
    """Delete the names of metrics, and the settings, that no run has any more, in a transaction of their own.

    A name that stayed would be offered as a key of filters.
    """
    with connection.begin():
        hold_names(connection)
        connection.execute(delete(METRIC).where(METRIC.c.id.not_in(select(SERIES.c.metric_id))))
        forget_unused(connection)


def uids_in(connection: Connection, path: Path) -> list[str]:
    """Return the uids of the runs that were read from the directory *path* (absolute) of this host."""
    with connection.begin():
        query = select(RUN.c.uid, RUN.c.home).where(RUN.c.path == storable(str(path)))
        home = home_mark_of(path)
        return [uid for uid, known in connection.execute(query) if known is None or known == home]


def forget_rows(connection: Connection, uid: str) -> bool:
    """Delete the rows of the run *uid* in a transaction of their own; return whether there were any.

    After the last of several `forget_names` is to be called.
    """
    with connection.begin():
        hold_run(connection, uid)
        connection.execute(delete(WORD).where(WORD.c.uid == uid))
        run_id = connection.execute(select(RUN.c.id).where(RUN.c.uid == uid)).scalar_one_or_none()
        if run_id is None:
            return False
        forget_journals(connection, run_id)
        forget_settings(connection, run_id)
        for table in (RUN_FACT, RUN_TAG, RUN_NOTE, RUN_USAGE, RUN_WORK):
            connection.execute(delete(table).where(table.c.run_id == run_id))
        connection.execute(delete(RUN).where(RUN.c.id == run_id))
        return True
