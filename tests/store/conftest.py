"""Fixtures of the store's tests. What a test asks of `store` is asked of SQLite, and of PostgreSQL in the nightly part.

A few are marked `on_postgres`: they are asked of both in the usual run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.store.database import Database
from hpcml.store.opening import open_store
from tests.cluster.postgres.server import Server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the kinds of store that a test of `store` is asked of, and when."""
    if "store_url" in metafunc.fixturenames:
        is_usual = metafunc.definition.get_closest_marker("on_postgres") is not None
        marks = () if is_usual else pytest.mark.nightly("postgres")
        metafunc.parametrize("store_url", ["sqlite", pytest.param("postgres", marks=marks)], indirect=True)


@pytest.fixture
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
