"""Runs that have ended and long been quiet are not looked at before each answer.

Revision ID: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision: str | None = "0008"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("run", sa.Column("resting_in", sa.Integer(), nullable=True))
    op.create_index("ix_run_resting_in", "run", ["resting_in"])
    op.create_table(
        "folder",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("changed_ns", sa.BigInteger(), nullable=False),
        sa.Column("looked_at", sa.Float(), nullable=False),
        sa.Column("cleared_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_folder"),
        sa.UniqueConstraint("path", "home", name="uq_folder_path_home"),
    )
