"""Copies of a store that a person asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.store.admin import back_up
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.sqlite.location import SqliteHeader
from tests.store.building import contents
from tests.store.test_host_copy import as_root, fill, small_disk
from tests.store.test_ingest import a_finished_run, fresh

MODES = pytest.mark.parametrize("mode", ["direct", "published"])


@MODES
def test_a_person_may_copy_the_store_while_it_is_written(tmp_path: Path, runs: Path, mode: str) -> None:
    a_finished_run(runs)
    store = open_store(str(tmp_path / "store.db"), mode)
    ingest_all(store, runs)
    store.close()
    with store.writing() as connection:
        connection.exec_driver_sql("DELETE FROM settings")

        written = back_up(open_store(str(tmp_path / "store.db")), tmp_path / "copy.db")

    assert not SqliteHeader.of(written).is_published
    assert not SqliteHeader.of(written).has_wal
    assert contents(open_store(str(written), "direct")) == fresh(tmp_path, runs)


def test_a_backup_replaces_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(StoreError, match="is there already"):
        back_up(store, tmp_path / "mine")
    with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
        back_up(store, tmp_path / "no" / "copy.db")

    assert (tmp_path / "mine").read_text() == "mine"
    assert back_up(store, None) != back_up(store, None)


@as_root
def test_a_full_disk_of_the_backup_is_told_as_that_and_not_as_one_of_the_store(tmp_path: Path) -> None:
    a_finished_run(tmp_path / "runs")
    store = open_store(str(tmp_path / "store.db"))
    ingest_all(store, tmp_path / "runs")
    with small_disk(tmp_path / "small", mib=1) as folder:
        fill(folder, leave_bytes=64 << 10)
        with pytest.raises(StoreError, match=f"the backup {folder}/copy.db cannot be written: "):
            back_up(store, folder / "copy.db")
    store.close()
