"""What a look at runs costs in which nothing is new: no file is opened, nothing is locked, nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, ingest_run
from hpcml.store.news import IngestReport
from hpcml_client.journal import JournalWriter
from tests.store.building import Journal, make_run_dir

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
    def writing() -> None:
        pytest.fail("nothing is new, and yet the store was to be written")

    monkeypatch.setattr(store, "writing", writing)


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

    again, one = ingest_all(store, runs), ingest_run(store, run_dir)

    assert (first.runs, first.new_points) == (30, 30)
    assert (again, one) == (IngestReport(runs=30), IngestReport(runs=1))
    assert [path for path in opened if path.is_relative_to(runs / "default")] == []


def test_a_torn_end_and_a_foreign_journal_are_no_reason_to_write(
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
