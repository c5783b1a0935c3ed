"""Writing runs into the tables and taking them out, many at a time, in the caller's transaction.

In a file nobody else writes meanwhile. On a server the upsert of a run locks its row until the transaction ends, and
runs are always written in the order of their uids, so that two writers never wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, insert, or_, select, update

from hpcml.store.curves import Columns, Tally
from hpcml.store.database import Database, chunked
from hpcml.store.journals import MANIFEST
from hpcml.store.manifest_rows import Settings
from hpcml.store.parse import storable
from hpcml.store.run_reader import (
    TELLING,
    Earlier,
    FileRead,
    RunRows,
    StoredRun,
    happenings_of,
    point_rows,
    starts_of,
    summary_row,
)
from hpcml.store.schema import EVENT, METRIC, POINT, RUN, SAMPLE, SETTINGS

_POINTS_AT_ONCE = 20_000
_TALLY = [column for column in METRIC.c if column.name in Tally.__dataclass_fields__]


def is_server(connection: Connection) -> bool:
    """Whether the database is a server, on which others may write at the same time."""
    return connection.dialect.name == "postgresql"


def known_runs(connection: Connection, uids: Collection[str], *, to_write: bool = False) -> dict[str, StoredRun]:
    """Return by uid what the store has of these runs; *to_write* keeps others from changing it."""
    columns = [
        RUN.c["id"].label("run_id"),
        *(RUN.c[name] for name in StoredRun.__dataclass_fields__ if name != "run_id"),
    ]
    found: dict[str, StoredRun] = {}
    for chunk in chunked(sorted(uids)):
        query = select(*columns).where(RUN.c.uid.in_(chunk)).order_by(RUN.c.uid)
        rows = connection.execute(query.with_for_update() if to_write else query).mappings()
        found |= {row["uid"]: StoredRun(**row) for row in rows}
    return found


def earlier_of(connection: Connection, known: StoredRun) -> Earlier:
    """Return what a reading of more of the run depends on."""
    files = {name: FileRead(**file) for name, file in known.files.items() if name != MANIFEST}
    columns = (EVENT.c.file, EVENT.c.ordinal, EVENT.c.t_ms, EVENT.c.name, EVENT.c.details)
    events = connection.execute(
        select(*columns).where(EVENT.c.run_id == known.run_id, EVENT.c.name.in_(sorted(TELLING)))
    )
    tallies = connection.execute(select(METRIC.c.name, *_TALLY).where(METRIC.c.run_id == known.run_id))
    return Earlier(
        happenings=happenings_of(map(dict, events.mappings()), starts_of(files), known.epoch_ms),
        tallies={
            name: Tally(**{column.name: number for column, number in zip(_TALLY, numbers, strict=True)})
            for name, *numbers in tallies
        },
    )


def write_runs(connection: Connection, rows: Sequence[RunRows]) -> None:
    """Write runs; of those that grow, which the caller has locked as they were read, only what is new."""
    rows = sorted(rows, key=lambda one: one.uid)
    ids = _setting_ids(connection, [settings for one in rows for settings in one.settings])
    runs = [{**one.run, "settings": sorted({ids[settings.digest] for settings in one.settings})} for one in rows]
    _forget_former(connection, runs)
    if not runs:
        return
    upsert = _insert_of(connection)(RUN)
    new = {name: upsert.excluded[name] for name in runs[0] if name != "uid"}
    connection.execute(upsert.on_conflict_do_update(index_elements=[RUN.c.uid], set_=new), runs)
    run_ids = {uid: known.run_id for uid, known in known_runs(connection, [one.uid for one in rows]).items()}
    _clear(connection, [run_ids[one.uid] for one in rows if one.grows is None])
    _write_metrics(connection, [(run_ids[one.uid], one) for one in rows])
    events = [{**event, "run_id": run_ids[one.uid]} for one in rows for event in one.events]
    if events:
        connection.execute(insert(EVENT), events)
    _write_samples(connection, [(run_ids[one.uid], one) for one in rows])


def _insert_of(connection: Connection) -> Callable[[Table], Any]:
    """Return the `insert` of the database's own dialect, which knows ON CONFLICT."""
    if is_server(connection):
        from sqlalchemy.dialects.postgresql import insert as into_postgres  # noqa: PLC0415 - only for who uses it

        return into_postgres
    from sqlalchemy.dialects.sqlite import insert as into_sqlite  # noqa: PLC0415 - as above

    return into_sqlite


def _setting_ids(connection: Connection, wanted: Iterable[Settings]) -> dict[str, int]:
    """Return the ids of settings by digest, adding those that are not there; none is ever taken away."""
    contents = {settings.digest: settings.content for settings in wanted}
    found = _known_settings(connection, contents)
    if missing := sorted(contents.keys() - found.keys()):  # in one order, so that two writers never wait for each other
        new = [{"digest": digest, "content": contents[digest]} for digest in missing]
        connection.execute(_insert_of(connection)(SETTINGS).on_conflict_do_nothing(), new)
        found |= _known_settings(connection, missing)
    return found


def _known_settings(connection: Connection, digests: Collection[str]) -> dict[str, int]:
    query = select(SETTINGS.c.digest, SETTINGS.c.id)
    return {
        digest: at
        for chunk in chunked(sorted(digests))
        for digest, at in connection.execute(query.where(SETTINGS.c.digest.in_(chunk)))
    }


def _forget_former(connection: Connection, runs: Sequence[Mapping[str, Any]]) -> None:
    """Forget what was read from the directories of *runs* when their run.json said that they are other runs."""
    by_path = {run["path"]: run for run in runs}
    former: list[int] = []
    for chunk in chunked(list(by_path)):
        for run_id, uid, path, home in connection.execute(
            select(RUN.c.id, RUN.c.uid, RUN.c.path, RUN.c.home).where(RUN.c.path.in_(chunk))
        ):
            if uid != by_path[path]["uid"] and home in (None, by_path[path]["home"]):
                former.append(run_id)
    _forget_ids(connection, former)


def _write_metrics(connection: Connection, rows: Sequence[tuple[int, RunRows]]) -> None:
    new = []
    for run_id, one in rows:
        for name, (tally, columns) in one.metrics.items():
            if one.grows is not None and tally.n > len(columns.steps):
                _extend_metric(connection, run_id, name, tally, columns)
            else:
                new.append({"run_id": run_id, "name": name, **summary_row(tally, columns)})
    if not new:
        return
    connection.execute(insert(METRIC), new)
    ids: dict[tuple[int, str], int] = {}
    for chunk in chunked([run_id for run_id, _ in rows]):
        query = select(METRIC.c.run_id, METRIC.c.name, METRIC.c.id).where(METRIC.c.run_id.in_(chunk))
        ids |= {(run_id, name): at for run_id, name, at in connection.execute(query)}
    written = {(row["run_id"], row["name"]) for row in new}
    _write_points(
        connection,
        [
            (ids[run_id, name], columns)
            for run_id, one in rows
            for name, (_, columns) in one.metrics.items()
            if (run_id, name) in written
        ],
    )


def _extend_metric(connection: Connection, run_id: int, name: str, tally: Tally, new: Columns) -> None:
    """Add points behind all others of a metric, and write its summary anew."""
    is_it = and_(METRIC.c.run_id == run_id, METRIC.c.name == name)
    metric_id = connection.execute(select(METRIC.c.id).where(is_it)).scalar_one()
    _write_points(connection, [(metric_id, new)])
    columns = load_columns(connection, [metric_id])[metric_id] if tally.n_nonfinite else new
    connection.execute(update(METRIC).where(METRIC.c.id == metric_id).values(**summary_row(tally, columns)))


def load_columns(connection: Connection, metric_ids: Sequence[int]) -> dict[int, Columns]:
    """Return the points of these metrics by step; a value that is not known is nan."""
    found: dict[int, tuple[list[int], list[int], list[float]]] = {metric_id: ([], [], []) for metric_id in metric_ids}
    for chunk in chunked(metric_ids):
        query = select(POINT).where(POINT.c.metric_id.in_(chunk)).order_by(POINT.c.metric_id, POINT.c.step)
        for metric_id, step, t_ms, value in connection.execute(query):
            steps, times_ms, values = found[metric_id]
            steps.append(step)
            times_ms.append(t_ms)
            values.append(math.nan if value is None else value)
    return {metric_id: Columns(*columns) for metric_id, columns in found.items()}


def _write_points(connection: Connection, curves: Iterable[tuple[int, Columns]]) -> None:
    rows: list[dict[str, Any]] = []
    for metric_id, columns in curves:
        for row in point_rows(metric_id, columns):
            rows.append(row)
            if len(rows) >= _POINTS_AT_ONCE:
                connection.execute(insert(POINT), rows)
                rows = []
    if rows:
        connection.execute(insert(POINT), rows)


def _write_samples(connection: Connection, rows: Sequence[tuple[int, RunRows]]) -> None:
    """Write spans of telemetry; of a run that grows, those that were open before give way to what became of them."""
    new: list[dict[str, Any]] = []
    for run_id, one in rows:
        for file, buckets in one.samples.items():
            about = one.files[f"telemetry/{file}"]
            who = {"run_id": run_id, "file": file, "attempt": about.attempt, "node": about.node, "host": about.host}
            first: dict[str, int] = {}
            for bucket in buckets:
                first[bucket.device] = min(bucket.t_ms, first.get(bucket.device, bucket.t_ms))
                uuid = None if bucket.uuid is None else storable(bucket.uuid)
                new.append({**who, "device": bucket.device, "uuid": uuid, "t_ms": bucket.t_ms, **bucket.values})
            for device, t_ms in first.items() if one.grows is not None else ():
                of_device = and_(SAMPLE.c.run_id == run_id, SAMPLE.c.file == file, SAMPLE.c.device == device)
                connection.execute(delete(SAMPLE).where(of_device, SAMPLE.c.t_ms >= t_ms))
    if new:
        connection.execute(insert(SAMPLE), new)


def forget_run(store: Database, uid: str) -> bool:
    """Delete all that the store has of the run *uid*; return whether there was anything.

    Its directory must be gone already: whatever still lies below the runs' folder, the next ingest brings back. Used
    where a submission is recovered. Raises `StoreError` where the store is read-only.
    """
    return forget_runs(store, [uid]) == 1


def forget_runs(store: Database, uids: Sequence[str]) -> int:
    """Delete all that the store has of the runs *uids*; return how many were there.

    `hpcml rm` and `sync --forget` use it. Unknown uids are passed over. Raises `StoreError` where the store is
    read-only.
    """
    if not uids:
        return 0
    with store.writing() as connection:
        known = known_runs(connection, uids, to_write=True)
        _forget_ids(connection, [one.run_id for one in known.values()])
        return len(known)


def forget_path(connection: Connection, path: str, home: str | None) -> int:
    """Delete all that was read from the directory *path* (absolute) of this host; return how many runs that were."""
    of_home = or_(RUN.c.home.is_(None), RUN.c.home == home)
    ids = connection.execute(select(RUN.c.id).where(RUN.c.path == path, of_home)).scalars().all()
    _forget_ids(connection, ids)
    return len(ids)


def _forget_ids(connection: Connection, run_ids: Sequence[int]) -> None:
    _clear(connection, run_ids)
    for chunk in chunked(run_ids):
        connection.execute(delete(RUN).where(RUN.c.id.in_(chunk)))


def _clear(connection: Connection, run_ids: Sequence[int]) -> None:
    """Delete the rows that belong to the runs, which stay."""
    for chunk in chunked(run_ids):
        metrics = select(METRIC.c.id).where(METRIC.c.run_id.in_(chunk))
        connection.execute(delete(POINT).where(POINT.c.metric_id.in_(metrics)))
        for table in (METRIC, EVENT, SAMPLE):
            connection.execute(delete(table).where(table.c.run_id.in_(chunk)))
