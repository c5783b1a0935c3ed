"""linear_mse finds the line that its points lie on, at the speed that the formula says, in every precision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from image_runs import Recorded
from numeric_runs import config_of, last, load, run_all

from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
LINE = {"name": "line", "holdout": 0.2, "path": None}
# How near each precision comes to slope 2 and intercept -1 in 60 steps: both are numbers of every format. What is left
# is of the order of the last bit of a weight in 16 bits, and of the products' error elsewhere, which gets smaller with
# the loss.
NEAR = {
    "fp64": 1e-3,
    "fp32": 1e-3,
    "tf32": 2e-3,
    "amp_fp16": 3e-3,
    "amp_bf16": 2e-2,
    "bf16": 3e-2,
    "fp16": 5e-3,
    "fp8_e4m3": 6e-2,
    "fp8_e5m2": 0.12,
}


def config(precision: str = "fp32", **training: object) -> dict[str, object]:
    chosen = {"steps": 60, "batch_size": 64, "eval_every": 20, "deterministic": True, **training}
    return config_of("linear_mse", precision, data=LINE, training=chosen)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    configs = {name: config(name) for name in NEAR}
    configs["whole"] = config("fp64", batch_size=256, steps=12, eval_every=1)
    return run_all(tmp_path_factory.mktemp("line"), "linear_mse", configs)


@pytest.mark.parametrize("precision", NEAR)
def test_it_finds_the_line_as_nearly_as_the_precision_allows(runs: dict[str, Recorded], precision: str) -> None:
    recorded = runs[precision]

    assert abs(last(recorded, "slope") - 2.0) <= NEAR[precision]
    assert abs(last(recorded, "intercept") + 1.0) <= NEAR[precision]
    assert recorded.events["precision"]["effective"] == precision
    assert ("emulated_products" in recorded.events) == (recorded.events["precision"]["numerics"] == "emulated")


def test_errors_shrink_by_the_factors_that_the_formula_says(runs: dict[str, Recorded]) -> None:
    x = [(2 * index + 1) / 256 - 1 for index in range(256)]
    factor = 1 - 2 * 0.2 * sum(at * at for at in x) / len(x)
    slopes = [slope - 2.0 for slope in runs["whole"].series("slope")]
    intercepts = [intercept + 1.0 for intercept in runs["whole"].series("intercept")]

    assert slopes[1:] == pytest.approx([error * factor for error in slopes[:-1]], rel=1e-9)
    assert intercepts[1:] == pytest.approx([error * 0.6 for error in intercepts[:-1]], rel=1e-9)


def test_noise_is_added_in_training_only_and_is_the_same_for_everybody() -> None:
    line = load("linear_mse", "line")
    task = line.Task(options={"noise": 0.5, "samples": 100})

    points, on_it = line.training_points(task), line.validation_points(task)

    assert points == line.training_points(task)
    off = [y - (2.0 * x - 1.0) for x, y in zip(points.x, points.y, strict=True)]
    assert 0.35 < (sum(error * error for error in off) / len(off)) ** 0.5 < 0.65
    assert [2.0 * x - 1.0 for x in on_it.x] == pytest.approx(on_it.y)


def test_it_runs_as_a_run_with_its_own_data_and_objective(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)

    done = hpcml("run", "model=linear_mse", "training.steps=20", "telemetry.enabled=false")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert run["state"] == "COMPLETED"
    shown = hpcml("show", "--json", run["uid"])
    assert json.loads(shown.stdout)["params"]["objective.metric"] == "val_loss"


def test_other_data_is_refused(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    done = Hpcml(hpcml_environ, tmp_path)("run", "model=linear_mse", "data=digits")

    assert done.returncode == 2
    assert "data=digits is not in the recipe linear_mse: choose line" in done.stderr
