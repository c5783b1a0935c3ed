"""Making the tables and views of a new store with Alembic, inside the caller's transaction.

Loading Alembic takes time, so stores import this module only when they find no schema.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from hpcml.store.views import create_views

MIGRATIONS = Path(__file__).parent / "migrations"


def create_schema(connection: Connection) -> None:
    """Make all tables and views where there are none; the caller keeps others from writing meanwhile."""
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    create_views(connection)


def alembic_config() -> Config:
    """Return Alembic's configuration; there is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # it interpolates
    return config
