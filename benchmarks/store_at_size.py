"""What a store of RUNS runs answers, and how fast; and how many bytes a point takes in one of POINTS points.

RUNS run directories are written, as `hpcml run` and its agent leave them (three precisions, five seeds, STEPS values of
two metrics), and read into a fresh store. Then are measured:

- the last accuracy of 400 of the runs: the SQL alone;
- `hpcml runs` with two conditions and a limit, and `hpcml compare --by precision`: whole commands, from the shell;
- with ``--reframe PROGRAM``: ReFrame's ``--performance-compare`` of as many test cases, in 100 sessions of its store.

``--points`` measures the bytes of a point instead, which takes minutes and a gigabyte.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml_client.journal import JournalWriter

RUNS, STEPS, SETTINGS = 10_000, 20, 100
CHOSEN = 400
POINT_RUNS, POINT_METRICS, POINT_STEPS = 1000, 5, 2000
REPEAT = 5
PRECISIONS = ("fp32", "tf32", "amp_bf16")
LAST = """SELECT run.uid, summary.last FROM summary
JOIN run ON run.id = summary.run_id JOIN metric ON metric.id = summary.metric_id
WHERE metric.name = 'val_accuracy' AND run.id IN ({})"""
SESSIONS = 100


def write_run(root: Path, number: int, names: list[str], steps: int) -> None:
    """Write one run directory with *steps* values of each metric."""
    uid = f"20261121-{number:06d}-bench4"
    folder = root / "benchmark" / uid
    (folder / "journal").mkdir(parents=True)
    with JournalWriter.open(str(folder / "journal"), run=uid, writer="rank0") as journal:
        for step in range(steps):
            journal.metrics(step, dict.fromkeys(names, (step + number % 7) / 7 + 0.1))
        journal.metrics(steps, {"val_accuracy": 0.9 + number % 97 / 1000})
    with JournalWriter.open(str(folder / "journal"), run=uid, writer="agent") as journal:
        journal.event("attempt_started", {"job_id": str(number)})
        journal.event("facts", {"hostname": "node1", "gpu_model": "NVIDIA A100", "torch": "2.13.0"})
        journal.event("attempt_ended", {"state": "COMPLETED", "exit_code": 0, "wall_s": 10.0})
    run: dict[str, Any] = {
        "experiment": "benchmark",
        "seed": number // len(PRECISIONS) % 5,
        "model": {"name": "mnist_cnn", "recipe": "image_classification"},
        "precision": {"name": PRECISIONS[number % len(PRECISIONS)]},
        "cluster": {"name": "local", "scheduler": "local"},
        "objective": {"metric": "val_accuracy", "goal": "max", "margin": 0.02},
        "training": {"batch_size": 64, "steps": steps},
        "settings": {f"setting_{at}": at for at in range(SETTINGS - 12)},
    }
    manifest = {
        "format": 1,
        "uid": uid,
        "spec_hash": f"{number % 15:016x}",
        "run": run,
        "plan": {"numerics": "native"},
        "provenance": {"submitted_at": "2026-11-21T00:00:00+00:00"},
    }
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")


def filled_store(home: Path, runs: int, metrics: int, steps: int) -> Path:
    for number in range(runs):
        names = ["loss", "step_time_s", *(f"metric_{at}" for at in range(metrics - 2))]
        write_run(home / "runs", number, names, steps)
    path = home / "store.db"
    store = open_store(str(path))
    report = ingest_all(store, home / "runs")
    store.close()
    if report.problems or report.runs != runs:
        raise SystemExit(f"not everything was read: {report}")
    return path


def last_values_ms(path: Path) -> float:
    """Return the time of the SQL that finds the last accuracies of `CHOSEN` runs, spread over the store."""
    with sqlite3.connect(path) as connection:
        ids = [row[0] for row in connection.execute("SELECT id FROM run")][:: RUNS // CHOSEN]
        query = LAST.format(",".join(map(str, ids)))
        took_ms = []
        for _ in range(4 * REPEAT + 1):
            began = time.perf_counter()
            found = connection.execute(query).fetchall()
            took_ms.append((time.perf_counter() - began) * 1000)
    if len(found) != CHOSEN:
        raise SystemExit(f"{len(found)} of {CHOSEN} values were found")
    return statistics.median(took_ms)


def command_s(words: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU time of a command, each the median of `REPEAT`."""
    walls, cpus = [], []
    for _ in range(REPEAT):
        before, began = os.times(), time.perf_counter()
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        walls.append(time.perf_counter() - began)
        after = os.times()
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
        if done.returncode != 0:
            raise SystemExit(f"{words[0]}: {done.stdout}{done.stderr}")
    return statistics.median(walls), statistics.median(cpus)


def fill_reframe(program: str, environ: dict[str, str], file: Path) -> None:
    """Have ReFrame make its store, and put `RUNS` test cases into it as it stores them."""
    subprocess.run([program, "--list-stored-sessions"], env=environ, check=True, capture_output=True)
    each = RUNS // SESSIONS
    with sqlite3.connect(file) as connection:
        for session in range(SESSIONS):
            name, at = str(uuid.UUID(int=session + 1)), 1_796_000_000.0 + session
            cases = [test_case(session * each + case, f"{name}:0:{case}", at) for case in range(each)]
            times = {"time_start_unix": at, "time_end_unix": at, "time_start": "x", "time_end": "x"}
            blob = json.dumps({"session_info": {"uuid": name, **times}, "runs": [{"run_index": 0, "testcases": cases}]})
            connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, '')", (name, at, at, blob))
            rows = [(case["name"], "sys", "gpu", "env", at, name, case["uuid"]) for case in cases]
            connection.executemany("INSERT INTO testcases VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def test_case(number: int, name: str, at: float) -> dict[str, Any]:
    precision = PRECISIONS[number % len(PRECISIONS)]
    return {
        "uuid": name,
        "name": f"Train_{precision}",
        "unique_name": f"Train_{precision}",
        "hashcode": f"{number % 3:08x}",
        "system": "sys",
        "partition": "gpu",
        "environ": "env",
        "result": "pass",
        "job_completion_time_unix": at,
        "job_nodelist": ["node1"],
        "check_vars": {f"setting_{setting}": setting for setting in range(SETTINGS)},
        "perfvalues": {"sys:gpu:accuracy": [0.9 + number % 97 / 1000, 0, None, None, "1", "pass"]},
    }


def answers(folder: Path, reframe: str | None) -> None:
    path = filled_store(folder / "home", RUNS, 2, STEPS)
    environ = {**os.environ, "HPCML_HOME": str(folder / "home"), "HPCML_STORE": str(path)}
    hpcml = [sys.executable, "-c", "from hpcml.cli.start import main; main()"]
    where = "precision=tf32 and val_accuracy>0.95"
    listed = command_s([*hpcml, "runs", "--where", where, "--limit", "20"], environ)
    compared = command_s([*hpcml, "compare", "--by", "precision"], environ)
    print(f"| of {RUNS:,} runs | wall s | CPU s |\n|---|---:|---:|")
    print(f"| the last accuracy of {CHOSEN} (SQL alone) | {last_values_ms(path) / 1000:.4f} | |")
    print(f"| `hpcml runs --where '{where}' --limit 20` | {listed[0]:.2f} | {listed[1]:.2f} |")
    print(f"| `hpcml compare --by precision` | {compared[0]:.2f} | {compared[1]:.2f} |")
    if reframe is None:
        return
    file = folder / "reframe" / "results.db"
    file.parent.mkdir()
    environ |= {"RFM_ENABLE_RESULTS_STORAGE": "yes", "RFM_SQLITE_DB_FILE": str(file)}
    fill_reframe(reframe, environ, file)
    period = "20260101T0000+0000:20281231T0000+0000"
    spec = f"{period}/{period}/mean:/"
    wall_s, cpu_s = command_s([reframe, f"--performance-compare={spec}"], environ)
    print(f"| ReFrame `--performance-compare`, two aggregates of all | {wall_s:.2f} | {cpu_s:.2f} |")


def bytes_of_a_point(folder: Path) -> None:
    path = filled_store(folder / "home", POINT_RUNS, POINT_METRICS, POINT_STEPS)
    journals = sum(file.stat().st_size for file in (folder / "home").glob("runs/*/*/journal/*rank0.jsonl"))
    with sqlite3.connect(path) as connection:
        connection.execute("VACUUM")
        points = connection.execute("SELECT count(*) FROM point").fetchone()[0]
    size = path.stat().st_size
    print(f"{points:,} points: {size / points:.1f} bytes each in the store, {journals / points:.1f} in the journals")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reframe", metavar="PROGRAM", help="ReFrame's command, to be measured beside ours")
    parser.add_argument("--points", action="store_true", help="measure the bytes of a point instead")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        bytes_of_a_point(folder) if chosen.points else answers(folder, chosen.reframe)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
