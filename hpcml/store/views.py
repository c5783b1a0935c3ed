"""The views for users' SQL (`hpcml query`): names and columns stay the same, however the tables change.

Columns may be added, never taken away.

A run is named by its uid in all of them. Times `t_s` are seconds since the run's start; yes and no are 1 and 0.
docs/store.md lists the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from sqlalchemy import Connection

from hpcml.model.records import Usage, Work
from hpcml.store.schema import RUN, SPAN_COLUMNS

_RUNS = (
    *("uid", "experiment", "name", "state", "is_settled", "cause", "reason", "exit_code", "attempt", "seed"),
    *("precision", "precision_effective", "numerics", "scheduler", "job_id", "array_index", "job_name", "job_cluster"),
    *("submission", "submitted_at", "t_start", "t_end", "wall_s", "spec_hash", "git_commit", "git_dirty", "path"),
)
_METRIC = ("n", "n_nonfinite", "first", "last", "last_step", "min", "min_step", "max", "max_step")
_USAGE, _WORK = (tuple(field.name for field in fields(kind)) for kind in (Usage, Work))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Json:
    """How a database speaks of JSON: the members of an object, those of a list, and values."""

    members: str  # rows p (key, value)
    items: str  # rows p (value)
    text: str  # of p.value: what is no text stays as JSON has it
    number: str  # of p.value, NULL where it is none
    id: str  # p.value as a whole number
    member: Mapping[str, str]  # of p.value, by its type


_SQLITE = _Json(
    members="json_each({0})",
    items="json_each({0})",
    text="CASE p.type WHEN 'null' THEN NULL WHEN 'true' THEN 'true' WHEN 'false' THEN 'false'"
    " ELSE CAST(p.value AS TEXT) END",
    number="CASE WHEN p.type IN ('integer', 'real') THEN CAST(p.value AS REAL) END",
    id="p.value",
    member=dict.fromkeys(("int", "float", "str", "bool"), "json_extract({0}, '$.{1}')"),
)
_POSTGRES = _Json(
    members="json_each({0})",
    items="json_array_elements({0}) AS p(value)",
    text="p.value #>> '{{}}'",
    number="CASE WHEN json_typeof(p.value) = 'number' AND length(p.value::text) < 300"
    " THEN (p.value #>> '{{}}')::double precision END",
    id="(p.value #>> '{{}}')::int",
    member={
        "int": "({0} ->> '{1}')::bigint",
        "float": "({0} ->> '{1}')::double precision",
        "str": "({0} ->> '{1}')",
        "bool": "({0} ->> '{1}')::boolean::int",
    },
)
_OF_JSON = {"sqlite": _SQLITE, "postgresql": _POSTGRES}

# view -> (what it has a row for, its columns, the query); a word in braces is what `_words` returns
VIEWS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "runs": ("run", _RUNS, "SELECT {runs} FROM run"),
    "params": (
        "setting of a run",
        ("uid", "key", "value", "number"),
        (
            "SELECT s.uid, p.key, {text}, {number}"
            " FROM (SELECT run.uid, {id} AS settings_id FROM run CROSS JOIN {settings}) s"
            " JOIN settings ON settings.id = s.settings_id CROSS JOIN {content}"
        ),
    ),
    "facts": (
        "fact of a run",
        ("uid", "key", "value", "number"),
        "SELECT run.uid, p.key, {text}, {number} FROM run CROSS JOIN {facts}",
    ),
    "tags": ("tag of a run", ("uid", "tag"), "SELECT run.uid, {text} FROM run CROSS JOIN {tags}"),
    "notes": ("note on a run", ("uid", "at", "author", "text"), "SELECT run.uid, {note} FROM run CROSS JOIN {notes}"),
    # A sum beyond the largest float has no mean.
    "metrics": (
        "metric of a run",
        ("uid", "metric", *_METRIC, "mean"),
        (
            "SELECT run.uid, metric.name, {metric},"
            " CASE WHEN abs(metric.total) <= 1.7976931348623157e308"
            " THEN metric.total / NULLIF(metric.n - metric.n_nonfinite, 0) END"
            " FROM metric JOIN run ON run.id = metric.run_id"
        ),
    ),
    "points": (
        "value of a metric",
        ("uid", "metric", "step", "t_s", "value"),
        (
            "SELECT run.uid, metric.name, point.step, {t_s}, point.value"
            " FROM point JOIN metric ON metric.id = point.metric_id JOIN run ON run.id = metric.run_id"
        ),
    ),
    "usage": ("run that was measured", ("uid", *_USAGE), "SELECT run.uid, {usage} FROM run WHERE usage IS NOT NULL"),
    "work": ("run whose program counted", ("uid", *_WORK), "SELECT run.uid, {work} FROM run WHERE work IS NOT NULL"),
    "timelines": (
        "about ten seconds of a GPU or a node",
        ("uid", "attempt", "node", "host", "device", "uuid", "t_s", *SPAN_COLUMNS),
        (
            "SELECT run.uid, sample.attempt, sample.node, sample.host, sample.device, sample.uuid, {t_s}, {sample}"
            " FROM sample JOIN run ON run.id = sample.run_id"
        ),
    ),
    "events": (
        "event",
        ("uid", "t_s", "attempt", "writer", "name", "details"),
        (
            "SELECT run.uid, {t_s}, event.attempt, event.writer, event.name, CAST(event.details AS TEXT)"
            " FROM event JOIN run ON run.id = event.run_id"
        ),
    ),
}


def create_views(connection: Connection) -> None:
    """Create the views in the SQL dialect of the connection's database.

    None of them may be there.
    """
    words = _words(_OF_JSON[connection.dialect.name])
    for name, (_, columns, query) in VIEWS.items():
        table = next((table for table in ("point", "sample", "event") if f"FROM {table} " in query), "")
        t_s = f"({table}.t_ms - run.clock_ms) / CAST(1000 AS DOUBLE PRECISION)"
        for word, meaning in {**words, "t_s": t_s}.items():
            query = query.replace(f"{{{word}}}", meaning)  # noqa: PLW2901 - the same query, in other words
        # psycopg takes a % for the beginning of a parameter only where there are parameters
        connection.exec_driver_sql(f"CREATE VIEW {name} ({', '.join(columns)}) AS {query}")


def _words(json: _Json) -> dict[str, str]:
    lists = ("settings", "tags", "notes")
    note = {"at": "float", "author": "str", "text": "str"}
    return {
        "runs": ", ".join(map(_column, _RUNS)),
        "metric": ", ".join(f"metric.{name}" for name in _METRIC),
        "sample": ", ".join(f"sample.{name}" for name in SPAN_COLUMNS),
        "text": json.text.format(),
        "number": json.number.format(),
        "id": json.id.format(),
        "content": json.members.format("settings.content") + " p",
        "facts": json.members.format("run.facts") + " p",
        **{name: f"{json.items.format(f'run.{name}')}{'' if ' AS p' in json.items else ' p'}" for name in lists},
        "note": ", ".join(json.member[kind].format("p.value", name) for name, kind in note.items()),
        "usage": _members(json, "usage", Usage),
        "work": _members(json, "work", Work),
    }


def _members(json: _Json, column: str, record: type[Usage | Work]) -> str:
    kinds = {field.name: str(field.type).partition(" ")[0] for field in fields(record)}
    return ", ".join(json.member[kind].format(f"run.{column}", name) for name, kind in kinds.items())


def _column(name: str) -> str:
    """Return a column of table `run`; yes and no as numbers, so that the same question has the same answer anywhere."""
    is_flag = RUN.c[name].type.python_type is bool
    return f"CASE WHEN run.{name} THEN 1 WHEN NOT run.{name} THEN 0 END" if is_flag else f"run.{name}"
