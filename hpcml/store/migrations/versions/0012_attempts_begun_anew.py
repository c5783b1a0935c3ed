"""What an attempt reported from the first step of a later one on does not count: such summaries are made anew.

Revision ID: 0012
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision: str | None = "0011"
branch_labels: str | None = None
depends_on: str | None = None

_THOSE = """
    DELETE FROM summary WHERE EXISTS (
        SELECT 1 FROM series former JOIN journal f ON f.id = former.journal_id
        JOIN series latter ON latter.run_id = former.run_id AND latter.metric_id = former.metric_id
        JOIN journal l ON l.id = latter.journal_id AND l.attempt > f.attempt
        WHERE former.run_id = summary.run_id AND former.metric_id = summary.metric_id
        AND (SELECT max(step) FROM point WHERE series_id = former.id) > (
            SELECT min(step) FROM point WHERE series_id = latter.id)
    )
"""


def upgrade() -> None:
    op.execute(_THOSE)  # hpcml.store.upgrade makes what is absent
