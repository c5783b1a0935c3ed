"""Spans of telemetry that follow each other without gaps, with the seconds for which totals are known.

Revision ID: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision: str | None = "0006"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    for name in ("energy_covered_s", "cpu_covered_s"):
        op.add_column("bucket", sa.Column(name, sa.Float(), nullable=True))
    # Spans that are there began at full ten seconds since the submission. The next ingest makes them anew where the
    # samples are still there (hpcml.store.spans.is_current); else they stay. No run.json has this stamp, so that it
    # looks at these runs.
    op.execute("UPDATE run SET is_sampled = false, manifest_stamp = '' WHERE id IN (SELECT run_id FROM sampler)")
