from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.runs.layout import RunDir
from hpcml.store.admin import faults, torn_parts
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store, place_of
from hpcml.store.views import VIEWS
from tests.store.building import curve
from tests.store.test_ingest import UID, a_finished_run


@pytest.fixture(params=["direct", "published"])
def file_store(request: pytest.FixtureRequest, tmp_path: Path, runs: Path) -> Database:
    """A store in a file, with a run in it."""
    a_finished_run(runs)
    store = open_store(str(tmp_path / "store.db"), request.param)
    ingest_all(store, runs)
    store.close()
    return store


def test_there_is_nothing_wrong_with_a_store_that_is_as_it_was_made(file_store: Database) -> None:
    assert torn_parts(file_store.name) == []
    assert list(faults(file_store)) == []


def test_every_kind_of_store_is_looked_over(store: Database, runs: Path) -> None:
    a_finished_run(runs)
    ingest_all(store, runs)
    assert list(faults(store)) == []

    RunDir(runs / "default" / UID).journal_files()[0].unlink()
    with store.writing() as connection:
        connection.exec_driver_sql("INSERT INTO point (metric_id, step, t_ms, value) VALUES (4711, 1, 1, 1)")

    assert "1 points belong to no metric" in list(faults(store))
    assert any("is gone" in line for line in faults(store))


def test_what_contradicts_itself_is_told(file_store: Database) -> None:
    broken = file_store.engine.raw_connection()
    broken.execute("PRAGMA foreign_keys = OFF")
    broken.execute("DELETE FROM metric")
    broken.execute("UPDATE event SET run_id = 4711")
    broken.close()

    told = list(faults(file_store))

    assert any("points belong to no metric" in line for line in told)
    assert "a row of event belongs to a run that is not there" in told
    file_store.close()
    assert torn_parts(file_store.name) == []


def test_journals_that_shrank_or_went_are_told(file_store: Database, runs: Path) -> None:
    first, second, *_ = RunDir(runs / "default" / UID).journal_files()
    os.truncate(first, 10)
    second.unlink()

    told = list(faults(file_store))

    assert sum(str(first) in line and "10 bytes" in line and "became shorter" in line for line in told) == 1
    assert sum(str(second) in line and "is gone" in line for line in told) == 1


def test_a_run_that_is_gone_as_a_whole_is_no_fault(file_store: Database, runs: Path) -> None:
    (runs / "default").rename(runs / "elsewhere")

    assert list(faults(file_store)) == []


def test_torn_pages_are_told_without_opening_the_store(file_store: Database) -> None:
    path = Path(file_store.name)
    content = path.read_bytes()
    path.write_bytes(content[: 8 * 4096] + b"\xff" * 4096 + content[9 * 4096 :])
    for side in ("-wal", "-shm"):
        Path(f"{path}{side}").unlink(missing_ok=True)

    assert torn_parts(str(path))
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert torn_parts(str(path))


@pytest.mark.parametrize("change", ["DROP TABLE {}", "ALTER TABLE {} RENAME COLUMN value TO worth"])
def test_tables_that_were_changed_by_other_means_are_one_line_with_what_to_do(
    store: Database, runs: Path, change: str
) -> None:
    a_finished_run(runs)
    ingest_all(store, runs)
    with store.writing() as connection:
        for view in VIEWS:
            connection.exec_driver_sql(f"DROP VIEW {view}")
        connection.exec_driver_sql(change.format("point"))

    for question in (lambda: ingest_all(store, runs, is_anew=True), lambda: curve(store, UID, "loss")):
        with pytest.raises(StoreError, match=r"hpcml sync makes? (it|them) anew") as refusal:
            question()
        assert "\n" not in str(refusal.value)


def test_there_must_be_a_store_to_be_checked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store at"):
        torn_parts(str(tmp_path / "store.db"))
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(StoreError, match="no database"):
        torn_parts(str(tmp_path / "notes.txt"))
    assert torn_parts("postgresql://db/hpcml") == []


def test_a_file_that_is_called_as_a_server_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    placement = place_of("postgres-runs.db")

    assert placement is not None
    assert placement.path == tmp_path / "postgres-runs.db"
    with pytest.raises(StoreError, match=r"there is no store at .*/postgres-runs.db yet"):
        torn_parts("postgres-runs.db")
    assert place_of("postgresql://db.example/hpcml") is None
