"""The names by which conditions, columns and sort orders refer to a value of a run, and how that value is looked up.

`hpcml runs --where "val_accuracy > 0.9"`, ``--columns`` and ``--sort`` use these keys. A key is, in this order: a field
of `RunRecord`, ``incomplete``, ``tag``, ``note`` or ``age``; a setting ("training.batch_size", or "precision" for
"precision.name"); a metric (its last value); a fact; a field of `Usage` or `Work`; a flag of the user's own program
("lr", or "args.lr" for "workload.args.lr"). A prefix ("params.", "metrics.",
"facts.", "usage.", "work.") restricts it to one of these, and "val_loss.min" is a statistic of a metric. The SQL of
hpcml/store follows the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from hpcml.model.records import RunRecord, Usage, Work

_SEVERAL = ("tags", "notes", "params", "facts", "metrics", "usage", "work")
FIELDS = tuple(field.name for field in fields(RunRecord) if field.name not in _SEVERAL)  # one value each
TAG_WORDS = ("tag", "tags")
NOTE_WORDS = ("note", "notes")
INCOMPLETE = "incomplete"  # why values may be missing, in words; as a key it means this, and not that of `Usage`
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
ARGUMENTS = "workload.args."  # of the user's own command line, by the name of the flag
# Of more digits than a float has room for, a text is a code, not a number
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,299})(\.\d+)?(e[-+]?\d{1,3})?|-?\.\d+", re.ASCII | re.IGNORECASE)
STATISTICS = ("first", "last", "min", "max", "mean", "n")  # of a metric, behind its name and a dot


def value_of(run: RunRecord, key: str, *, now: float) -> Any:  # noqa: ANN401, PLR0911 - one return for each kind
    """Return the value of *run* under *key*, or None where it has none; *now* (for ``age``) is in unix seconds.

    A metric's name means its last value, ``NAME.min`` and so on another statistic of `STATISTICS`; energy and time may
    be asked for in the units of `SCALED`.
    """
    if key in FIELDS or key == INCOMPLETE:
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
            return setting_value(name, run.params[name])
    if key in run.metrics:
        return run.metrics[key].last
    if key in run.facts:
        return run.facts[key]
    found = _below(run, key)
    if found is not None or is_measured(key):
        return found
    return setting_value(flag := flag_setting(key), run.params.get(flag))


def flag_setting(key: str) -> str:
    """Return the setting of a flag of the user's own program, which *key* names as it was typed, or as args.NAME.

    >>> flag_setting("lr"), flag_setting("args.lr")
    ('workload.args.lr', 'workload.args.lr')
    """
    return f"{ARGUMENTS}{key.removeprefix('args.')}"


def setting_value(key: str, value: Any) -> Any:  # noqa: ANN401 - as the record has it
    """Return the *value* of the setting *key*: a number that was typed for a flag of the user's program as a number.

    They are recorded as they were typed: 1e-3 and 0.001 are one.

    >>> setting_value("workload.args.lr", "1e-3"), setting_value("workload.args.n", "8"), setting_value("name", "8")
    (0.001, 8, '8')
    """
    if not key.startswith(ARGUMENTS) or not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return int(value) if value.removeprefix("-").isdecimal() else float(value)


def place_of(space: str, name: str) -> tuple[str, float] | None:
    """Return the field of ``usage`` or ``work`` that *name* refers to, and its divisor; None where it refers to none.

    >>> place_of("usage", "energy_kwh")
    ('energy_j', 3600000.0)
    """
    if space == "usage" and name in SCALED:
        return SCALED[name]
    return (name, 1.0) if name in MEASURED[space] else None


def is_measured(key: str) -> bool:
    """Tell whether *key*, with or without its prefix, is a field of ``usage`` or ``work``."""
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
        return setting_value(rest, run.params.get(rest, run.params.get(f"{rest}.name")))
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
    """Return the time of submission, or else the start of the run, in unix seconds; None where neither is known.

    *submitted_at* is ISO 8601; without an offset it is read as UTC. Where it cannot be read, *t_start* counts.
    """
    at = None if submitted_at is None else unix_time(submitted_at)
    return t_start if at is None else at


def unix_time(moment: str) -> float | None:
    """Return the unix seconds of a time in ISO 8601, in UTC unless it says another offset; None where it is none.

    >>> unix_time("1970-01-02T00:00:00")
    86400.0
    """
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
