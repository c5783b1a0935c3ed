"""Secrets among the words of earlier runs are ``***``, as in runs that were read since: their settings are alike again.

Revision ID: 0011
"""

from __future__ import annotations

import hashlib
import json
from itertools import groupby

import sqlalchemy as sa
from alembic import op

from hpcml.model.secrets import masked, masked_settings

revision = "0011"
down_revision: str | None = "0010"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    _settings()
    _events()


def _settings() -> None:
    connection = op.get_bind()
    ids = {digest: int(at) for digest, at in connection.execute(sa.text("SELECT digest, id FROM settings"))}
    rows = connection.execute(sa.text("SELECT settings_id, key, value FROM setting ORDER BY settings_id")).all()
    for at, of_one in groupby(rows, key=lambda row: int(row[0])):
        texts = {str(key): str(value) for _, key, value in sorted(map(tuple, of_one))}
        settings = {key: json.loads(value) for key, value in texts.items()}
        hidden = {key: value for key, value in masked_settings(settings).items() if value != settings[key]}
        if not hidden:
            continue
        texts |= {key: json.dumps(value) for key, value in hidden.items()}
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        if (other := ids.setdefault(digest, at)) != at:
            _do("UPDATE run_settings SET settings_id = :other WHERE settings_id = :at", at=at, other=other)
            _do("DELETE FROM setting WHERE settings_id = :at", at=at)
            _do("DELETE FROM settings WHERE id = :at", at=at)
            continue
        _do("UPDATE settings SET digest = :digest WHERE id = :at", at=at, digest=digest)
        for key in hidden:
            _do(
                "UPDATE setting SET value = :value WHERE settings_id = :at AND key = :key",
                at=at,
                key=key,
                value=texts[key],
            )


def _events() -> None:
    started = "SELECT journal_id, ordinal, details FROM event WHERE name = 'workload_started'"
    for journal, ordinal, text in op.get_bind().execute(sa.text(started)).all():
        details = json.loads(text)
        words = details.get("argv") if isinstance(details, dict) else None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or masked(words) == words:
            continue
        hidden = json.dumps(details | {"argv": masked(words)})
        _do(
            "UPDATE event SET details = :hidden WHERE journal_id = :journal AND ordinal = :ordinal",
            journal=journal,
            ordinal=ordinal,
            hidden=hidden,
        )


def _do(statement: str, **values: object) -> None:
    op.get_bind().execute(sa.text(statement), values)
