from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.model.state import State
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.missing import runs_below, without_directory
from hpcml.store.opening import open_store
from hpcml.store.origin import home_mark_of, mark, mark_of
from hpcml.store.query import get_run, open_runs
from tests.store.building import Journal, contents, make_run_dir
from tests.store.test_ingest import UID, a_finished_run, fresh

HERS, HIS = UID[:-1] + "h", UID[:-1] + "s"


@pytest.fixture
def shared(store: Database) -> Database:
    """A store that several users fill."""
    if not store.is_shared:
        pytest.skip("a file is one user's")
    return store


def a_home(path: Path) -> Path:
    """Make a folder of runs that has a mark of its own."""
    path.mkdir(parents=True)
    assert mark(path) is not None
    return path


def test_a_mark_is_made_once_by_however_many_and_stays(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert mark(runs) is None  # no folder, and none is made
    runs.mkdir()
    program = (
        "import sys; from pathlib import Path; from hpcml.store.origin import mark; print(mark(Path(sys.argv[1])))"
    )

    makers = [
        subprocess.Popen([sys.executable, "-c", program, str(runs)], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    said = {maker.communicate(timeout=300)[0].strip() for maker in makers}

    assert said == {mark_of(runs)}
    assert os.listdir(runs) == [".home"]  # noqa: PTH208 - names
    assert home_mark_of(runs / "default" / UID) == mark_of(runs)
    runs.rename(tmp_path / "moved")
    assert {mark_of(tmp_path / "moved")} == said
    (tmp_path / "moved" / ".home").write_text("torn")
    assert mark_of(tmp_path / "moved") is None


def test_a_copy_of_another_home_takes_nothing_over_however_often_it_is_read(shared: Database, tmp_path: Path) -> None:
    """Hers lies on another host: its path means nothing here."""
    hers, his = a_home(tmp_path / "hers" / "runs"), a_home(tmp_path / "his" / "runs")
    a_finished_run(hers)
    stale = shutil.copytree(hers / "default" / UID, his / "default" / UID)
    (stale / "journal" / "1-node7-rank0.jsonl").unlink()
    ingest_all(shared, hers)
    before = contents(shared)
    hers.parent.rename(tmp_path / "on another host")

    reports = [ingest_all(shared, his) for _ in range(2)]

    assert contents(shared) == before
    for report in reports:
        assert f"run {UID} is in the store already, from {hers}/default/{UID} of another home" in report.problems[0]
    (tmp_path / "on another host").rename(hers.parent)
    assert ingest_all(shared, hers).problems == ()
    assert contents(shared) == before == fresh(tmp_path, hers)


def test_a_home_that_moved_is_read_on_where_it_is_now(shared: Database, tmp_path: Path) -> None:
    hers = a_home(tmp_path / "hers" / "runs")
    a_finished_run(hers)
    ingest_all(shared, hers)
    now = hers.rename(tmp_path / "now")

    assert ingest_all(shared, now).problems == ()
    assert get_run(shared, UID).path == str(now / "default" / UID)
    assert contents(shared) == fresh(tmp_path, now)


def test_one_path_on_two_hosts_is_two_places(shared: Database, tmp_path: Path) -> None:
    here = tmp_path / "home" / "runs"
    for uid, other in ((HERS, "host a"), (HIS, "host b")):
        runs = a_home(here)
        Journal(make_run_dir(runs, uid), writer="launch").event("submitted", scheduler="slurm", job_id="7")
        ingest_all(shared, runs)
        runs.parent.rename(tmp_path / other)
    (tmp_path / "host a").rename(here.parent)

    assert {record.uid: record.state for record in open_runs(shared)} == dict.fromkeys((HERS, HIS), State.PENDING)
    assert [record.uid for record in open_runs(shared, here)] == [HERS]
    assert list(runs_below(shared, here)) == [HERS]
    assert without_directory(shared, [here]) == []
    assert ingest_all(shared, here).problems == ()


def test_two_users_of_a_role_that_owns_the_tables_fill_one_store(
    postgres: object, new_database: object, tmp_path: Path
) -> None:
    """As docs/store.md says that a group does it."""
    from tests.cluster.postgres.server import Server  # noqa: PLC0415 - for its type alone

    assert isinstance(postgres, Server)
    assert callable(new_database)
    database = new_database()
    postgres.sql("CREATE ROLE team NOLOGIN; CREATE ROLE eve LOGIN IN ROLE team; CREATE ROLE bob LOGIN IN ROLE team")
    postgres.sql(f"ALTER DATABASE {database} OWNER TO team")
    for user in ("eve", "bob"):
        postgres.sql(f"ALTER ROLE {user} IN DATABASE {database} SET role = team")
    stores = {user: open_store(postgres.url(database, user=user)) for user in ("eve", "bob")}
    try:
        for user, uid in (("eve", HERS), ("bob", HIS)):
            runs = a_home(tmp_path / user)
            a_finished_run(runs, uid)
            ingest_all(stores[user], runs)

        assert {record.uid for record in open_runs(stores["bob"])} == set()
        assert get_run(stores["bob"], HERS).path == str(tmp_path / "eve" / "default" / HERS)
        assert contents(stores["eve"]) == contents(stores["bob"])
    finally:
        for store in stores.values():
            store.close()
        postgres.sql(f"DROP DATABASE {database} WITH (FORCE)")
        postgres.sql("DROP ROLE eve; DROP ROLE bob; DROP ROLE team")


@pytest.mark.parametrize("other", ["RUNS", "run_", "run%"])
def test_a_folder_whose_name_differs_in_case_or_looks_like_a_pattern_is_another(
    store: Database, tmp_path: Path, other: str
) -> None:
    for folder, uid in (("runs", HERS), (other, HIS)):
        make_run_dir(tmp_path / folder, uid)
        ingest_all(store, tmp_path / folder)

    assert list(runs_below(store, tmp_path / "runs")) == [HERS]
    assert list(runs_below(store, tmp_path / other)) == [HIS]
    assert [record.uid for record in open_runs(store, tmp_path / other)] == [HIS]
