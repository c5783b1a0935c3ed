"""Bringing a store's schema up to date with Alembic, inside the caller's transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from hpcml.store.views import create_views, drop_views

MIGRATIONS = Path(__file__).parent / "migrations"


def alembic_config() -> Config:
    """Return Alembic's configuration; there is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # it interpolates
    return config


def known_revisions() -> set[str]:
    """Return every schema version that this hpcml can start from."""
    return {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}


def upgrade(connection: Connection) -> None:
    """Run the missing migrations on *connection*, which is inside a transaction and stays in it; the views are new."""
    config = alembic_config()
    config.attributes["connection"] = connection
    drop_views(connection)
    command.upgrade(config, "head")
    create_views(connection)
