"""What runs used and what a step of theirs does; samples of telemetry in spans of ten seconds.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None

_USAGE_NUMBERS = (
    *("energy_uncertainty_j", "mean_power_w", "max_power_w", "power_limit_w"),
    *("throttled_power_share", "throttled_thermal_share", "sm_mhz", "util_percent", "memory_util_percent"),
    *("sm_active_percent", "tensor_percent", "dram_percent", "max_memory_mb", "max_temperature_c"),
    *("cpu_s", "max_host_memory_mb", "co2_g"),
)
_SPAN_NUMBERS = (
    *("mean_power_w", "energy_j", "util_percent", "memory_util_percent", "sm_active_percent", "tensor_percent"),
    *("dram_percent", "sm_mhz", "max_memory_mb", "max_temperature_c", "throttled_power_s", "throttled_thermal_s"),
    "cpu_s",
)


def upgrade() -> None:
    _create_usage_and_work()
    _create_samples()
    op.add_column("run", sa.Column("is_sampled", sa.Boolean(), nullable=False, server_default=sa.false()))
    # No run.json has this stamp, so the next ingest folds each run anew, from the events that are here already.
    op.execute("UPDATE run SET manifest_stamp = ''")


def _create_usage_and_work() -> None:
    op.create_table(
        "run_usage",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_s", sa.Float(), nullable=True),
        sa.Column("energy_j", sa.Float(), nullable=True),
        sa.Column("energy_method", _text(), nullable=True),
        sa.Column("energy_scope", _text(), nullable=True),
        sa.Column("energy_disagrees", sa.Boolean(), nullable=False),
        sa.Column("energy_reason", _text(), nullable=True),
        *(sa.Column(name, sa.Float(), nullable=True) for name in _USAGE_NUMBERS),
        sa.Column("co2_source", _text(), nullable=True),
        sa.Column("xids", _text(), nullable=True),
        sa.Column("incomplete", _text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_usage_run_id"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_usage"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_work",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=True),
        sa.Column("model_flops", sa.Float(), nullable=True),
        sa.Column("flops_doubt", _text(), nullable=True),
        sa.Column("samples", sa.Float(), nullable=True),
        sa.Column("tokens", sa.Float(), nullable=True),
        sa.Column("peak_allocated_mb", sa.Float(), nullable=True),
        sa.Column("peak_reserved_mb", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_work_run_id"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_work"),
        sqlite_with_rowid=False,
    )


def _create_samples() -> None:
    op.create_table(
        "sampler",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("file", _text(), nullable=False),
        sa.Column("uid", _text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.Column("host", _text(), nullable=False),
        sa.Column("t0", sa.Float(), nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.Column("bad_lines", sa.Integer(), nullable=False),
        sa.Column("carry", _text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_sampler_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_sampler"),
        sa.UniqueConstraint("run_id", "file", name="uq_sampler_run_id_file"),
    )
    op.create_table(
        "device",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sampler_id", sa.Integer(), nullable=False),
        sa.Column("name", _text(), nullable=False),
        sa.Column("uuid", _text(), nullable=True),
        sa.ForeignKeyConstraint(["sampler_id"], ["sampler.id"], name="fk_device_sampler_id"),
        sa.PrimaryKeyConstraint("id", name="pk_device"),
        sa.UniqueConstraint("sampler_id", "name", name="uq_device_sampler_id_name"),
    )
    op.create_table(
        "bucket",
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("t_ms", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("covered_s", sa.Float(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=True) for name in _SPAN_NUMBERS),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_bucket_device_id"),
        sa.PrimaryKeyConstraint("device_id", "t_ms", name="pk_bucket"),
        sqlite_with_rowid=False,
    )


def _text() -> sa.Text:
    """Return text that sorts as in SQLite and in Python, whatever language the server speaks."""
    return sa.Text(collation="C" if op.get_bind().dialect.name == "postgresql" else None)
