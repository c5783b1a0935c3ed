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
from operator import itemgetter
from typing import Any

from hpcml.store.reading import StoreReader


def load_settings(
    reading: StoreReader, ids: Sequence[int], keys: Collection[str] | None = None
) -> dict[int, Mapping[str, Any]]:
    """Return the decoded settings of runs by row id, sorted by key; of these *keys* alone, if they are given.

    Runs with the same settings have the same object.
    """
    which: dict[int, str] = dict(reading.rows(_LISTED, ids=ids))
    contents = {spelt: tuple(sorted(map(int, spelt.split(",")))) for spelt in set(which.values())}
    decoded = _decoded(reading, sorted({at for of in contents.values() for at in of}), keys)
    merged = {
        of: dict(sorted((pair for at in of for pair in decoded[at]), key=itemgetter(0)))
        for of in set(contents.values())
    }
    merged[()] = {}
    return {run_id: merged[contents[which[run_id]] if run_id in which else ()] for run_id in ids}


_LISTED = """
SELECT run_id, group_concat(CAST(settings_id AS TEXT), ',') FROM run_settings WHERE run_id IN :ids GROUP BY run_id
"""


def values_of(reading: StoreReader, key: str) -> dict[int, Any]:
    """Return the decoded value of the setting *key* by the row id of the run; a run without it is absent."""
    having = reading.rows("SELECT settings_id, value FROM setting WHERE key = :key", key=key)
    decoded = {at: json.loads(value) for at, value in having}
    linked = "SELECT run_id, settings_id FROM run_settings WHERE settings_id IN :ids"
    return {run_id: decoded[at] for run_id, at in reading.rows(linked, ids=decoded)}


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
