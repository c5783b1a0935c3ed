"""Runs that are read in by the hundred: to the row what reading one by one stores, and in few statements."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

from sqlalchemy import event

from hpcml.runs.layout import find_run_dirs
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, ingest_run
from hpcml.store.opening import open_store
from hpcml.store.postgres import PostgresStore
from hpcml.store.query import find_runs
from hpcml.store.sqlite.file import SqliteStore
from hpcml_client.journal import JournalWriter
from tests.store.building import Journal, contents, make_run_dir


def varied_runs(runs: Path, count: int) -> None:
    """Write runs with two attempts, several writers of one curve, tags, lost and torn records, and one without any."""
    for number in range(count):
        run_dir = make_run_dir(runs, f"20260528-202640-{number:06d}")
        if number % 7 == 3:
            continue
        for attempt in range(1 + number % 2):
            with JournalWriter.open(str(run_dir.journals), run=run_dir.uid, writer="agent", attempt=attempt) as journal:
                journal.event("attempt_started", {"job_id": str(number)})
                journal.event("facts", {"hostname": "node1", "gpu_model": "A100", "cores": number})
                journal.event("checkpoint", {"step": 3})
                journal.event("attempt_ended", {"state": "COMPLETED", "exit_code": 0, "wall_s": 10.0 + number})
            for rank in range(2):
                with JournalWriter.open(
                    str(run_dir.journals), run=run_dir.uid, writer=f"rank{rank}", attempt=attempt
                ) as journal:
                    for step in range(5):
                        journal.metrics(step + 2 * attempt, {"loss": step / 7 + rank, "odd": float("nan")})
        with JournalWriter.open(str(run_dir.journals), run=run_dir.uid, writer="user") as journal:
            journal.event("tagged", {"tag": "paper"})
            journal.event("noted", {"text": "looks good", "author": "ada"})
        if number % 5 == 0:
            odd = Journal(run_dir, writer="rank7")
            odd.metrics(0, loss=1.0)
            odd.write("no record\n")
            odd.write('{"s":9,"t":0.5,"k":"m"')  # killed in the middle of a line
        (run_dir.journals / "9-foreign.jsonl").write_text("nobody knows\n", encoding="utf-8")


def test_the_rows_are_those_of_runs_read_one_by_one(store: Database, runs: Path, tmp_path: Path) -> None:
    varied_runs(runs, 20)
    with closing(open_store(str(tmp_path / "single.db"))) as single:
        report = ingest_all(store, runs)
        one_by_one = [ingest_run(single, run_dir) for run_dir in find_run_dirs(runs)]

        assert contents(store) == contents(single)
        assert report == sum(one_by_one[1:], one_by_one[0])
        assert find_runs(store) == find_runs(single)
        assert report.bad_lines
        assert report.problems
        assert ingest_all(store, runs).new_points == 0


def test_what_comes_later_is_added_to_what_was_read_together(store: Database, runs: Path, tmp_path: Path) -> None:
    varied_runs(runs, 6)
    ingest_all(store, runs)
    for run_dir in find_run_dirs(runs):
        with JournalWriter.open(str(run_dir.journals), run=run_dir.uid, writer="rank0", attempt=3) as journal:
            journal.metrics(1, {"loss": -1.0, "new": 2.0})

    report = ingest_all(store, runs)

    assert report.new_points == 12
    with closing(open_store(str(tmp_path / "fresh.db"))) as fresh:
        ingest_all(fresh, runs)
        assert contents(store) == contents(fresh)


def test_a_hundred_runs_take_few_statements(store: Database, runs: Path) -> None:
    varied_runs(runs, 100)
    told: Counter[str] = Counter()
    assert isinstance(store, SqliteStore | PostgresStore)

    @event.listens_for(store._engine, "before_cursor_execute")
    def _note(_connection, _cursor, statement, *_words):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN002, ANN202
        told[statement.split()[0]] += 1

    ingest_all(store, runs)

    assert told.total() < 50, told
    assert told["BEGIN"] < 5, told
    assert len(find_runs(store)) == 100
