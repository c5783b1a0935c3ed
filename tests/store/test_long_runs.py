"""Runs of many points and many writers, read at once and as they grow."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.news import IngestReport
from hpcml.store.opening import open_store
from hpcml.store.query import get_run
from hpcml_client.journal import JournalWriter
from tests.store.building import Journal, contents, curve, make_run_dir
from tests.store.test_ingest import fresh

UID = "20260528-202640-aaaaaa"


def ranks(runs: Path, *, count: int, steps: int) -> None:
    run_dir = make_run_dir(runs)
    for rank in range(count):
        journal = Journal(run_dir, writer=f"rank{rank}")
        for step in range(steps):
            journal.metrics(step, loss=float(10 * step + rank), **{f"own.{rank}": float(step)})


def test_a_curve_of_many_writers_is_the_same_however_it_came(store: Database, runs: Path, tmp_path: Path) -> None:
    ranks(runs, count=4, steps=200)
    ingest_all(store, runs)
    for rank in (3, 0):
        path = runs / "default" / UID / "journal" / f"1-node7-rank{rank}.jsonl"
        with path.open("a") as file:
            for step in range(200, 210):
                file.write(json.dumps({"k": "m", "s": step, "t": 1.0, "i": step, "v": {"loss": step}}) + "\n")
        ingest_all(store, runs)

    assert get_run(store, UID).metrics["loss"].n == 210
    assert contents(store) == fresh(tmp_path, runs)


def test_of_a_run_that_grows_only_what_is_new_is_read(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = make_run_dir(runs)
    journal = Journal(run_dir)
    journal.metrics(0, loss=1.0, val=math.nan)
    agent = Journal(run_dir, writer="agent")
    agent.event("attempt_started")
    ingest_all(store, runs)
    with store.writing() as connection:  # which is not read again
        connection.exec_driver_sql("UPDATE point SET t_ms = 4711")
    for step in range(1, 10):
        journal.metrics(step, float(step), loss=1.0 / (step + 1), val=0.5 if step % 2 else math.nan, new=1.0)
    agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)

    assert ingest_all(store, runs).new_points == 27
    assert [point.t_s for point in curve(store, UID, "loss")][:2] == [4.711, 1.0]
    assert get_run(store, UID) == get_run(fresh_store(tmp_path, runs), UID)


def fresh_store(tmp_path: Path, runs: Path) -> Database:
    store = open_store(str(tmp_path / "fresh.db"))
    ingest_all(store, runs)
    return store


@pytest.mark.nightly("long")
def test_a_run_with_a_million_points_is_whole(runs: Path, store: Database) -> None:
    run_dir = make_run_dir(runs)
    for rank in range(2):
        with JournalWriter.open(str(run_dir.journals), run=UID, writer=f"rank{rank}") as journal:
            for step in range(100_000):
                journal.metrics(step, {f"{rank}.{name}": step / 7 for name in "abcde"})

    assert ingest_all(store, runs) == IngestReport(runs=1, new_points=1_000_000)
    run = get_run(store, UID)
    assert len(run.metrics) == 10
    assert {(metric.n, metric.last, metric.last_step) for metric in run.metrics.values()} == {
        (100_000, 99_999 / 7, 99_999)
    }
    assert (run.lost_records, run.bad_lines) == (0, 0)
    assert ingest_all(store, runs) == IngestReport(runs=1)
