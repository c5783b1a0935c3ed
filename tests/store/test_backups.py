"""What is kept of a store before its schema changes, and what a person copies."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.store.admin import back_up
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.sqlite.backups import backups_of, thin_out
from hpcml.store.sqlite.location import SqliteHeader
from tests.store.building import contents
from tests.store.test_engine import lines_until_opened, open_in, read_line, start_opener
from tests.store.test_ingest import a_finished_run, fresh
from tests.store.test_published_faults import as_root, fill, small_disk
from tests.store.test_upgrade import old_store, schema, some_runs

__all__ = ["old_store", "some_runs"]  # fixtures
MODES = pytest.mark.parametrize("mode", ["direct", "published"])


def revision_in(path: Path) -> str:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def rows_in(path: Path, table: str) -> int:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - a name of ours


@MODES
def test_an_upgrade_leaves_the_store_as_it_was_beside_it(old_store: Path, mode: str) -> None:
    before = (schema(old_store), rows_in(old_store, "run"), rows_in(old_store, "point"))

    open_store(str(old_store), mode).close()

    (kept,) = backups_of(old_store)
    assert kept.name.startswith("store.db.backup-0001-")
    assert (schema(kept), rows_in(kept, "run"), rows_in(kept, "point")) == before
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not list(old_store.parent.glob("*.unfinished*"))


@MODES
def test_a_backup_put_in_the_place_of_the_store_is_upgraded_again(
    old_store: Path, some_runs: Path, tmp_path: Path, mode: str
) -> None:
    ingest_all(open_store(str(old_store), mode), some_runs)
    (kept,) = backups_of(old_store)
    for side in ("", "-wal", "-shm"):
        Path(f"{old_store}{side}").unlink(missing_ok=True)
    shutil.copyfile(kept, old_store)

    store = open_store(str(old_store), mode)
    ingest_all(store, some_runs)

    assert contents(store) == fresh(tmp_path, some_runs)


@MODES
def test_a_store_without_runs_is_upgraded_without_a_backup(old_store: Path, mode: str) -> None:
    with sqlite3.connect(old_store) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in set(tables) - {"alembic_version"}:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of ours

    open_store(str(old_store), mode).close()

    assert backups_of(old_store) == []
    assert revision_in(old_store) != "0001"


@MODES
def test_a_damaged_store_is_not_upgraded(old_store: Path, mode: str) -> None:
    with sqlite3.connect(old_store) as connection:
        root, size = connection.execute(
            "SELECT rootpage, (SELECT * FROM pragma_page_size) FROM sqlite_master WHERE name = 'summary'"
        ).fetchone()
    with old_store.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    before = old_store.read_bytes()

    with pytest.raises(StoreError, match="is damaged"):
        open_store(str(old_store), mode)

    assert backups_of(old_store) == []
    if mode == "direct":
        assert old_store.read_bytes() == before
    assert revision_in(old_store) == "0001"


@as_root
@MODES
def test_without_room_for_a_backup_there_is_no_upgrade(old_store: Path, tmp_path: Path, mode: str) -> None:
    with small_disk(tmp_path / "small", mib=2) as folder:
        path = folder / "store.db"
        shutil.copyfile(old_store, path)
        fill(folder, leave_bytes=64 << 10)

        with pytest.raises(StoreError, match="not upgraded, since no backup") as refusal:
            open_store(str(path), mode)

        assert "\n" not in str(refusal.value)
        assert revision_in(path) == "0001"
        assert not [file for file in folder.iterdir() if "backup" in file.name]
        (folder / "ballast").unlink()
        open_store(str(path), mode).close()
        assert revision_in(path) != "0001"


def test_what_a_killed_copy_left_is_no_backup_and_costs_none(old_store: Path) -> None:
    whole = [old_store.with_name(f"store.db.backup-0000-2020010{day}-000000") for day in (1, 2)]
    left = [old_store.with_name(f"store.db.backup-0001-20200109-000000.unfinished{end}") for end in ("", "-journal")]
    for day, file in enumerate((*whole, *left), start=1):
        file.touch()
        os.utime(file, (day, day))

    open_store(str(old_store)).close()

    assert set(whole) < set(backups_of(old_store))
    assert len(backups_of(old_store)) == 3
    assert not set(left) & set(backups_of(old_store))


def test_an_upgrade_keeps_two_older_backups_besides_its_own(old_store: Path) -> None:
    for day in range(1, 5):
        older = old_store.with_name(f"store.db.backup-0000-2020010{day}-000000")
        older.touch()
        os.utime(older, (day, day))

    open_store(str(old_store)).close()

    assert [file.name[:20] for file in backups_of(old_store)] == ["store.db.backup-0001", *["store.db.backup-0000"] * 2]


def test_the_newest_three_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    names = [f"store.db.backup-0001-2026010{day}-000000" for day in range(1, 6)]
    for age, name in enumerate(reversed(names)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / "store.db.backup-0001-x.unfinished").touch()
    os.utime(tmp_path / "store.db.backup-0001-x.unfinished", (0, 0))
    (tmp_path / "other.db.backup-0001-20260101-000000").touch()

    thin_out(path, keep=3)

    assert {file.name for file in tmp_path.iterdir()} == {*names[2:], "other.db.backup-0001-20260101-000000"}


@MODES
def test_of_many_who_meet_an_old_store_one_upgrades_and_one_backup_is_made(old_store: Path, mode: str) -> None:
    users = [start_opener(HPCML_STORE_MODE=mode) for _ in range(6)]
    assert [read_line(user) for user in users] == ["ready"] * 6
    for user in users:
        open_in(user, old_store)

    told = [list(lines_until_opened(user)) for user in users]

    for user in users:
        user.communicate()
    assert sum("upgraded" in line for lines in told for line in lines) == 1
    assert len(backups_of(old_store)) == 1


@MODES
def test_an_upgrade_killed_at_any_point_is_done_by_the_next(
    old_store: Path, some_runs: Path, tmp_path: Path, mode: str
) -> None:
    rng = random.Random(3)  # noqa: S311
    expected = fresh(tmp_path, some_runs)
    for trial in range(8):
        path = tmp_path / f"{trial}.db"
        shutil.copyfile(old_store, path)
        victim = start_opener(HPCML_STORE_MODE=mode)
        assert read_line(victim) == "ready"
        open_in(victim, path)
        time.sleep(rng.random() * 0.3)
        victim.kill()
        victim.communicate()

        store = open_store(str(path), mode)
        ingest_all(store, some_runs)

        assert contents(store) == expected
        assert all(rows_in(kept, "run") == 3 for kept in backups_of(path))


@MODES
def test_a_person_may_copy_the_store_while_it_is_written(tmp_path: Path, runs: Path, mode: str) -> None:
    a_finished_run(runs)
    store = open_store(str(tmp_path / "store.db"), mode)
    ingest_all(store, runs)
    with store.writing() as connection, connection.begin():
        connection.exec_driver_sql("DELETE FROM run_settings")

        written = back_up(open_store(str(tmp_path / "store.db")), tmp_path / "copy.db")

    assert SqliteHeader.of(written).publication == 0
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
