"""The settings of runs: those of one config group are kept once for all runs that have them alike.

A sweep of a thousand runs has a thousand times the same data and cluster, and a handful of precisions and seeds. So
the table `settings` has a row for each different content of a group (``model.*``; a key without a dot is a group of
its own), `setting` has its keys and values, and `run_settings` says which contents a run has. Runs that are loaded
together share what they have in common, too: nobody may change the settings of a record.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Text, cast, delete, func, insert, select

from hpcml.store.locks import WRITE, is_server
from hpcml.store.pieces import chunked, insert_rows, within
from hpcml.store.schema import RUN_SETTINGS, SETTING, SETTINGS

# as text: importing PostgreSQL's own insert() takes longer than most answers
_ADD_CONTENTS = "INSERT INTO settings (digest) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING RETURNING digest, id"

Texts = Mapping[str, str]  # the key of a setting -> its value as JSON, so that 3 and "3" stay two things
Groups = Mapping[str, Texts]  # by config group, each sorted by key


def write_settings(connection: Connection, of_runs: Mapping[int, Groups]) -> None:
    """Write the settings of runs, by row id; none of the runs may have any yet (`replace_settings`).

    On a server the caller holds the lock of the run, and with it shares that of names: nobody deletes meanwhile what
    these runs are about to have.
    """
    digests: dict[int, str] = {}
    divided = {run_id: _by_digest(groups, digests) for run_id, groups in of_runs.items()}
    ids = _ensure(connection, {digest: texts for of in divided.values() for digest, texts in of.items()})
    _link(connection, [(run_id, ids[digest]) for run_id, of in divided.items() for digest in of])


def replace_settings(connection: Connection, run_id: int, groups: Groups) -> None:
    """Give a run these settings in place of those that it has; locks as in `write_settings`.

    What no run has any more stays until `forget_unused`; nobody sees it.
    """
    ids = set(_ensure(connection, _by_digest(groups, {})).values())
    had = set(connection.execute(select(RUN_SETTINGS.c.settings_id).where(RUN_SETTINGS.c.run_id == run_id)).scalars())
    if ids != had:
        forget_settings(connection, run_id)
        _link(connection, [(run_id, at) for at in sorted(ids)])


def forget_settings(connection: Connection, run_id: int) -> None:
    """Take the settings from a run; what no run has any more stays until `forget_unused`."""
    connection.execute(delete(RUN_SETTINGS).where(RUN_SETTINGS.c.run_id == run_id))


def forget_unused(connection: Connection) -> None:
    """Delete the settings that no run has; on a server the caller holds the lock of names alone."""
    used = select(RUN_SETTINGS.c.settings_id)
    connection.execute(delete(SETTING).where(SETTING.c.settings_id.not_in(used)))
    connection.execute(delete(SETTINGS).where(SETTINGS.c.id.not_in(used)))


def load_settings(
    connection: Connection, ids: Sequence[int], keys: Collection[str] | None = None
) -> dict[int, Mapping[str, Any]]:
    """Return the decoded settings of runs by row id, sorted by key; of these *keys* alone, if they are given.

    Runs with the same settings have the same object.
    """
    listed = func.aggregate_strings(cast(RUN_SETTINGS.c.settings_id, Text), ",")
    linked = select(RUN_SETTINGS.c.run_id, listed).group_by(RUN_SETTINGS.c.run_id)
    which: dict[int, str] = {}
    for among in within(RUN_SETTINGS.c.run_id, ids):
        which |= dict(connection.execute(linked.where(among)).cursor.fetchall())  # the driver's tuples
    contents = {spelt: tuple(sorted(map(int, spelt.split(",")))) for spelt in set(which.values())}
    decoded = _decoded(connection, sorted({at for of in contents.values() for at in of}), keys)
    merged = {of: dict(sorted(pair for at in of for pair in decoded[at])) for of in set(contents.values())}
    merged[()] = {}
    return {run_id: merged[contents[which[run_id]] if run_id in which else ()] for run_id in ids}


def values_of(connection: Connection, key: str) -> dict[int, Any]:
    """Return the decoded value of the setting *key* by the row id of the run; a run without it is absent."""
    having = select(SETTING.c.settings_id, SETTING.c.value).where(SETTING.c.key == key)
    decoded = {at: json.loads(value) for at, value in connection.execute(having)}
    linked = select(RUN_SETTINGS.c.run_id, RUN_SETTINGS.c.settings_id)
    return {
        run_id: decoded[at]
        for among in within(RUN_SETTINGS.c.settings_id, list(decoded))
        for run_id, at in connection.execute(linked.where(among))
    }


def known_settings(connection: Connection) -> set[str]:
    """Return the keys of all settings that a run of the store has."""
    used = select(RUN_SETTINGS.c.settings_id)
    return set(connection.execute(select(SETTING.c.key).where(SETTING.c.settings_id.in_(used)).distinct()).scalars())


def _decoded(
    connection: Connection, ids: Sequence[int], keys: Collection[str] | None
) -> defaultdict[int, list[tuple[str, Any]]]:
    found: defaultdict[int, list[tuple[str, Any]]] = defaultdict(list)
    query = select(SETTING.c.settings_id, SETTING.c.key, SETTING.c.value)
    query = query if keys is None else query.where(SETTING.c.key.in_(keys))
    seen: dict[str, str] = {}
    for among in within(SETTING.c.settings_id, ids):
        for at, key, value in connection.execute(query.where(among)):
            found[at].append((seen.setdefault(key, key), json.loads(value)))
    return found


def _by_digest(groups: Groups, digests: dict[int, str]) -> dict[str, Texts]:
    """Return *groups*, each under a digest of its content; *digests* keeps those of objects that live meanwhile."""
    found: dict[str, Texts] = {}
    for texts in groups.values():
        if (digest := digests.get(id(texts))) is None:
            digest = digests[id(texts)] = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        found[digest] = texts
    return found


def _ensure(connection: Connection, wanted: Mapping[str, Texts]) -> dict[str, int]:
    """Return the row ids of the contents *wanted* by digest, writing those that are not there."""
    found = _ids(connection, wanted)
    missing = sorted(wanted.keys() - found.keys())  # in one order, so that two writers do not wait for each other
    if not missing:
        return found
    if is_server(connection):
        # At once, in a transaction of its own: until a digest is committed, others who need it wait for it.
        at_once = connection.engine.execution_options(**{WRITE: False})  # the caller keeps the schema already
        with at_once.connect() as other, other.begin():
            added = {digest: int(at) for digest, at in other.exec_driver_sql(_ADD_CONTENTS, (missing,))}
            _add_values(other, {at: wanted[digest] for digest, at in added.items()})
        return found | _ids(connection, missing)
    connection.execute(insert(SETTINGS), [{"digest": digest} for digest in missing])
    added = _ids(connection, missing)
    _add_values(connection, {at: wanted[digest] for digest, at in added.items()})
    return found | added


def _ids(connection: Connection, digests: Iterable[str]) -> dict[str, int]:
    query = select(SETTINGS.c.digest, SETTINGS.c.id)
    return {
        digest: int(at)
        for chunk in chunked(list(digests))
        for digest, at in connection.execute(query.where(SETTINGS.c.digest.in_(chunk)))
    }


def _link(connection: Connection, links: Sequence[tuple[int, int]]) -> None:
    if not links:
        return
    if is_server(connection):
        connection.execute(insert(RUN_SETTINGS), [{"run_id": at, "settings_id": to} for at, to in links])
    else:
        insert_rows(connection, "run_settings (run_id, settings_id)", list(chain.from_iterable(links)), 2)


def _add_values(connection: Connection, contents: Mapping[int, Texts]) -> None:
    rows = [
        {"settings_id": at, "key": key, "value": value}
        for at, texts in contents.items()
        for key, value in texts.items()
    ]
    if rows:
        connection.execute(insert(SETTING), rows)
