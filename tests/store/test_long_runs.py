"""Runs of many stretches and many writers: read in pieces, summed up once, right wherever the reader is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.store import ingest
from hpcml.store import ingest as part_summaries
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.news import IngestReport
from hpcml.store.query import curve, get_run
from hpcml_client.journal import JournalWriter
from tests.store.building import Journal, contents, make_run_dir
from tests.store.test_ingest import fresh

UID = "20260528-202640-aaaaaa"


def ranks(runs: Path, *, count: int, steps: int) -> None:
    run_dir = make_run_dir(runs)
    for rank in range(count):
        journal = Journal(run_dir, writer=f"rank{rank}")
        for step in range(steps):
            journal.metrics(step, loss=float(10 * step + rank), **{f"own.{rank}": float(step)})


@pytest.fixture
def read_whole(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each curve that is read from its beginning."""
    found: list[int] = []
    really = part_summaries._read_curve

    def note(connection, run_id, metric_id):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        found.append(metric_id)
        return really(connection, run_id, metric_id)

    monkeypatch.setattr(part_summaries, "_read_curve", note)
    return found


def test_a_curve_of_many_writers_is_summed_up_once_and_not_for_each_stretch(
    store: Database, runs: Path, tmp_path: Path, read_whole: list[int]
) -> None:
    ranks(runs, count=4, steps=200)

    report = ingest_all(store, runs, batch_bytes=500)  # some fifty stretches

    assert report.new_points == 1600
    assert len(read_whole) == 1
    assert get_run(store, UID).metrics["loss"].mean == 995.0
    assert contents(store) == fresh(tmp_path, runs)


@pytest.mark.parametrize("stretches", [1, 3, 20, 40])
def test_a_reader_killed_between_two_stretches_leaves_nothing_wrong(
    store: Database, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretches: int
) -> None:
    ranks(runs, count=3, steps=200)
    done = 0
    really = ingest._ingest_batch

    def dies(*words, **options):  # type: ignore[no-untyped-def] # noqa: ANN002, ANN003, ANN202
        nonlocal done
        if done == stretches:
            raise KeyboardInterrupt
        done += 1
        return really(*words, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_ingest_batch", dies)
        with pytest.raises(KeyboardInterrupt):
            ingest_all(store, runs, batch_bytes=300)
    known = get_run(store, UID).metrics
    if "loss" in known:  # of what is there already, not of something else
        points = [point.value for point in curve(store, UID, "loss")]
        assert (known["loss"].n, known["loss"].last) == (len(points), points[-1])

    ingest_all(store, runs)

    assert contents(store) == fresh(tmp_path, runs)


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
