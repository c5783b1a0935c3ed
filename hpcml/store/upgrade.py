"""Upgrading a store's schema with Alembic, inside the caller's transaction.

Loading Alembic takes time, so stores import this module only when they find an older schema.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from hpcml.store.ingest import write_absent_summaries
from hpcml.store.views import create_views, drop_views

MIGRATIONS = Path(__file__).parent / "migrations"


def alembic_config() -> Config:
    """Return Alembic's configuration; there is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # it interpolates
    return config


def known_revisions() -> set[str]:
    """Return every schema version that this hpcml can upgrade from."""
    return {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}


def upgrade(connection: Connection) -> None:
    """Run the missing migrations on *connection*, inside its transaction; make views and absent summaries anew.

    The caller holds the store's write lock and has made a backup where that is its business. Where a migration raises,
    the whole transaction is undone, views included.
    """
    config = alembic_config()
    config.attributes["connection"] = connection
    drop_views(connection)
    command.upgrade(config, "head")
    write_absent_summaries(connection)
    create_views(connection)
