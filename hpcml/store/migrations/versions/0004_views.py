"""Views to be asked in SQL: changes no table, since views are made anew after each upgrade (hpcml/store/views.py).

Revision ID: 0004
"""

from __future__ import annotations

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    pass
