"""Which of a site's Slurm clusters a job was sent to.

Revision ID: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision: str | None = "0009"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("run", sa.Column("job_cluster", sa.Text(), nullable=True))
