"""Writing the settings of runs, those of one config group once for all runs that have them alike.

How they lie in the tables is told in `hpcml.store.settings`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from sqlalchemy import Connection, delete, insert, select

from hpcml.store.pieces import chunked, insert_rows
from hpcml.store.schema import RUN_SETTINGS, SETTING, SETTINGS
from hpcml.store.server_locks import is_server

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
        with connection.engine.connect() as other, other.begin():
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
