from __future__ import annotations

import shutil
from pathlib import Path

from sqlalchemy import func, select

from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, read_news
from hpcml.store.news import find_news
from hpcml.store.opening import open_store
from hpcml.store.rows import forget_run
from hpcml.store.schema import METADATA
from tests.store.building import Journal, contents
from tests.store.test_ingest import UID, a_finished_run, fresh

OTHER = UID[:-1] + "z"


def test_nothing_of_a_forgotten_run_stays_and_the_others_are_as_before(
    store: Database, runs: Path, tmp_path: Path
) -> None:
    a_finished_run(runs, OTHER)
    gone = a_finished_run(runs)
    Journal(gone, writer="rank1").metrics(1, only_here=1.0)
    ingest_all(store, runs)
    shutil.rmtree(gone.path)

    assert forget_run(store, UID)

    assert contents(store) == fresh(tmp_path, runs)
    assert rows_by_table(store) == rows_by_table_of_fresh(tmp_path, runs)
    assert not forget_run(store, UID)  # another hpcml may have been faster


def test_a_run_is_forgotten_once_more_known_if_its_directory_is_still_there(store: Database, runs: Path) -> None:
    a_finished_run(runs)
    ingest_all(store, runs)
    before = contents(store)
    forget_run(store, UID)

    ingest_all(store, runs)

    assert contents(store) == before


def rows_by_table(store: Database) -> dict[str, int]:
    with store.reading() as connection:
        return {
            name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
            for name, table in METADATA.tables.items()
            if name != "settings"  # which others may have, too
        }


def rows_by_table_of_fresh(tmp_path: Path, runs: Path) -> dict[str, int]:
    store = open_store(str(tmp_path / "counted.db"))
    ingest_all(store, runs)
    return rows_by_table(store)


def test_a_run_that_is_removed_while_it_is_looked_at_is_nothing_to_put_right(store: Database, runs: Path) -> None:
    removed, other = a_finished_run(runs), a_finished_run(runs, OTHER)
    news = find_news(store, runs)
    shutil.rmtree(removed.path)

    report = read_news(store, news, runs)

    assert (report.problems, report.runs) == ((), 1)
    other.manifest.unlink()
    assert [str(other.manifest) in problem for problem in ingest_all(store, runs).problems] == [True]
