"""The keys by which people refer to values of runs: which there are, what is loaded for one, and why one finds nothing.

A key is what `hpcml.model.record_keys.value_of` takes: a column, a setting, a metric, a fact, a measured value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from hpcml.errors import StoreError
from hpcml.model.record_keys import (
    AGE,
    ARGUMENTS,
    FIELDS,
    INCOMPLETE,
    MEASURED,
    NOTE_WORDS,
    SCALED,
    SPACES,
    STATISTICS,
    TAG_WORDS,
    flag_setting,
    is_measured,
    setting_value,
    value_of,
)
from hpcml.model.records import RunRecord
from hpcml.spelling import did_you_mean
from hpcml.store.database import Database, chunked
from hpcml.store.loading import Parts, load_runs
from hpcml.store.schema import METRIC, RUN, SETTINGS
from hpcml.store.where import MOMENTS, Condition, Every, Filter, is_missing, meets

# What tables call a key: headings of `hpcml runs` and `hpcml status`
_HEADED: Mapping[str, str] = {"run": "uid", "wall": "wall_s", "job": "job_id", "why": "reason"}
_COLUMNS = frozenset((*FIELDS, INCOMPLETE, AGE, *TAG_WORDS, *NOTE_WORDS))
_LISTED = 5  # values; of more only those that are like the one asked for


def parts_of(keys: Collection[str]) -> Parts:
    """Return what is to be loaded of runs for their values under *keys*."""
    names = {key.removeprefix(f"{space}.") for key in keys for space in ("", *SPACES)} | set(keys)
    documents = {"tags"} if names & {*TAG_WORDS} else set()
    documents |= {"notes"} if names & {*NOTE_WORDS} else set()
    documents |= set(MEASURED) if any(map(is_measured, keys)) else set()
    settings = {setting for name in names for setting in (name, f"{name}.name", flag_setting(name))}
    return Parts(settings=sorted(settings), facts=sorted(names - _COLUMNS), documents=documents)


def plain_value(run: RunRecord, key: str, *, now: float) -> Any:  # noqa: ANN401 - as the record has it
    """Return the value of *run* under *key*; the name of a state, not the state itself."""
    value = value_of(run, key, now=now)
    return str(value) if key == "state" else value


def check_known(connection: Connection, keys: Collection[str]) -> None:
    """Raise `StoreError` where no run of the store ever had anything under one of *keys*; it names similar keys.

    An empty store knows no metric yet, and no key is wrong.
    """
    wanted = [key for key in keys if key not in _COLUMNS and not is_measured(key)]
    if not wanted or connection.execute(select(RUN.c.id).limit(1)).first() is None:
        return
    settings, metrics = known_settings(connection), _known_metrics(connection)
    facts: set[str] | None = None
    for key in wanted:
        space, _, rest = key.partition(".")
        name, _, statistic = key.rpartition(".")
        if {key, f"{key}.name", flag_setting(key)} & settings or key in metrics:
            continue
        if space == "params" and {rest, f"{rest}.name"} & settings:
            continue
        is_metric = statistic in STATISTICS and (name in metrics or name.removeprefix("metrics.") in metrics)
        if is_metric or (space == "metrics" and rest in metrics):
            continue
        facts = _known_facts(connection) if facts is None else facts
        if key in facts or (space == "facts" and rest in facts):
            continue
        known = _known_keys(settings, metrics, facts)
        if space == "metrics":
            known = {f"metrics.{metric}" for metric in metrics}
        meant = f"did you mean {_HEADED[key]}?" if key in _HEADED else did_you_mean(key, known)
        raise StoreError("; ".join(filter(None, (f"no run has anything called {key!r}", meant))))


def _known_keys(settings: set[str], metrics: set[str], facts: set[str]) -> set[str]:
    groups = {key.removesuffix(".name") for key in settings if key.endswith(".name")}
    flags = {key.removeprefix(ARGUMENTS) for key in settings if key.startswith(ARGUMENTS)}
    measured = {name for names in MEASURED.values() for name in names} | set(SCALED)
    return {*FIELDS, INCOMPLETE, "tag", "note", AGE, *settings, *groups, *flags, *facts, *metrics, *measured}


def _contents(connection: Connection) -> list[dict[str, Any]]:
    """Return the settings that runs have, by config group: each that is different once."""
    used = {at for ids in connection.execute(select(RUN.c.settings)).scalars() for at in ids}
    return [
        content
        for chunk in chunked(sorted(used))
        for content in connection.execute(select(SETTINGS.c.content).where(SETTINGS.c.id.in_(chunk))).scalars()
    ]


def known_settings(connection: Connection) -> set[str]:
    """Return the keys of all settings that a run of the store has."""
    return {key for content in _contents(connection) for key in content}


def varied_settings(connection: Connection) -> set[str]:
    """Return the keys of the settings of which the store has several values."""
    values: dict[str, str] = {}
    varied = set()
    for content in _contents(connection):
        for key, value in content.items():
            if values.setdefault(key, repr(value)) != repr(value):
                varied.add(key)
    return varied


def _known_metrics(connection: Connection) -> set[str]:
    return set(connection.execute(select(METRIC.c.name).distinct()).scalars())


def _known_facts(connection: Connection) -> set[str]:
    return {key for facts in connection.execute(select(RUN.c.facts)).scalars() for key in facts}


def unmet_words(store: Database, *, experiment: str | None, conditions: Sequence[Condition]) -> list[str]:
    """Return a line for each value asked for that no run has, be it the *experiment*; none where the store is empty.

    Of *conditions* only what must hold whatever else does is looked at, and of that only what equals a value.
    """
    now = datetime.now()  # noqa: DTZ005 - as in `hpcml.store.query.find_runs`
    filters = [each for condition in conditions for each in _filters(condition)]
    asked = [each for each in filters if each.op == "=" and each.key not in (*MOMENTS, AGE, "state")]
    flags = [flag_setting(each.key) for each in asked]
    with store.reading() as connection:
        check_known(connection, [each.key for each in asked])
        runs = load_runs(connection, RUN.c.id.is_not(None), parts_of([*(each.key for each in asked), *flags]))
    lines = []
    if experiment is not None:
        names = [run.experiment for run in runs]
        if names and experiment not in names:  # which is exact, as the option is
            lines.append(f"no run is of the experiment {experiment!r}{_known(experiment, names)}")
    for each, flag in zip(asked, flags, strict=True):
        known = [plain_value(run, each.key, now=now.timestamp()) for run in runs]
        is_met = meets(each, now=now)
        if any(value is not None for value in known) and not any(map(is_met, known)):
            typed = (setting_value(flag, run.params[flag]) for run in runs if flag in run.params)
            instead = f"; --{each.key} of your program is args.{each}" if any(map(is_met, typed)) else None
            lines.append(f"no run has {each}{instead or _known(each.value, known)}")
    return lines


def _filters(condition: Condition) -> Iterator[Filter]:
    if isinstance(condition, Filter):
        yield condition
    elif isinstance(condition, Every):
        for each in condition.of:
            yield from _filters(each)


def _known(asked: str, known: Sequence[Any]) -> str:
    several = [item for value in known for item in (value if isinstance(value, list) else [value])]
    words = sorted({str(value) for value in several if not is_missing(value) and value != ""})
    if 0 < len(words) <= _LISTED:
        return f"; there {'is only' if len(words) == 1 else 'are'} {', '.join(words)}"
    meant = did_you_mean(asked, [word for word in words if not word.replace(".", "").isdecimal()])
    return f"; {meant}" if meant else ""
