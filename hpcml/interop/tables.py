"""Runs as tables, the same for CSV, Parquet and any other format with tables. Pure.

``runs`` has a row for each run, ``metrics`` for each run and metric (its summary), ``points`` for each value,
``events`` for each event. Names of columns are stable; new ones may be added. The column ``uid`` joins the tables.
Times named ``t_s`` are in seconds and count from the run's ``t_zero``, which is in unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from hpcml.codec import encode
from hpcml.interop.exported import Export, WholeRun, clean, json_ready
from hpcml.model.divergence import divergence_words
from hpcml.model.records import MetricSummary, RunRecord, Usage, Work

Kind = Literal["text", "integer", "real", "boolean", "json"]
_MAPPINGS = ("params", "facts", "metrics", "usage", "work")  # of a record: a column for each key
_KIND_OF_TYPE: Mapping[str, Kind] = {
    "str": "text",
    "State": "text",
    "int": "integer",
    "float": "real",
    "bool": "boolean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and the type of its cells; a cell of kind json is JSON text."""

    name: str
    kind: Kind


_MEASURED = tuple(
    (space, field.name, _KIND_OF_TYPE[str(field.type).partition(" ")[0]])
    for space, record in (("usage", Usage), ("work", Work))
    for field in fields(record)
)
METRICS = (
    Column(name="uid", kind="text"),
    Column(name="metric", kind="text"),
    *(
        Column(name=field.name, kind=_KIND_OF_TYPE[str(field.type).partition(" ")[0]])
        for field in fields(MetricSummary)
        if field.name != "name"
    ),
)
POINTS = (
    Column(name="uid", kind="text"),
    Column(name="metric", kind="text"),
    Column(name="step", kind="integer"),
    Column(name="t_s", kind="real"),
    Column(name="value", kind="real"),
)
EVENTS = (
    Column(name="uid", kind="text"),
    Column(name="t_s", kind="real"),
    Column(name="attempt", kind="integer"),
    Column(name="writer", kind="text"),
    Column(name="name", kind="text"),
    Column(name="details", kind="json"),
)


def runs_table(export: Export) -> tuple[list[Column], Iterator[list[Any]]]:
    """Return the columns and the rows of ``runs``: fields, settings, facts, last values of metrics, usage and work.

    Settings, facts and metrics have a column for each key that any of the runs has, named ``params.KEY``, ``facts.KEY``
    and ``metrics.NAME``, sorted by name. A column whose values are of several kinds has JSON in it.
    """
    records = export.records
    plain = [field for field in fields(RunRecord) if field.name not in _MAPPINGS]
    columns = [
        Column(name=field.name, kind=_KIND_OF_TYPE.get(str(field.type).partition(" ")[0], "json")) for field in plain
    ]
    columns += [Column(name=name, kind="text") for name in ("incomplete", "diverged")]
    columns += [Column(name="t_zero", kind="real")]
    params, facts = _keys(record.params for record in records), _keys(record.facts for record in records)
    metrics = _keys(record.metrics for record in records)
    columns += [Column(name=f"params.{key}", kind=_kind(r.params.get(key) for r in records)) for key in params]
    columns += [Column(name=f"facts.{key}", kind=_kind(r.facts.get(key) for r in records)) for key in facts]
    columns += [Column(name=f"metrics.{name}", kind="real") for name in metrics]
    columns += [Column(name=f"{space}.{name}", kind=kind) for space, name, kind in _MEASURED]

    def rows() -> Iterator[list[Any]]:
        for record in records:
            values: list[Any] = [encode(getattr(record, field.name)) for field in plain]
            values += [record.incomplete, divergence_words(record), export.t_zero.get(record.uid)]
            values += [record.params.get(key) for key in params]
            values += [record.facts.get(key) for key in facts]
            values += [record.metrics[name].last if name in record.metrics else None for name in metrics]
            values += [getattr(getattr(record, space), name, None) for space, name, _ in _MEASURED]
            yield [cell(value, column.kind) for value, column in zip(values, columns, strict=True)]

    return columns, rows()


def metrics_rows(export: Export) -> Iterator[list[Any]]:
    """Return the rows of ``metrics``, in the columns of `METRICS`; the last value as it was where it is not finite."""
    for record in export.records:
        for name, summary in record.metrics.items():
            yield [record.uid, clean(name), *(getattr(summary, column.name) for column in METRICS[2:])]


def points_rows(run: WholeRun) -> Iterator[list[Any]]:
    """Return the rows of ``points`` for this run, in the columns of `POINTS`, by metric and step."""
    for name, points in run.curves.items():
        metric = clean(name)
        for point in points:
            yield [run.record.uid, metric, point.step, point.t_s, point.value]


def events_rows(run: WholeRun) -> Iterator[list[Any]]:
    """Return the rows of ``events`` for this run, in the columns of `EVENTS`, by time."""
    for event in run.events:
        details = cell(dict(event.details), "json")
        yield [run.record.uid, event.t_s, event.attempt, event.writer, clean(event.name), details]


def cell(value: Any, kind: Kind) -> Any:  # noqa: ANN401 - a value of any kind
    """Return *value* as a cell of a column of *kind*; None stays None.

    >>> cell(1, "real"), cell(["a", 1], "json")
    (1.0, '["a", 1]')
    """
    if value is None:
        return None
    if kind == "json":
        return json.dumps(json_ready(value), sort_keys=True)
    if kind == "text":
        return clean(str(value))
    return float(value) if kind == "real" else value


def _keys(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({key for mapping in mappings for key in mapping})


def _kind(values: Iterable[Any]) -> Kind:
    """Return the kind of a column of *values*; None is of no kind.

    Integers together with reals are real, other mixtures JSON; a column without values is text.
    """
    kinds: set[Kind] = {_kind_of(value) for value in values if value is not None}
    if kinds == {"integer", "real"}:
        return "real"
    if len(kinds) > 1:
        return "json"
    return next(iter(kinds), "text")


def _kind_of(value: object) -> Kind:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, float):
        return "real"
    return "text" if isinstance(value, str) else "json"
