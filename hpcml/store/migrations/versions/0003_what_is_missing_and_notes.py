"""What a journal lacks, the order of a run's journals, who tags and what people note of runs.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    for column in (
        sa.Column("records", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("next_seq", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("lost_records", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("rank", sa.Integer(), nullable=False, server_default=sa.text("0")),
    ):
        op.add_column("journal", column)
    op.create_table(
        "run_note",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_note_run_id"),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_run_note"),
        sqlite_with_rowid=False,
    )
    op.add_column("run", sa.Column("home", sa.Text(), nullable=True))
    if op.get_bind().dialect.name == "postgresql":
        _sort_by_characters()
    # Journals are read again from their beginning, since only that finds the holes that were passed over.
    for table in ("point", "series", "summary", "event", "journal", "metric"):
        op.execute(f"DELETE FROM {table}")  # noqa: S608 - these words
    op.execute("UPDATE run SET manifest_stamp = ''")


def _sort_by_characters() -> None:
    """Give texts the order that they have in SQLite and in Python, whatever language the server speaks."""
    inspector = sa.inspect(op.get_bind())
    for table in inspector.get_table_names():
        texts = [column["name"] for column in inspector.get_columns(table) if isinstance(column["type"], sa.Text)]
        changes = ", ".join(f'ALTER COLUMN {name} TYPE text COLLATE "C"' for name in texts)
        if changes:
            op.execute(f"ALTER TABLE {table} {changes}")
