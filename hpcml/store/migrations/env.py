"""Runs the migrations on the connection that `hpcml.store.create` hands over."""

from __future__ import annotations

from alembic import context

from hpcml.store.schema import METADATA

# The connection is inside a transaction already, so Alembic begins and commits none of its own.
context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
context.run_migrations()
