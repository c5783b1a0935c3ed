from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs, get_run
from tests.store.rights import somebody_without_rights
from tests.store.test_ingest import UID, a_finished_run

MODES = pytest.mark.parametrize("mode", ["direct", "published"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def make_store(folder: Path, mode: str) -> Path:
    runs = folder / "runs"
    runs.mkdir(mode=0o755)
    a_finished_run(runs)
    path = folder / "store.db"
    store = open_store(str(path), mode)
    ingest_all(store, runs)
    store.close()
    path.chmod(0o644)
    return path


@MODES
def test_a_colleagues_store_is_read_and_not_changed(folder: Path, mode: str) -> None:
    path = make_store(folder, mode)
    before = path.read_bytes()
    there = {file.name for file in folder.iterdir()}

    with somebody_without_rights():
        store = open_store(str(path))

        assert store.is_read_only
        assert "read-only for you" in store.used
        assert get_run(store, UID).uid == UID
        with pytest.raises(StoreError, match="read-only for you"), store.writing():
            pass

    assert path.read_bytes() == before
    assert {file.name for file in folder.iterdir()} == there


@MODES
@pytest.mark.parametrize("rights", [(0o444, 0o777), (0o666, 0o555)], ids=["file", "folder"])
def test_it_takes_the_file_and_its_folder_to_write(folder: Path, mode: str, rights: tuple[int, int]) -> None:
    path = make_store(folder, mode)
    path.chmod(rights[0])
    folder.chmod(rights[1])

    with somebody_without_rights():
        assert open_store(str(path)).is_read_only
        assert [record.uid for record in find_runs(open_store(str(path)))] == [UID]

    folder.chmod(0o755)


def test_a_store_that_its_owner_is_writing_into_is_read_as_of_the_last_commit(folder: Path) -> None:
    path = make_store(folder, "direct")
    store, insert = open_store(str(path)), "INSERT INTO settings (digest, content) VALUES ('{}', '{{}}')"
    with store.reading() as kept_open:  # else its log goes with whoever uses it last
        kept_open.exec_driver_sql("SELECT count(*) FROM run")
        with store.writing() as connection:
            connection.exec_driver_sql(insert.format("committed"))
        for side in ("-wal", "-shm"):
            Path(f"{path}{side}").chmod(0o644)
        with store.writing() as connection:
            connection.exec_driver_sql(insert.format("pending"))

            with somebody_without_rights(), open_store(str(path)).reading() as reading:
                names = set(reading.exec_driver_sql("SELECT digest FROM settings").scalars())

    assert "committed" in names
    assert "pending" not in names


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@MODES
def test_on_a_read_only_file_system_not_even_root_can_do_more(folder: Path, mode: str) -> None:
    path = make_store(folder, mode)
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        store = open_store(str(path))

        assert store.is_read_only
        assert [record.uid for record in find_runs(store)] == [UID]
        store.close()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@MODES
def test_one_of_another_version_is_refused(folder: Path, mode: str) -> None:
    path = make_store(folder, mode)
    store = open_store(str(path))
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    store.close()

    with somebody_without_rights(), pytest.raises(StoreError, match="its owner can make it anew") as refusal:
        open_store(str(path))

    assert "\n" not in str(refusal.value)


def test_an_empty_file_that_cannot_be_filled_is_refused(folder: Path) -> None:
    (folder / "store.db").touch(mode=0o644)

    with somebody_without_rights(), pytest.raises(StoreError, match="nothing in the store"):
        open_store(str(folder / "store.db"))


def test_the_database_of_another_program_is_refused_as_well(folder: Path) -> None:
    (folder / "notes.txt").write_text("hello")

    with somebody_without_rights(), pytest.raises(StoreError, match="no database"):
        open_store(str(folder / "notes.txt"))
