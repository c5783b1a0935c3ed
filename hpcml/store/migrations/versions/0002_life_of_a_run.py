"""How runs end and go on: settled or not, why, in which job; polls of the schedulers and their words.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    _add_to_run()
    _create_poll_and_word()


def _add_to_run() -> None:
    for column in (
        sa.Column("is_settled", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("job_name", sa.Text(), nullable=True),
        sa.Column("is_shared", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("submission", sa.Text(), nullable=True),
    ):
        op.add_column("run", column)
    op.create_index("ix_run_submission", "run", ["submission"], unique=False)
    # No run.json has this stamp, so the next ingest describes and folds each run anew, by the rules of its own time.
    op.execute("UPDATE run SET manifest_stamp = ''")


def _create_poll_and_word() -> None:
    op.create_table(
        "poll",
        sa.Column("scheduler", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.Float(), nullable=True),
        sa.Column("asked_at", sa.Float(), nullable=True),
        sa.Column("next_at", sa.Float(), nullable=True),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("scheduler", name="pk_poll"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "word",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("raw", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("expected_start", sa.Text(), nullable=True),
        sa.Column("is_live", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_word"),
        sqlite_with_rowid=False,
    )
