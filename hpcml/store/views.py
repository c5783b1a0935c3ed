"""The views for users' SQL (`hpcml query`): names and columns stay the same, however the tables change.

Columns may be added, never taken away.

A run is named by its uid in all of them. Times `t_s` are seconds since the run's start; yes and no are 1 and 0.
docs/store.md lists the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from hpcml.store.schema import BUCKET, RUN_USAGE, RUN_WORK

_RUNS = (
    *("uid", "experiment", "name", "state", "is_settled", "cause", "reason", "exit_code", "attempt", "seed"),
    *("precision", "precision_effective", "numerics", "scheduler", "job_id", "array_index", "job_name", "job_cluster"),
    *("submission", "submitted_at", "t_start", "t_end", "wall_s", "spec_hash", "git_commit", "git_dirty", "path"),
)
_FLAGS = ("is_settled", "git_dirty", "energy_disagrees")
_USAGE = tuple(column.name for column in RUN_USAGE.c if column.name != "run_id")
_WORK = tuple(column.name for column in RUN_WORK.c if column.name != "run_id")
_SPAN = tuple(column.name for column in BUCKET.c if column.name not in ("device_id", "t_ms"))
_JSON_TEXT = {
    "sqlite": "CASE WHEN substr({0}, 1, 1) = '\"' AND json_valid({0}) THEN json_extract({0}, '$')"
    " WHEN {0} <> 'null' THEN {0} END",
    # What PostgreSQL cannot have as text, NUL and half of a pair of surrogates, stays as JSON writes it. A backslash
    # that is one is taken out before that is looked for.
    "postgresql": r"""CASE WHEN left({0}, 1) = '"' AND position('\u0000' in replace({0}, '\\', '')) = 0
        AND regexp_replace(replace({0}, '\\', ''), '\\ud[89ab][0-9a-f]{{2}}\\ud[c-f][0-9a-f]{{2}}', '', 'g')
        !~ '\\ud[89a-f]' THEN {0}::json #>> '{{}}' WHEN {0} <> 'null' THEN {0} END""",
}
_JSON_NUMBER = {
    "sqlite": "CASE WHEN json_valid({0}) AND json_type({0}) IN ('integer', 'real') THEN CAST({0} AS REAL) END",
    "postgresql": r"""CASE WHEN length({0}) < 300 AND {0} ~ '^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{{1,2}})?$'
        THEN {0}::double precision END""",
}
# view -> (what it has a row for, its columns, the query)
VIEWS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "runs": ("run", _RUNS, "SELECT {columns} FROM run"),
    "params": (
        "setting of a run",
        ("uid", "key", "value", "number"),
        """SELECT run.uid, p.key, {text_of_value}, {number_of_value} FROM run_settings r
            JOIN setting p ON p.settings_id = r.settings_id JOIN run ON run.id = r.run_id""",
    ),
    "facts": (
        "fact of a run",
        ("uid", "key", "value", "number"),
        "SELECT run.uid, p.key, {text_of_value}, {number_of_value} FROM run_fact p JOIN run ON run.id = p.run_id",
    ),
    "tags": ("tag of a run", ("uid", "tag"), "SELECT run.uid, t.tag FROM run_tag t JOIN run ON run.id = t.run_id"),
    "notes": (
        "note on a run",
        ("uid", "at", "author", "text"),
        "SELECT run.uid, n.at, n.author, n.text FROM run_note n JOIN run ON run.id = n.run_id",
    ),
    # A sum beyond the largest float has no mean.
    "metrics": (
        "metric of a run",
        (
            "uid",
            "metric",
            "n",
            "n_nonfinite",
            "first",
            "last",
            "last_step",
            "min",
            "min_step",
            "max",
            "max_step",
            "mean",
        ),
        """SELECT run.uid, metric.name, s.n, s.n_nonfinite, s.first, s.last, s.last_step, s.min, s.min_step, s.max,
            s.max_step,
            CASE WHEN abs(s.total) <= 1.7976931348623157e308 THEN s.total / NULLIF(s.n - s.n_nonfinite, 0) END
            FROM summary s JOIN run ON run.id = s.run_id JOIN metric ON metric.id = s.metric_id""",
    ),
    # Where several journals have a step of a metric, the one counts that stands highest among the run's. What attempts
    # did from the first step of a later one on does not count.
    "points": (
        "value of a metric",
        ("uid", "metric", "step", "t_s", "value"),
        """SELECT run.uid, metric.name, p.step, (p.t_ms - run.clock_ms) / CAST(1000 AS DOUBLE PRECISION), p.value
            FROM series s JOIN run ON run.id = s.run_id JOIN metric ON metric.id = s.metric_id
            JOIN journal j ON j.id = s.journal_id JOIN point p ON p.series_id = s.id
            WHERE NOT EXISTS (
              SELECT 1 FROM series s2 JOIN journal j2 ON j2.id = s2.journal_id JOIN point p2 ON p2.series_id = s2.id
              WHERE s2.run_id = s.run_id AND s2.metric_id = s.metric_id AND j2.rank > j.rank AND p2.step = p.step)
            AND NOT EXISTS (
              SELECT 1 FROM series s2 JOIN journal j2 ON j2.id = s2.journal_id JOIN point p2 ON p2.series_id = s2.id
              WHERE s2.run_id = s.run_id AND s2.metric_id = s.metric_id AND p2.step < p.step
              AND j2.attempt > j.attempt)""",
    ),
    "usage": (
        "run that was measured",
        ("uid", *_USAGE),
        "SELECT run.uid, {usage} FROM run_usage u JOIN run ON run.id = u.run_id",
    ),
    "work": (
        "run whose program counted",
        ("uid", *_WORK),
        "SELECT run.uid, {work} FROM run_work w JOIN run ON run.id = w.run_id",
    ),
    "timelines": (
        "about ten seconds of a GPU or a node",
        ("uid", "attempt", "node", "host", "device", "uuid", "t_s", *_SPAN),
        """SELECT run.uid, s.attempt, s.node, s.host, d.name, d.uuid,
            (b.t_ms - run.clock_ms) / CAST(1000 AS DOUBLE PRECISION), {span}
            FROM bucket b JOIN device d ON d.id = b.device_id JOIN sampler s ON s.id = d.sampler_id
            JOIN run ON run.id = s.run_id""",
    ),
    "events": (
        "event",
        ("uid", "t_s", "attempt", "writer", "name", "details"),
        """SELECT run.uid, (e.t_ms - run.clock_ms) / CAST(1000 AS DOUBLE PRECISION), j.attempt, j.writer, e.name,
            e.details FROM event e JOIN run ON run.id = e.run_id JOIN journal j ON j.id = e.journal_id""",
    ),
    "journals": (
        "journal of a run",
        ("uid", "file", "attempt", "writer", "host", "t0", "bytes", "events", "bad_lines", "lost_records"),
        """SELECT run.uid, j.file, j.attempt, j.writer, j.host, j.t0, j.byte_offset, j.events, j.bad_lines,
            j.lost_records FROM journal j JOIN run ON run.id = j.run_id""",
    ),
    "samplers": (
        "file of telemetry of a run",
        ("uid", "file", "attempt", "node", "host", "t0", "bytes", "bad_lines"),
        """SELECT run.uid, s.file, s.attempt, s.node, s.host, s.t0, s.byte_offset, s.bad_lines
            FROM sampler s JOIN run ON run.id = s.run_id""",
    ),
}


def create_views(connection: Connection) -> None:
    """Create the views in the SQL dialect of the connection's database.

    None of them may be there.
    """
    kind = connection.dialect.name
    words = {
        # numbers, as SQLite has them: the same question then has the same answer everywhere
        "{columns}": _columns(_RUNS, "run"),
        "{usage}": _columns(_USAGE, "u"),
        "{work}": _columns(_WORK, "w"),
        "{span}": _columns(_SPAN, "b"),
        "{text_of_value}": _JSON_TEXT[kind].format("p.value"),
        "{number_of_value}": _JSON_NUMBER[kind].format("p.value"),
    }
    for name, (_, columns, query) in VIEWS.items():
        for word, meaning in words.items():
            query = query.replace(word, meaning)  # noqa: PLW2901 - the same query, in other words
        # psycopg takes a % for the beginning of a parameter only where there are parameters
        connection.exec_driver_sql(f"CREATE VIEW {name} ({', '.join(columns)}) AS {query}")


def _columns(names: Sequence[str], table: str) -> str:
    each = [f"{table}.{name}" for name in names]
    return ", ".join(
        f"CASE WHEN {column} THEN 1 WHEN NOT {column} THEN 0 END" if name in _FLAGS else column
        for name, column in zip(names, each, strict=True)
    )
