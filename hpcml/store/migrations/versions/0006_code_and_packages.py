"""Facts that run.json knows of the software: the digests of the code and of the packages.

Revision ID: 0006
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    # No run.json has this stamp, so the next ingest reads each anew.
    op.execute("UPDATE run SET manifest_stamp = ''")
