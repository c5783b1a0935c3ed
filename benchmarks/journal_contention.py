"""Eight processes report eight metrics a record, as fast as they can, for five seconds: hpcml's journals, then MLflow.

hpcml: each process has `hpcml_client` write its own journal. MLflow: its own client, `mlflow.log_metrics`, with its
default of a local SQLite file, which all eight share. MLflow's store, experiment and runs are made beforehand by one
process, since several that start on an absent file at once get in each other's way while creating its tables.

    python benchmarks/journal_contention.py --mlflow-python /path/to/python-that-has-mlflow

Both write to the same temporary folder (--folder), a record is one call in both, and a process counts those that
returned without an exception. This is what a training loop feels, not what each tool can do in bulk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROCESSES = 8
SECONDS = 5.0
VALUES = {f"metric_{number}": number / 7 for number in range(8)}


def count_calls(record: Callable[[int], object], start_at: float) -> dict[str, float]:
    """Call *record* for SECONDS from *start_at*; return how many calls returned, raised, and the longest one."""
    time.sleep(max(0.0, start_at - time.time()))
    done, failed, longest_s = 0, 0, 0.0
    end_at = start_at + SECONDS
    while (began := time.time()) < end_at:
        try:
            record(done)
            done += 1
        except Exception:  # noqa: BLE001 - whatever a tool raises under load is a record that it lost
            failed += 1
        longest_s = max(longest_s, time.time() - began)
    return {"done": done, "failed": failed, "longest_s": longest_s}


def hpcml_worker(folder: str, number: int, start_at: float) -> dict[str, float]:
    import hpcml_client  # noqa: PLC0415 - MLflow's Python need not have it

    run_dir = Path(folder) / f"run{number}"
    run_dir.mkdir()
    with hpcml_client.connect({"HPCML_RUN_DIR": str(run_dir), "HPCML_RUN_ID": f"20261121-00000{number}-bench2"}) as run:
        return count_calls(lambda step: run.metrics(VALUES, step), start_at)


def mlflow_worker(folder: str, number: int, start_at: float) -> dict[str, float]:
    import mlflow  # noqa: PLC0415 - hpcml's Python need not have it

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    run_id = json.loads((Path(folder) / "runs.json").read_text(encoding="utf-8"))[number]
    with mlflow.start_run(run_id=run_id):
        return count_calls(lambda step: mlflow.log_metrics(VALUES, step=step), start_at)


def mlflow_prepare(folder: str, _number: int, _start_at: float) -> dict[str, float]:
    import mlflow  # noqa: PLC0415

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("contention")
    runs = [client.create_run(experiment).info.run_id for _ in range(PROCESSES)]
    (Path(folder) / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    print(mlflow.__version__, file=sys.stderr)
    return {}


WORKERS = {"hpcml": hpcml_worker, "mlflow": mlflow_worker, "mlflow-prepare": mlflow_prepare}


def start(python: str, worker: str, folder: str, number: int, start_at: float) -> subprocess.Popen[str]:
    argv = [python, __file__, "--worker", worker, "--folder", folder, "--number", str(number)]
    return subprocess.Popen(
        [*argv, "--start-at", repr(start_at)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def contend(python: str, worker: str, folder: str, *, warm_up_s: float) -> list[dict[str, float]]:
    """Run PROCESSES workers that begin together once all have imported what they need."""
    start_at = time.time() + warm_up_s
    workers = [start(python, worker, folder, number, start_at) for number in range(PROCESSES)]
    answers = [(process, *process.communicate()) for process in workers]
    for process, _, stderr in answers:
        if process.returncode:
            sys.exit(f"a {worker} worker failed:\n{stderr[-2000:]}")
    return [json.loads(stdout.splitlines()[-1]) for _, stdout, _ in answers]


def show(name: str, counts: list[dict[str, float]], reference: float | None) -> float:
    per_s = sum(count["done"] for count in counts) / SECONDS
    ratio = "1" if reference is None else f"1/{reference / per_s:,.0f}"
    slowest = min(count["done"] for count in counts) / SECONDS
    worst_ms = max(count["longest_s"] for count in counts) * 1000
    failed = sum(count["failed"] for count in counts)
    print(f"| {name} | {per_s:,.0f} | {ratio} | {slowest:,.1f} | {worst_ms:,.0f} | {failed:,.0f} |")
    return per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlflow-python", help="a Python that can import mlflow; without it only hpcml is measured")
    parser.add_argument("--folder", help="where to write; default: a temporary folder")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--start-at", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(WORKERS[given.worker](given.folder, given.number, given.start_at)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print("| store | records/s, all 8 | ratio | slowest process | longest call ms | failed calls |")
        print("|---|---:|---:|---:|---:|---:|")
        ours = show("hpcml, a journal each", contend(sys.executable, "hpcml", folder, warm_up_s=3), None)
        if given.mlflow_python:
            prepared = start(given.mlflow_python, "mlflow-prepare", folder, 0, 0.0)
            stderr = prepared.communicate()[1]
            if prepared.returncode:
                sys.exit(f"MLflow's store could not be made:\n{stderr[-2000:]}")
            version = stderr.split()[-1]
            theirs = contend(given.mlflow_python, "mlflow", folder, warm_up_s=45)
            show(f"MLflow {version}, one SQLite file", theirs, ours)


if __name__ == "__main__":
    main()
