"""Many rows at once, by the fastest way that each database has; inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from hpcml.store.locks import WRITE, is_server

EventRow = tuple[int, int, int, int, str, str]  # journal_id, ordinal, run_id, t_ms, name, details
PointRow = tuple[int, int, int, float | None]  # series_id, step, t_ms, value

# As text and tuples: several times faster than insert() with dicts.
_INSERT_EVENT = "INSERT INTO event (journal_id, ordinal, run_id, t_ms, name, details) VALUES (?, ?, ?, ?, ?, ?)"
_OVER = "ON CONFLICT (series_id, step) DO UPDATE SET t_ms = excluded.t_ms, value = excluded.value"
_UPSERT_POINT = f"INSERT INTO point (series_id, step, t_ms, value) VALUES (?, ?, ?, ?) {_OVER}"  # noqa: S608

_INSERT_METRIC = "INSERT INTO metric (name) VALUES (?)"
_ADD_METRICS = "INSERT INTO metric (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING"

_COPY_EVENT = "COPY event (journal_id, ordinal, run_id, t_ms, name, details) FROM STDIN (FORMAT BINARY)"
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
    """Add *names* that *connection* does not see yet; on a server somebody else may be adding them right now.

    There it is done at once, and for itself: until a name is committed, others who need it wait, and two could wait for
    each other. A name that then stays without a point does no harm.
    """
    if not is_server(connection):
        connection.exec_driver_sql(_INSERT_METRIC, [(name,) for name in names])
        return
    at_once = connection.engine.execution_options(**{WRITE: False})  # the caller keeps the schema already
    with at_once.connect() as other, other.begin():
        other.exec_driver_sql(_ADD_METRICS, (sorted(names),))


def insert_events(connection: Connection, events: Sequence[EventRow]) -> None:
    """Add events that are not there yet."""
    if is_server(connection):
        _copy(connection, _COPY_EVENT, _EVENT_TYPES, events)
    else:
        connection.exec_driver_sql(_INSERT_EVENT, list(events))


def write_points(connection: Connection, points: Sequence[PointRow]) -> None:
    """Add points, over those of the same series and step; *points* names none twice."""
    if not is_server(connection):
        connection.exec_driver_sql(_UPSERT_POINT, list(points))
        return
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


def _copy(connection: Connection, statement: str, types: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)
