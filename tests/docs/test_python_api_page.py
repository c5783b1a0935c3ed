from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import files_of

from tests.store.building import Journal, make_run_dir


def execute(name: str, folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Execute the file *name* of the page in *folder*."""
    (folder / name).write_text(files_of("python-api.md")[name], encoding="utf-8")
    return subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_example_of_submitting_runs_as_it_stands(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    done = execute("submit.py", tmp_path, hpcml_environ)

    first, script, *lines = done.stdout.splitlines()
    ended, (values, *comparison) = lines[:4], lines[4:]
    assert first == "4 fp32 ('model=mnist_mlp', 'experiment=notebook', 'training.steps=40', 'precision=tf32', 'seed=1')"
    assert script == "#!/bin/bash"
    assert sorted(ended) == ["COMPLETED 0", "COMPLETED 0", "COMPLETED 1", "COMPLETED 1"], done.stderr
    assert values == "[(0, 'fp32'), (1, 'fp32'), (0, 'tf32'), (1, 'tf32')]"  # as composed
    assert comparison[0].startswith("4 runs by precision"), comparison
    assert any(line.startswith("| tf32 ") for line in comparison)


def test_the_example_of_searching_runs_as_it_stands(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    done = execute("search.py", tmp_path, hpcml_environ)

    *looks, best = done.stdout.splitlines()
    assert looks[-1] == "6 submitted, 0 under way", done.stderr
    assert best.startswith("[(")


def test_the_example_of_functions_runs_as_it_stands(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    done = execute("functions.py", tmp_path, hpcml_environ)

    results, *comparison = done.stdout.splitlines()
    assert results == "[0.9, 0.91, 0.5, 0.51]", done.stderr
    assert comparison[0].startswith("4 runs by lr"), comparison
    assert any(line.startswith("| 0.5 ") for line in comparison)


def test_the_example_of_the_python_api_runs_as_it_stands(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    if "CI" not in os.environ:
        pytest.importorskip("pandas", reason="the example makes a frame")
    for seed, letter in enumerate("ab"):
        run_dir = make_run_dir(Path(hpcml_environ["HPCML_HOME"]) / "runs", f"20260528-202640-{letter * 8}", seed=seed)
        journal, agent = Journal(run_dir), Journal(run_dir, writer="agent")
        for step in range(3):
            journal.metrics(step, step, val_accuracy=0.9 + seed / 100)
        agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)

    done = execute("look.py", tmp_path, hpcml_environ)

    assert done.stdout.splitlines() == [
        "2 runs",
        "1 COMPLETED 0.91",
        "0 COMPLETED 0.9",
        "{'tf32': 2}",
        "[0, 1, 2]",
        "6",
    ], done.stderr
