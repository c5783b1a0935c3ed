"""What a word means of a run: the keys of conditions, columns and orders, looked up in one record."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from hpcml.records import RunRecord

_SEVERAL = ("tags", "notes", "params", "facts", "metrics")
FIELDS = tuple(field.name for field in fields(RunRecord) if field.name not in _SEVERAL)  # one value each
TAG_WORDS = ("tag", "tags")
NOTE_WORDS = ("note", "notes")
AGE = "age"  # seconds since the run was submitted, else since it started
SPACES = ("params", "metrics", "facts")  # in this order; params.x means x there and nowhere else
STATISTICS = ("first", "last", "min", "max", "mean", "n")  # of a metric, behind its name and a dot


def value_of(run: RunRecord, key: str, *, now: float) -> Any:  # noqa: ANN401, PLR0911 - one return for each kind
    """Return what *run* has under *key*, None where it has no such thing; *now* is in unix seconds."""
    if key in FIELDS:
        return getattr(run, key)
    if key in TAG_WORDS:
        return list(run.tags)
    if key in NOTE_WORDS:
        return [note.text for note in run.notes]
    if key == AGE:
        begun = begun_at(run.submitted_at, run.t_start)
        return None if begun is None else now - begun
    for name in (key, f"{key}.name"):
        if name in run.params:
            return run.params[name]
    if key in run.metrics:
        return run.metrics[key].last
    if key in run.facts:
        return run.facts[key]
    return _below(run, key)


def _below(run: RunRecord, key: str) -> Any:  # noqa: ANN401
    space, _, rest = key.partition(".")
    name, _, statistic = key.rpartition(".")
    if space == "params" and (rest in run.params or f"{rest}.name" in run.params):
        return run.params.get(rest, run.params.get(f"{rest}.name"))
    if space == "facts" and rest in run.facts:
        return run.facts[rest]
    if space == "metrics":
        if rest in run.metrics:
            return run.metrics[rest].last
        name = name.partition(".")[2]
    if statistic in STATISTICS and name in run.metrics:
        return getattr(run.metrics[name], statistic)
    return None


def begun_at(submitted_at: str | None, t_start: float | None) -> float | None:
    """Return when a run was submitted, else when it started, in unix seconds."""
    if submitted_at is None:
        return t_start
    try:
        moment = datetime.fromisoformat(submitted_at)
    except ValueError:
        return t_start
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
