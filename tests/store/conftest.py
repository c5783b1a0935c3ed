"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from hpcml.store.engine import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Engine]:
    """An empty store."""
    engine = open_store(str(tmp_path / "store.db"))
    yield engine
    engine.dispose()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where the run directories are."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
