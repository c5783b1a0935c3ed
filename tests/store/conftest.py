"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.store.engine import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    store = open_store(str(tmp_path / "store.db"))
    yield store
    store.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where the run directories are."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
