"""What is new is found without opening a file, and what has ended for good is not even looked into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, ingest_run
from hpcml.store.news import IngestReport, find_news
from hpcml.store.query import get_run
from hpcml_client.journal import JournalWriter
from tests.store.building import Journal, curve, make_run_dir

UID = "20260528-202640-aaaaaa"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Each file that is opened from now on."""
    paths: list[Path] = []
    really = os.open

    def note(path: str | Path, *words: int, **options: int) -> int:
        paths.append(Path(path))
        return really(path, *words, **options)

    monkeypatch.setattr(os, "open", note)
    return paths


def refuse_to_write(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def writing(_: Database) -> None:
        pytest.fail("nothing is new, and yet the store was to be written")

    monkeypatch.setattr(type(store), "writing", writing)


def long_ago(run_dir: RunDir) -> None:
    """Make the run look as if nothing was written in it for days."""
    for path in [*run_dir.path.rglob("*"), run_dir.path]:
        os.utime(path, (1_780_000_000, 1_780_000_000))


def ended(runs: Path) -> Journal:
    """A run that ended days ago."""
    run_dir = make_run_dir(runs)
    rank0, agent = Journal(run_dir), Journal(run_dir, writer="agent")
    rank0.metrics(0, loss=1.5)
    agent.event("attempt_started")
    agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)
    long_ago(run_dir)
    return rank0


def test_unchanged_runs_are_neither_opened_nor_written(
    store: Database, runs: Path, opened: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        run_dir = make_run_dir(runs, f"20260528-202640-{number:06d}")
        with JournalWriter.open(str(run_dir.journals), run=run_dir.uid, writer="rank0") as journal:
            journal.metrics(0, {"loss": 1.0})
    first = ingest_all(store, runs)
    opened.clear()
    refuse_to_write(store, monkeypatch)

    again = ingest_all(store, runs)

    assert (first.runs, first.new_points) == (30, 30)
    assert again == IngestReport(runs=30)
    assert [path for path in opened if path.is_relative_to(runs / "default")] == []


def test_a_torn_end_and_a_foreign_journal_are_no_reason_to_write_and_are_named_each_time(
    store: Database, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run_dir(runs)
    journal = Journal(run_dir)
    journal.metrics(0, loss=1.0)
    journal.write('{"s":1,"t":0.5,"k":"m"')  # killed in the middle of a line
    (run_dir.journals / "9-foreign.jsonl").write_text("nobody knows\n" * 10)
    (run_dir.journals / "9-empty.jsonl").touch()
    before = ingest_all(store, runs)
    refuse_to_write(store, monkeypatch)

    again = ingest_all(store, runs)

    assert len(again.problems) == 1
    assert again == IngestReport(runs=1, problems=before.problems)


def test_only_what_changed_is_opened(store: Database, runs: Path, opened: list[Path]) -> None:
    run_dirs = [make_run_dir(runs, f"20260528-202640-{number:06d}") for number in range(5)]
    journals = [Journal(run_dir) for run_dir in run_dirs]
    ingest_all(store, runs)
    journals[3].metrics(0, loss=1.0)
    opened.clear()

    assert ingest_all(store, runs).new_points == 1
    assert {path for path in opened if path.suffix == ".jsonl"} == {journals[3].path}


def test_a_run_that_ended_long_ago_is_looked_into_when_a_journal_is_added_and_on_request(
    store: Database, runs: Path
) -> None:
    journal = ended(runs)
    ingest_all(store, runs)
    journal.metrics(1, loss=0.5)  # by hand: no writer of ours goes on in a file

    assert ingest_all(store, runs) == IngestReport(runs=1)
    assert ingest_all(store, runs, is_anew=True).runs == 1
    assert [point.value for point in curve(store, UID, "loss")] == [1.5, 0.5]

    Journal(RunDir(journal.path.parents[1]), writer="user", attempt=0).event("tagged", tag="paper")

    assert ingest_all(store, runs).runs == 1
    assert get_run(store, UID).tags == ("paper",)


def test_many_runs_that_ended_are_noted_as_such_once_they_are_old(store: Database, runs: Path) -> None:
    for number in range(100):
        run_dir = make_run_dir(runs, f"20260528-202640-{number:06d}")
        Journal(run_dir, writer="agent").event("attempt_ended", 10.0, state="COMPLETED", exit_code=0)
    ingest_all(store, runs)
    assert not find_news(store, runs).is_any
    for path in (runs / "default").iterdir():
        long_ago(RunDir(path))
        stamp = (path / "run.json").stat()
        os.utime(path / "run.json", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    ingest_all(store, runs)  # their run.json has another time

    assert find_news(store, runs).closable == {}
    assert ingest_all(store, runs) == IngestReport(runs=100)


def test_one_run_is_read_again_as_often_as_one_likes(store: Database, runs: Path) -> None:
    journal = ended(runs)
    run_dir = RunDir(journal.path.parents[1])

    reports = [ingest_run(store, run_dir) for _ in range(3)]

    assert reports == [IngestReport(runs=1, new_points=1), IngestReport(runs=1), IngestReport(runs=1)]
