"""What a word means of a run: the keys of conditions, columns and orders, looked up in one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from hpcml.records import RunRecord, Usage, Work

_SEVERAL = ("tags", "notes", "params", "facts", "metrics", "usage", "work")
FIELDS = tuple(field.name for field in fields(RunRecord) if field.name not in _SEVERAL)  # one value each
TAG_WORDS = ("tag", "tags")
NOTE_WORDS = ("note", "notes")
AGE = "age"  # seconds since the run was submitted, else since it started
SPACES = ("params", "metrics", "facts", "usage", "work")  # in this order; params.x means x there and nowhere else
MEASURED: Mapping[str, tuple[str, ...]] = {  # what was measured beside the run and what its program counted
    "usage": tuple(field.name for field in fields(Usage)),
    "work": tuple(field.name for field in fields(Work)),
}
SCALED: Mapping[str, tuple[str, float]] = {  # of usage, in the units that people say: (field, what it is divided by)
    "energy_kj": ("energy_j", 1e3),
    "energy_kwh": ("energy_j", 3.6e6),
    "gpu_hours": ("gpu_s", 3600.0),
    "co2_kg": ("co2_g", 1e3),
}
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


def place_of(space: str, name: str) -> tuple[str, float] | None:
    """Return the field of ``usage`` or ``work`` that *name* means, and what to divide it by; None if it means none."""
    if space == "usage" and name in SCALED:
        return SCALED[name]
    return (name, 1.0) if name in MEASURED[space] else None


def is_measured(key: str) -> bool:
    """Whether *key*, with or without its space, is a word of ``usage`` or ``work``."""
    return any(place_of(space, key.removeprefix(f"{space}.")) is not None for space in MEASURED)


def _measured(run: RunRecord, space: str, name: str) -> Any:  # noqa: ANN401
    place, record = place_of(space, name), getattr(run, space)
    value = None if place is None or record is None else getattr(record, place[0])
    return value if place is None or value is None or place[1] == 1.0 else value / place[1]


def _below(run: RunRecord, key: str) -> Any:  # noqa: ANN401
    for each in MEASURED:
        if place_of(each, field := key.removeprefix(f"{each}.")) is not None:
            return _measured(run, each, field)
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
