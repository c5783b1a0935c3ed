"""The stand-ins for W&B and MLflow report what hpcml reads from the files of the real libraries, of the same script."""

from __future__ import annotations

import gzip
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import hpcml_client
from hpcml.agent.metrics.wandb_log import WandbLog
from hpcml.runs.journal import Event, Metrics, read_journal
from tests.client.test_old_python import find_python310

_RECORDED = Path(__file__).parents[1] / "agent" / "recorded" / "wandb-0.31.0-script.wandb.gz"
Points = dict[tuple[str, int], float]
_WANDB = """
import argparse
run = wandb.init(project="p", config=argparse.Namespace(lr=0.1), settings=wandb.Settings(silent=True))
wandb.config.update({"depth": 2}, allow_val_change=True)
assert wandb.config.lr == wandb.config["lr"] == 0.1 and wandb.run is run
wandb.define_metric("loss", summary="min")
for i in range(3):
    wandb.log({"loss": 1 / (i + 1), "val": {"acc": i}, "ok": True, "words": "x", "none": None, "_mine": 1})
wandb.log({"a": 1.0}, commit=False)
wandb.log({"b": 2.0})
wandb.log({"c": 3.0}, step=10)
wandb.log({"d": 3.0}, step=10)
wandb.log({"d": 4.0}, step=10)
wandb.log({"late": 1.0}, step=5)
wandb.log({"e": 5.0})
wandb.log({"f": 5.0})
wandb.log({"g": 5.0}, step=20, commit=True)
wandb.log({"late": 5.0}, step=20)
wandb.log({"h": math.nan, "i": math.inf})
wandb.log({"global_step": 7, "epoch": 1, "j": 1})
wandb.log({"list": [1, 2], "histogram": wandb.Histogram([1, 2, 3])})
wandb.log({"k": 1})
assert run.step == 25, run.step
run.summary["best"] = 0.5
run.summary.update({"loss": 0.25})
wandb.finish()
assert wandb.run is None
try:
    wandb.log({"x": 1})
except wandb.Error as error:
    print(error)
with wandb.init(project="p", mode="disabled") as other:
    other.log({"late": 7})
"""
_OF_WANDB: Points = {
    **{("loss", i): 1 / (i + 1) for i in range(3)},
    **{("val/acc", i): i for i in range(3)},
    ("a", 3): 1,
    ("b", 3): 2,
    ("c", 10): 3,
    ("d", 10): 4,
    ("e", 10): 5,
    ("f", 11): 5,
    ("g", 20): 5,
    ("h", 21): math.nan,
    ("i", 21): math.inf,
    ("global_step", 22): 7,
    ("epoch", 22): 1,
    ("j", 22): 1,
    ("k", 24): 1,
}
_MLFLOW = """
mlflow.set_experiment("x")
with mlflow.start_run(run_name="a", tags={"team": "t"}) as run:
    mlflow.log_params({"lr": 0.1, "depth": 2})
    assert mlflow.log_param("width", 8) == 8
    for i in range(3):
        mlflow.log_metrics({"acc": i, "bad": math.nan}, step=i)
    mlflow.log_metric("once", True)
    for loss in (0.5, 0.25, 0.125):
        mlflow.log_metric("unnumbered", loss)
    with mlflow.start_run(nested=True):
        mlflow.log_metric("inner", 9, step=4)
    assert mlflow.active_run().info.run_id == run.info.run_id and run.info.run_name == "a"
    for bad in (lambda: mlflow.log_metric("t", "x"), mlflow.start_run):
        try:
            bad()
        except Exception as error:
            print(error)
        else:
            raise SystemExit("taken")
    mlflow.set_tag("seen", "yes")
    mlflow.log_text("hello", "notes/a.txt")
    mlflow.log_dict({"a": 1}, "a.json")
assert mlflow.active_run() is None
mlflow.log_metric("after", 1.0, step=2)
mlflow.end_run()
"""
_OF_MLFLOW: Points = {
    **{("acc", i): i for i in range(3)},
    **{("bad", i): math.nan for i in range(3)},
    ("once", 0): 1,
    **{("unnumbered", i): 0.5 / 2**i for i in range(3)},
    ("inner", 4): 9,
    ("after", 2): 1,
}


def run_script(text: str, folder: Path, *, python: str = sys.executable, **variables: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(Path(hpcml_client.__file__).parents[1])}
    done = subprocess.run(
        [python, "-W", "ignore::SyntaxWarning", "-c", f"import math\n{text}"],
        cwd=folder,
        env={**env, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def in_a_run(text: str, tmp_path: Path, *, python: str = sys.executable) -> tuple[Points, list[Event], str]:
    said = run_script(text, tmp_path, python=python, HPCML_RUN_DIR=str(tmp_path), HPCML_RUN_ID="uid")
    (path,) = (tmp_path / "journal").iterdir()
    records = read_journal(path).records
    points = {(name, r.step): v for r in records if isinstance(r, Metrics) for name, v in r.values.items()}
    return points, [record for record in records if isinstance(record, Event)], said


def same(found: Points, expected: Points) -> None:
    assert {key: repr(float(value)) for key, value in found.items()} == {
        key: repr(float(value)) for key, value in expected.items()
    }


def details(events: Iterable[Event], name: str) -> list[object]:
    return [event.details for event in events if event.name == name]


@pytest.fixture(params=["this", "3.10"])
def python(request: pytest.FixtureRequest) -> str:
    """This Python, and the oldest that the client supports."""
    found = sys.executable if request.param == "this" else find_python310()
    return found or pytest.skip("no python3.10 on this machine")


def test_the_stand_in_for_wandb_reports_the_metrics_and_what_it_leaves_out(tmp_path: Path, python: str) -> None:
    points, events, said = in_a_run(f"import hpcml_client.wandb as wandb\n{_WANDB}", tmp_path, python=python)

    same(points, {**_OF_WANDB, ("best", 25): 0.5})
    assert details(events, "config") == [{"lr": 0.1}, {"depth": 2}]
    assert details(events, "summary") == [{"best": 0.5}, {"loss": 0.25}]
    assert said.splitlines() == [
        "hpcml_client.wandb: step 5 is left out: steps never go back, and 10 was reached",
        "hpcml_client.wandb: step 20 is left out: steps never go back, and 21 was reached",
        "hpcml_client.wandb: pictures, tables, histograms and plots are left out: write them to files",
    ]


def test_the_real_wandb_gives_the_same_metrics(tmp_path: Path) -> None:
    # wandb would bring 100 MB and protobuf's newest: where it is not installed, what its 0.31.0 wrote of this script
    if importlib.util.find_spec("wandb") is None:
        (tmp_path / "run.wandb").write_bytes(gzip.decompress(_RECORDED.read_bytes()))
    else:
        run_script(f"import wandb\n{_WANDB}", tmp_path, WANDB_MODE="offline")

    (path,) = tmp_path.rglob("*.wandb")
    readings, _ = WandbLog(tmp_path, path).read()
    same({(each.name, each.step): each.value for each in readings}, _OF_WANDB)


def test_the_stand_in_for_mlflow_reports_the_metrics(tmp_path: Path, python: str) -> None:
    points, events, said = in_a_run(f"import hpcml_client.mlflow as mlflow\n{_MLFLOW}", tmp_path, python=python)

    same(points, _OF_MLFLOW)
    assert details(events, "config") == [{"lr": 0.1, "depth": 2}, {"width": 8}]
    assert details(events, "tags") == [{"team": "t"}, {"seen": "yes"}]
    written = [event.details["path"] for event in events if event.name == "artifact"]
    assert written == ["mlflow-artifacts/notes/a.txt", "mlflow-artifacts/a.json"]
    assert (tmp_path / written[0]).read_text() == "hello"
    assert not said


@pytest.mark.filterwarnings("default")  # MLflow's own
def test_the_real_mlflow_gives_the_same_metrics(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="it writes the files")
    real = "import mlflow\nmlflow.set_tracking_uri('sqlite:///mlflow.db')\n"
    run_script(real + _MLFLOW, tmp_path, GIT_PYTHON_REFRESH="quiet")

    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    curves = [client.get_metric_history(run.info.run_id, name) for run in runs for name in run.data.metrics]
    # MLflow has all values without a step at 0, and the stand-in numbers them
    same({(at.key, at.step or count): at.value for of in curves for count, at in enumerate(of)}, _OF_MLFLOW)


@pytest.mark.parametrize(("name", "script"), [("wandb", _WANDB), ("mlflow", _MLFLOW)])
def test_outside_of_a_run_nothing_is_written_and_that_is_said(tmp_path: Path, name: str, script: str) -> None:
    said = run_script(f"import hpcml_client.{name} as {name}\n{script}", tmp_path)

    assert said.splitlines()[0] == (
        f"hpcml_client.{name}: not started by hpcml: nothing is recorded. Start it with: hpcml run -- python ..."
    )
    assert not list(tmp_path.iterdir())


def test_a_second_run_in_one_program_keeps_its_metrics_apart(tmp_path: Path) -> None:
    script = "for k in range(3):\n with wandb.init() as run: run.log({'loss': k, f'k{k}': k})"
    points, _, _ = in_a_run(f"import hpcml_client.wandb as wandb\n{script}", tmp_path)

    same(points, {("loss", 0): 0, ("run2/loss", 0): 1, ("run3/loss", 0): 2, ("k0", 0): 0, ("k1", 0): 1, ("k2", 0): 2})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("wandb.sweep({})", "AttributeError: hpcml_client.wandb has no sweep: it takes what a training script calls"),
        ("wandb.log({})", "hpcml_client.wandb.Error: You must call wandb.init() before wandb.log()"),
        ("wandb.config.lr", "hpcml_client.wandb.Error: You must call wandb.init() before wandb.config"),
        ("mlflow.autolog()", "AttributeError: hpcml_client.mlflow has no autolog: log_metric what you want to compare"),
        ("mlflow.pytorch", "AttributeError: hpcml_client.mlflow has no pytorch: it takes what a training script calls"),
        ("mlflow.log_text('', '../x')", "ValueError: '../x' must stay inside of the artifacts"),
    ],
)
def test_what_is_not_taken_is_one_clear_line(tmp_path: Path, call: str, said: str) -> None:
    name = call.partition(".")[0]
    done = subprocess.run(
        [sys.executable, "-c", f"import hpcml_client.{name} as {name}\n{call}"],
        cwd=tmp_path,
        env={**os.environ, "HPCML_RUN_DIR": str(tmp_path), "PYTHONPATH": str(Path(hpcml_client.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(said)
