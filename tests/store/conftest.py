"""Fixtures of the store's tests. What a test asks of `store` is asked of each kind of store that there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.store.database import Database
from hpcml.store.opening import open_store
from tests.cluster.postgres.server import Server


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty store is, or will be."""
    if request.param == "sqlite":
        yield str(tmp_path / "store.db")
        return
    postgres: Server = request.getfixturevalue("postgres")
    name = request.getfixturevalue("new_database")("empty_store")
    yield postgres.url(name)
    postgres.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def store(store_url: str) -> Iterator[Database]:
    """An empty store."""
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where the run directories are."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
