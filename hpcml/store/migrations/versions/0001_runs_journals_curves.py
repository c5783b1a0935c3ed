"""The first schema: runs, their journals and events, their curves.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    _create_run()
    _create_what_runs_have()
    _create_journals()
    _create_curves()


def _create_run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("manifest_stamp", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("spec_hash", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("precision", sa.Text(), nullable=False),
        sa.Column("precision_effective", sa.Text(), nullable=True),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("planned_numerics", sa.Text(), nullable=False),
        sa.Column("scheduler", sa.Text(), nullable=False),
        sa.Column("planned_scheduler", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("array_index", sa.Integer(), nullable=True),
        sa.Column("submitted_at", sa.Text(), nullable=True),
        sa.Column("git_commit", sa.Text(), nullable=True),
        sa.Column("git_dirty", sa.Boolean(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("t_start", sa.Float(), nullable=True),
        sa.Column("t_end", sa.Float(), nullable=True),
        sa.Column("wall_s", sa.Float(), nullable=True),
        sa.Column("epoch_ms", sa.BigInteger(), nullable=False),
        sa.Column("clock_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("uid", name="uq_run_uid"),
    )
    op.create_index("ix_run_experiment", "run", ["experiment"], unique=False)
    op.create_index("ix_run_name", "run", ["name"], unique=False)
    op.create_index("ix_run_spec_hash", "run", ["spec_hash"], unique=False)


def _create_what_runs_have() -> None:
    op.create_table(
        "run_fact",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_fact_run_id"),
        sa.PrimaryKeyConstraint("run_id", "key", name="pk_run_fact"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_fact_key", "run_fact", ["key"], unique=False)
    op.create_table(
        "run_param",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_param_run_id"),
        sa.PrimaryKeyConstraint("run_id", "key", name="pk_run_param"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_param_key", "run_param", ["key"], unique=False)
    op.create_table(
        "run_tag",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_tag_run_id"),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_run_tag"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_tag_tag", "run_tag", ["tag"], unique=False)


def _create_journals() -> None:
    op.create_table(
        "journal",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("t0", sa.Float(), nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("bad_lines", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_journal_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_journal"),
        sa.UniqueConstraint("run_id", "file", name="uq_journal_run_id_file"),
    )
    op.create_table(
        "event",
        sa.Column("journal_id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("t_ms", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["journal_id"], ["journal.id"], name="fk_event_journal_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_event_run_id"),
        sa.PrimaryKeyConstraint("journal_id", "ordinal", name="pk_event"),
    )
    op.create_index("ix_event_run_id", "event", ["run_id"], unique=False)


def _create_curves() -> None:
    op.create_table(
        "metric",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_metric"),
        sa.UniqueConstraint("name", name="uq_metric_name"),
    )
    op.create_table(
        "point",
        sa.Column("series_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("t_ms", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("series_id", "step", name="pk_point"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "summary",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("n_nonfinite", sa.Integer(), nullable=False),
        sa.Column("first", sa.Float(), nullable=True),
        sa.Column("last", sa.Float(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("min", sa.Float(), nullable=True),
        sa.Column("min_step", sa.BigInteger(), nullable=True),
        sa.Column("max", sa.Float(), nullable=True),
        sa.Column("max_step", sa.BigInteger(), nullable=True),
        sa.Column("total", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["metric_id"], ["metric.id"], name="fk_summary_metric_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_summary_run_id"),
        sa.PrimaryKeyConstraint("run_id", "metric_id", name="pk_summary"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_summary_metric_id", "summary", ["metric_id"], unique=False)
    op.create_table(
        "series",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("journal_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["journal_id"], ["journal.id"], name="fk_series_journal_id"),
        sa.ForeignKeyConstraint(["metric_id"], ["metric.id"], name="fk_series_metric_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_series_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        sa.UniqueConstraint("journal_id", "metric_id", name="uq_series_journal_id_metric_id"),
    )
    op.create_index("ix_series_run_id_metric_id", "series", ["run_id", "metric_id"], unique=False)
