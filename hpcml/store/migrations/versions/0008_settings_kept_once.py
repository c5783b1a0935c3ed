"""Settings that runs have alike are kept once.

Revision ID: 0008
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision: str | None = "0007"
branch_labels: str | None = None
depends_on: str | None = None

_TOGETHER = 10_000  # rows of one statement
_Settings = tuple[tuple[str, str], ...]


def upgrade() -> None:
    settings, setting, run_settings = _create()
    ids: dict[str, int] = {}
    new: list[tuple[str, _Settings]] = []
    links: list[dict[str, int]] = []
    for run_id, texts in _groups():
        digest = hashlib.sha256(json.dumps(dict(texts)).encode()).hexdigest()
        if digest not in ids:
            ids[digest] = len(ids) + 1
            new.append((digest, texts))
        links.append({"run_id": run_id, "settings_id": ids[digest]})
    _insert(settings, ({"digest": digest, "id": ids[digest]} for digest, _ in new))
    _insert(setting, ({"settings_id": ids[at], "key": key, "value": value} for at, of in new for key, value in of))
    _insert(run_settings, links)
    if op.get_bind().dialect.name == "postgresql":  # the next id that it gives is one more than the last of these
        last = "SELECT coalesce(max(id), 0) + 1 FROM settings"
        op.execute(f"SELECT setval(pg_get_serial_sequence('settings', 'id'), ({last}), false)")
    op.drop_table("run_param")


def _groups() -> Iterator[tuple[int, _Settings]]:
    """Yield each run's settings by config group: what stands before the first dot of a key."""
    rows = op.get_bind().execute(sa.text("SELECT run_id, key, value FROM run_param ORDER BY run_id"))
    for run_id, of_run in groupby(rows, key=lambda row: int(row[0])):
        groups: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for _, key, value in sorted(map(tuple, of_run)):
            groups[key.partition(".")[0]].append((key, value))
        for texts in groups.values():
            yield run_id, tuple(texts)


def _create() -> tuple[sa.Table, sa.Table, sa.Table]:
    settings = op.create_table(
        "settings",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", _text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_settings"),
        sa.UniqueConstraint("digest", name="uq_settings_digest"),
    )
    setting = op.create_table(
        "setting",
        sa.Column("settings_id", sa.Integer(), nullable=False),
        sa.Column("key", _text(), nullable=False),
        sa.Column("value", _text(), nullable=False),
        sa.ForeignKeyConstraint(["settings_id"], ["settings.id"], name="fk_setting_settings_id"),
        sa.PrimaryKeyConstraint("settings_id", "key", name="pk_setting"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_setting_key", "setting", ["key"], unique=False)
    run_settings = op.create_table(
        "run_settings",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("settings_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_settings_run_id"),
        sa.ForeignKeyConstraint(["settings_id"], ["settings.id"], name="fk_run_settings_settings_id"),
        sa.PrimaryKeyConstraint("run_id", "settings_id", name="pk_run_settings"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_settings_settings_id", "run_settings", ["settings_id"], unique=False)
    return settings, setting, run_settings


def _insert(table: sa.Table, rows: Iterable[Mapping[str, object]]) -> None:
    piece: list[dict[str, object]] = []
    for row in rows:
        piece.append(dict(row))
        if len(piece) == _TOGETHER:
            op.bulk_insert(table, piece)
            piece = []
    if piece:
        op.bulk_insert(table, piece)


def _text() -> sa.Text:
    """Return text that sorts as in SQLite and in Python, whatever language the server speaks."""
    return sa.Text(collation="C" if op.get_bind().dialect.name == "postgresql" else None)
