"""The settings of runs: those of one config group are kept once for all runs that have them alike.

A sweep of a thousand runs has a thousand times the same data and cluster, and a handful of precisions and seeds. So
the table `settings` has a row for each different content of a group (``model.*``; a key without a dot is a group of
its own), `setting` has its keys and values, and `run_settings` says which contents a run has. Runs that are loaded
together share what they have in common, too: nobody may change the settings of a record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hpcml.model.identity import ABSENT_MEANS
from hpcml.runs.run_json import IMPORTED
from hpcml.store.reading import StoreReader

_SCHEDULER = "cluster.scheduler"
_OF_OLD_RUNS = {key: value for key, value in ABSENT_MEANS.items() if value is not None}


def load_settings(
    reading: StoreReader, ids: Sequence[int], keys: Collection[str] | None = None
) -> dict[int, Mapping[str, Any]]:
    """Return the decoded settings of runs by row id, sorted by key; of these *keys* alone, if they are given.

    Runs with the same settings have the same object. Settings that came after a run was recorded have the values by
    which it computed, so that it is alike with those of today.
    """
    which: dict[int, str] = dict(reading.rows(_LISTED, ids=ids))
    contents = {spelt: tuple(sorted(map(int, spelt.split(",")))) for spelt in set(which.values())}
    needed = None if keys is None else {*keys, _SCHEDULER}
    decoded = _decoded(reading, sorted({at for of in contents.values() for at in of}), needed)
    merged = {of: _whole(dict(pair for at in of for pair in decoded[at]), keys) for of in set(contents.values())}
    merged[()] = {}
    return {run_id: merged[contents[which[run_id]] if run_id in which else ()] for run_id in ids}


def _whole(settings: dict[str, Any], keys: Collection[str] | None) -> dict[str, Any]:
    if _is_ours(settings.get(_SCHEDULER)):
        settings = {**_OF_OLD_RUNS, **settings}
    return {key: settings[key] for key in sorted(settings) if keys is None or key in keys}


def _is_ours(scheduler: object) -> bool:
    """Tell whether hpcml ran it: another tool's runs have no settings but their own."""
    return scheduler not in (None, IMPORTED)


_LISTED = """
SELECT run_id, group_concat(CAST(settings_id AS TEXT), ',') FROM run_settings WHERE run_id IN :ids GROUP BY run_id
"""


def values_of(reading: StoreReader, key: str) -> dict[int, Any]:
    """Return the decoded value of the setting *key* by the row id of the run; a run without it is absent.

    One from before that setting has the value by which it computed, as in `load_settings`, if any run has it.
    """
    having = reading.rows("SELECT settings_id, value FROM setting WHERE key = :key", key=key)
    decoded = {at: json.loads(value) for at, value in having}
    linked = "SELECT run_id, settings_id FROM run_settings WHERE settings_id IN :ids"
    found = {run_id: decoded[at] for run_id, at in reading.rows(linked, ids=decoded)}
    if not found or key not in _OF_OLD_RUNS:
        return found
    ours = [run_id for run_id, scheduler in values_of(reading, _SCHEDULER).items() if _is_ours(scheduler)]
    return dict.fromkeys(ours, _OF_OLD_RUNS[key]) | found


def known_settings(reading: StoreReader) -> set[str]:
    """Return the keys of all settings that a run of the store has."""
    used = "SELECT DISTINCT key FROM setting WHERE settings_id IN (SELECT settings_id FROM run_settings)"
    return set(reading.column(used))


def varied_settings(reading: StoreReader) -> set[str]:
    """Return the keys of the settings of which the store has several values."""
    return set(reading.column("SELECT key FROM setting GROUP BY key HAVING COUNT(DISTINCT value) > 1"))


def _decoded(
    reading: StoreReader, ids: Sequence[int], keys: Collection[str] | None
) -> defaultdict[int, list[tuple[str, Any]]]:
    found: defaultdict[int, list[tuple[str, Any]]] = defaultdict(list)
    sql = "SELECT settings_id, key, value FROM setting WHERE settings_id IN :ids"
    rows = reading.rows(sql, ids=ids) if keys is None else reading.rows(f"{sql} AND key IN :keys", ids=ids, keys=keys)
    seen: dict[str, str] = {}
    for at, key, value in rows:
        found[at].append((seen.setdefault(key, key), json.loads(value)))
    return found
