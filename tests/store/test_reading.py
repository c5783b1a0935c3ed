"""What a reader of the store is asked in SQL means the same in SQLite and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select

from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.reading import OverSqlalchemy
from hpcml.store.schema import RUN
from tests.store.building import make_run_dir

NAMES = ["plain", 'it\'s "quoted"', "ünïcode ☃", "50 %", ":name", "a\\b", "%(name)s"]


@pytest.fixture
def named(store: Database, runs: Path) -> Database:
    for number, name in enumerate(NAMES):
        make_run_dir(runs, f"run-{number:04d}", name=name, seed=number)
    ingest_all(store, runs)
    return store


def test_lists_hold_any_text_and_any_number_of_them(named: Database) -> None:
    many = [f"absent {number}" for number in range(30_000)]
    with named.reading() as reading:
        sql = "SELECT name FROM run WHERE name IN :names ORDER BY uid"
        assert reading.column(sql, names=[*many, *NAMES]) == NAMES
        assert reading.column(sql, names=()) == []
        assert reading.column("SELECT seed FROM run WHERE seed IN :seeds ORDER BY seed", seeds={0, 3}) == [0, 3]
        assert reading.column("SELECT seed FROM run WHERE seed NOT IN :seeds ORDER BY seed", seeds=range(5)) == [5, 6]
        assert len(reading.column("SELECT seed FROM run WHERE seed NOT IN :seeds", seeds=[])) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_a_value_whatever_stands_in_it(named: Database, name: str) -> None:
    with named.reading() as reading:
        assert reading.column("SELECT name FROM run WHERE name = :name", name=name) == [name]


def test_a_percent_sign_of_the_question_is_one(named: Database) -> None:
    with named.reading() as reading:
        assert reading.column("SELECT name FROM run WHERE name LIKE '50%' AND seed % 2 = :rest", rest=1) == ["50 %"]


def test_texts_are_joined_under_the_same_word(named: Database) -> None:
    with named.reading() as reading:
        ((joined,),) = reading.rows("SELECT group_concat(CAST(seed AS TEXT), ',') FROM run")
    assert sorted(joined.split(",")) == sorted(map(str, range(len(NAMES))))


def test_all_questions_of_a_reader_see_the_same_state_and_so_does_its_connection(named: Database, runs: Path) -> None:
    with named.reading() as reading:
        before = reading.column("SELECT count(*) FROM run")
        make_run_dir(runs, "run-later")
        ingest_all(named, runs)
        assert reading.connection.execute(select(func.count()).select_from(RUN)).scalar() == before[0]
        assert reading.column("SELECT count(*) FROM run") == before
    with named.reading() as reading:
        assert reading.column("SELECT count(*) FROM run") == [before[0] + 1]


def test_what_is_being_written_can_be_asked_in_the_same_way(named: Database) -> None:
    with named.writing() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE run SET seed = 99")
        assert set(OverSqlalchemy(connection).column("SELECT seed FROM run WHERE name IN :names", names=NAMES)) == {99}
