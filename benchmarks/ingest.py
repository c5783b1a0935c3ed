"""How fast journals become rows: hpcml's ingest into a fresh store, against SQLite alone with the same rows.

RUNS run directories with one journal each are written, METRICS values a record, STEPS records: 300,000 points. hpcml
reads and checks their JSON, sorts them into series, writes points and summaries and moves its cursors. The peer is
handed the finished tuples and does one `executemany` for each series into the same table (WITHOUT ROWID, same key),
one transaction a run: that is the floor for any program that puts these rows there. CPU time, median of REPEAT.

Then 1,000 runs with a short journal each are ingested, and ingested again with nothing new: what every `hpcml runs`
pays before it answers. Last, all of them are loaded as the runs that have not ended, SETTINGS settings each, and what
their schedulers said last with them: what `hpcml status` pays on top.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hpcml.model.records import Known
from hpcml.model.state import State
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import open_runs
from hpcml.store.scheduler_polls import keep_words
from hpcml.store.scheduler_words import read_words
from hpcml_client.journal import JournalWriter

RUNS, STEPS, METRICS = 100, 600, 5
MANY_RUNS = 1000
SETTINGS = 100
REPEAT = 3
TABLE = """CREATE TABLE point (series_id INTEGER NOT NULL, step BIGINT NOT NULL, t_ms BIGINT NOT NULL, value FLOAT,
PRIMARY KEY (series_id, step)) WITHOUT ROWID"""


def write_runs(root: Path, count: int, steps: int) -> None:
    for number in range(count):
        uid = f"20261121-{number:06d}-bench2"
        folder = root / "benchmark" / uid
        (folder / "journal").mkdir(parents=True)
        with JournalWriter.open(str(folder / "journal"), run=uid, writer="rank0") as journal:
            for step in range(steps):
                journal.metrics(step, {f"metric_{m}": (step * METRICS + m) / 7 for m in range(METRICS)})
        run = {
            "experiment": "benchmark",
            "seed": number,
            "model": {"recipe": "torch_classification"},
            "precision": {"name": "fp32"},
            "cluster": {"scheduler": "local"},
            "settings": {f"setting_{at}": at for at in range(SETTINGS - 5)},
        }
        manifest = {
            "format": 1,
            "uid": uid,
            "spec_hash": "0" * 16,
            "run": run,
            "plan": {"numerics": "native"},
            "provenance": {"submitted_at": "2026-11-21T00:00:00+00:00"},
        }
        (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")


def ingest_cpu_s(root: Path, path: Path) -> tuple[float, int]:
    """Return the CPU time of bringing all below *root* into the empty store at *path*, and the points."""
    store = open_store(str(path))
    began = time.process_time()
    report = ingest_all(store, root)
    took_s = time.process_time() - began
    store.close()
    if report.problems:
        raise SystemExit(f"not everything was read: {report.problems[0]}")
    return took_s, report.new_points


def stored_points(store: Path) -> Iterator[list[tuple[int, int, int, float]]]:
    """Yield the points of each series as the store has them."""
    with sqlite3.connect(store) as connection:
        for (series,) in connection.execute("SELECT DISTINCT series_id FROM point").fetchall():
            yield connection.execute("SELECT * FROM point WHERE series_id = ?", (series,)).fetchall()


def bare_cpu_s(series: list[list[tuple[int, int, int, float]]], file: Path) -> float:
    """Return the CPU time of inserting the finished tuples with SQLite's own module."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(TABLE)
    began = time.process_time()
    for first in range(0, len(series), METRICS):
        connection.execute("BEGIN IMMEDIATE")
        for rows in series[first : first + METRICS]:
            connection.executemany("INSERT INTO point VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    took_s = time.process_time() - began
    connection.close()
    return took_s


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_runs(folder / "runs", RUNS, STEPS)
        measured = [ingest_cpu_s(folder / "runs", folder / f"{number}.db") for number in range(REPEAT)]
        ours_s, points = statistics.median(took for took, _ in measured), measured[0][1]
        series = list(stored_points(folder / "0.db"))
        bare_s = statistics.median(bare_cpu_s(series, folder / f"bare{number}.db") for number in range(REPEAT))
        print(f"| {points:,} points of {RUNS} runs | CPU s | points per CPU-second | ratio |")
        print("|---|---:|---:|---:|")
        print(f"| sqlite3.executemany of finished tuples | {bare_s:.2f} | {points / bare_s:,.0f} | 1 |")
        print(
            f"| hpcml: journals read, checked, stored | {ours_s:.2f} | {points / ours_s:,.0f} | {ours_s / bare_s:.1f} |"
        )

        write_runs(folder / "many", MANY_RUNS, 10)
        ingest_cpu_s(folder / "many", folder / "many.db")
        store = open_store(str(folder / "many.db"))
        took_ms = []
        for _ in range(2 * REPEAT + 1):
            began = time.perf_counter()
            report = ingest_all(store, folder / "many")
            took_ms.append((time.perf_counter() - began) * 1000)
        uids = [record.uid for record in open_runs(store)]
        keep_words(store, {uid: Known(state=State.RUNNING, raw="RUNNING") for uid in uids}, at=0.0)
        loaded_ms = []
        for _ in range(2 * REPEAT + 1):
            began = time.perf_counter()
            found, said = open_runs(store), read_words(store, uids)
            loaded_ms.append((time.perf_counter() - began) * 1000)
            if not len(found) == len(said) == MANY_RUNS:
                raise SystemExit(f"of {MANY_RUNS} runs only {len(found)} came back, with {len(said)} words")
        print(
            f"\nAgain over {report.runs:,} runs with nothing new: {statistics.median(took_ms):.0f} ms (wall, median)."
        )
        print(f"Loaded with their schedulers' words: {statistics.median(loaded_ms):.0f} ms.")


if __name__ == "__main__":
    main()
