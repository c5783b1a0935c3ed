"""The worked examples of CONTRIBUTING.md and docs/plugins.md, used in a copy of hpcml as a user would."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pages import ROOT, files_of

from tests.store.building import Journal, make_run_dir

PAGES = ("../CONTRIBUTING.md", "plugins.md")
_CHANGE = re.compile(r"<!-- change: (\S+) -->\n```diff\n(.*?)\n```", re.DOTALL)
_COPIED = ("hpcml", "hpcml_client", "hpcml_train", "conf", "recipes", "containers")
_OF_A_RECIPE = "recipes/mine/"
TSP = """#!{python}
import os, subprocess, sys
from pathlib import Path

jobs = Path(os.environ["TSP_JOBS"])
if sys.argv[1] == "-l":
    print("ID   State      Output               E-Level  Times(r/u/s)   Command [run=0/1]")
    for job in sorted(jobs.iterdir()):
        label, *command = (job / "command").read_text().split()
        ended = (job / "code").exists()
        done = ["finished", "/tmp/ts-out", (job / "code").read_text().strip(), "0.1/0.0/0.0"] if ended else []
        print(job.name, *(done or ["running", "/tmp/ts-out"]), f"[{{label}}]{{command[0]}}", *command[1:])
elif sys.argv[1] == "-L":
    job = jobs / str(len(list(jobs.iterdir())))
    job.mkdir()
    (job / "command").write_text(" ".join(sys.argv[2:]))
    wait = '"$@" > "$0/output" 2>&1; echo $? > "$0/code.draft"; mv "$0/code.draft" "$0/code"'
    subprocess.Popen(["setsid", "bash", "-c", wait, job, *sys.argv[3:]], stdin=-3, stdout=-3, stderr=-3)
    print(job.name)
else:
    sys.exit("not known here: " + sys.argv[1])
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of hpcml with everything that the page says."""
    copy = tmp_path_factory.mktemp("changed")
    for name in _COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in [file for page in PAGES for file in files_of(page).items()]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text, encoding="utf-8")
    for name, change in changes():
        if not name.startswith(_OF_A_RECIPE):
            apply(change, copy / name)
    return copy


def changes() -> list[tuple[str, str]]:
    return _CHANGE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def apply(change: str, path: Path) -> None:
    """Make *change*, whose old lines the file must have once."""
    lines = change.split("\n")
    old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} has changed: {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def lab(changed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package, installed by pip into a folder of its own; hpcml itself is as it is."""
    site = tmp_path_factory.mktemp("lab")
    words = ["pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *words, str(changed / "hpcml-lab")], check=True, timeout=300)
    return site


def python(copy: Path, environ: Mapping[str, str], cwd: Path, *words: str) -> str:
    """Return what the changed hpcml prints."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT), str(ROOT / "tests" / "report")])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def hpcml(copy: Path, environ: Mapping[str, str], cwd: Path, *words: str) -> str:
    return python(copy, environ, cwd, "-c", "from hpcml.cli.main import main; main()", *words)


def test_a_new_recipe_takes_the_option_that_was_given_to_it(
    changed: Path, hpcml_environ: dict[str, str], tmp_path: Path
) -> None:
    hpcml(changed, hpcml_environ, tmp_path, "new", "recipe", "mine")
    for name, change in changes():
        if name.startswith(_OF_A_RECIPE):
            apply(change, tmp_path / name)

    said = hpcml(changed, hpcml_environ, tmp_path, "recipes", "mine")

    assert "hidden layers" in said
    assert "mine" in hpcml(changed, hpcml_environ, tmp_path, "run", "-n", "model=mine", "+model.options.depth=2")


def test_a_new_column_stands_in_text_and_data(changed: Path, hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    code = (
        "from hpcml.report.comparison import comparison_document as made; from report_values import comparison;"
        "from hpcml.report.render import data, terminal, markdown; import sys; document = made(comparison());"
        "print({'text': terminal.as_text, 'csv': data.as_csv, 'md': markdown.as_markdown}[sys.argv[1]](document))"
    )

    assert "of ended (%)" in " ".join(python(changed, hpcml_environ, tmp_path, "-c", code, "text").split())
    assert "of ended (%)" in python(changed, hpcml_environ, tmp_path, "-c", code, "md")
    lines = list(csv.DictReader(python(changed, hpcml_environ, tmp_path, "-c", code, "csv").splitlines()))
    assert all(0 <= float(line["share_ok"]) <= 100 for line in lines)


def make_two_runs(environ: Mapping[str, str]) -> None:
    for letter, state in (("a", "COMPLETED"), ("b", "FAILED")):
        run_dir = make_run_dir(Path(environ["HPCML_HOME"]) / "runs", f"20260528-202640-{letter * 8}")
        Journal(run_dir).metrics(1, 1, val_accuracy=0.9)
        code = 0 if state == "COMPLETED" else 1
        Journal(run_dir, writer="agent").event("attempt_ended", 10.0, state=state, exit_code=code, wall_s=10.0)


def test_a_packages_format_is_exported(lab: Path, hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    make_two_runs(hpcml_environ)

    hpcml(lab, hpcml_environ, tmp_path, "export", "--to", "jsonl", "-o", "runs.jsonl")
    hpcml(lab, hpcml_environ, tmp_path, "export", "--to", "jsonl", "-o", "runs.jsonl")  # knows its own file again

    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(line["state"] for line in lines) == ["COMPLETED", "FAILED"]
    assert all(line["last"] == {"val_accuracy": 0.9} for line in lines)


def test_a_packages_sampler_gives_metrics(lab: Path, hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    words = ["telemetry.samplers=[load]", "telemetry.interval=100ms", "schedule.snapshot=none"]

    hpcml(lab, hpcml_environ, tmp_path, "run", *words, "workload.command=sleep 1")

    (run,) = json.loads(hpcml(lab, hpcml_environ, tmp_path, "runs", "--json"))
    assert run["state"] == "COMPLETED"
    assert run["metrics"]["load.one_minute"]["n"] > 1


def test_a_new_precision_is_planned_listed_and_proven(
    changed: Path, hpcml_environ: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="the example is emulated in torch")
    words = ["model=linear_mse", "precision=fp8_e3m4", "training.steps=5"]

    assert "fp8_e3m4" in hpcml(changed, hpcml_environ, tmp_path, "recipes", "--matrix")
    hpcml(changed, hpcml_environ, tmp_path, "run", *words)

    (run,) = json.loads(hpcml(changed, hpcml_environ, tmp_path, "runs", "--json"))
    assert (run["state"], run["precision_effective"], run["numerics"]) == ("COMPLETED", "fp8_e3m4", "emulated")


def test_a_packages_scheduler_takes_runs_and_is_asked_for_them(
    lab: Path, hpcml_environ: dict[str, str], tmp_path: Path
) -> None:
    programs, jobs = tmp_path / "bin", tmp_path / "jobs"
    programs.mkdir()
    jobs.mkdir()
    (tmp_path / "conf" / "cluster").mkdir(parents=True)
    profile = files_of("plugins.md")["conf/cluster/lab.yaml"]
    (tmp_path / "conf" / "cluster" / "lab.yaml").write_text(profile, encoding="utf-8")
    (programs / "tsp").write_text(TSP.format(python=sys.executable), encoding="utf-8")
    (programs / "tsp").chmod(0o755)
    environ = {**hpcml_environ, "PATH": f"{programs}:{os.environ['PATH']}", "TSP_JOBS": str(jobs)}
    (tmp_path / "until_gate.sh").write_text('until [ -e "$1" ]; do sleep 0.1; done\n', encoding="utf-8")
    waiting = f"sh {tmp_path / 'until_gate.sh'} {tmp_path / 'gate'}"
    words = ["-m", "cluster=lab", "seed=0,1", f"workload.command={waiting}", "schedule.snapshot=none"]

    assert "tsp -L" in hpcml(lab, environ, tmp_path, "run", "-n", *words)
    hpcml(lab, environ, tmp_path, "run", *words)
    asked = json.loads(hpcml(lab, environ, tmp_path, "status", "--json"))
    (tmp_path / "gate").touch()
    hpcml(lab, environ, tmp_path, "wait", "--experiment", "default")

    assert [run["scheduler_state"] for run in asked] == ["running", "running"]
    runs = json.loads(hpcml(lab, environ, tmp_path, "runs", "--json"))
    assert [(run["state"], run["scheduler"], run["job_id"]) for run in sorted(runs, key=lambda run: run["job_id"])] == [
        ("COMPLETED", "tsp", "0"),
        ("COMPLETED", "tsp", "1"),
    ]
    said = hpcml(lab, environ, tmp_path, "doctor", "--cluster", "lab")
    assert [
        f"{what} of package hpcml-lab 0.1" in said for what in ("scheduler tsp", "sampler load", "exporter jsonl")
    ] == ([True] * 3)
