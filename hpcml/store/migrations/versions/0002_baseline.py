"""All tables, as `hpcml.store.schema` has them.

Until a version of hpcml is released, a change of a table changes this revision (and its number in
`hpcml.store.database`): a store of another one is made anew from the run directories. The first migration after that
release writes the tables of this one out, by ``alembic revision --autogenerate``.

Revision ID: 0002
"""

from __future__ import annotations

from alembic import op

from hpcml.store.schema import METADATA

revision = "0002"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    METADATA.create_all(op.get_bind(), checkfirst=False)
