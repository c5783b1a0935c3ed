"""What a report of RUNS runs of STEPS steps costs, beside a comparison of them and MLflow's search of the same runs.

RUNS run directories are written as `hpcml run` and its agent leave them (three precisions, five seeds), and read into a
fresh store. Then are measured, as whole commands from the shell, wall and CPU time:

- `hpcml report`, as HTML with all curves, and how large the file is; as Markdown;
- `hpcml compare --by precision`;
- with ``--mlflow``: `hpcml export --to mlflow` of the same runs, then a program that asks MLflow for all of them by
  ``search_runs`` and takes the mean accuracy of each precision, which is the least that a comparison needs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hpcml_command import command_of
from store_at_size import command_s, filled_store

RUNS, STEPS = 200, 1000
SEARCH = """
import sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
found = mlflow.MlflowClient().search_runs(
    [each.experiment_id for each in mlflow.MlflowClient().search_experiments()], max_results=50000
)
assert len(found) == int(sys.argv[2]), len(found)
by = {}
for run in found:
    by.setdefault(run.data.params["precision.name"], []).append(run.data.metrics["val_accuracy"])
print({name: sum(values) / len(values) for name, values in by.items()})
"""


def main() -> None:
    """Write the runs, time the commands and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mlflow", action="store_true", help="needs hpcml[mlflow]")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hpcml-report-"))
    try:
        measure(folder, options.runs, options.steps, with_mlflow=options.mlflow)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, runs: int, steps: int, *, with_mlflow: bool) -> None:
    filled_store(folder, runs, 2, steps)
    environ = {**os.environ, "HPCML_HOME": str(folder), "COLUMNS": "120"}
    hpcml = command_of()
    page, text = folder / "report.html", folder / "report.md"
    rows = [
        ("hpcml report", command_s([hpcml, "report", "-o", str(page)], environ)),
        ("hpcml report --md", command_s([hpcml, "report", "--md", "-o", str(text)], environ)),
        ("hpcml compare --by precision", command_s([hpcml, "compare", "--by", "precision"], environ)),
    ]
    if with_mlflow:
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        export = [hpcml, "export", "--to", "mlflow", "-o", uri]
        subprocess.run(export, env=environ, check=True, capture_output=True)
        words = [sys.executable, "-c", SEARCH, uri, str(runs)]
        rows.append(("MLflow: search_runs and means", command_s(words, {**environ, "MLFLOW_LOGGING_LEVEL": "ERROR"})))
    print(f"{runs} runs x {steps} steps, report.html {page.stat().st_size / 1e6:.1f} MB")
    for what, (wall_s, cpu_s) in rows:
        print(f"{what:32} wall {wall_s:6.2f} s   CPU {cpu_s:6.2f} s")


if __name__ == "__main__":
    main()
