"""Keras twins of recipes from the command line: planned, started and recorded, or refused before anything starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]
PIPELINE = ["strategy=pipeline", "strategy.processes_per_node=2"]
FSDP = ["strategy=fsdp", "strategy.processes_per_node=2"]
CENTRAL = ["strategy=central_storage", "strategy.devices=2"]
IN_FP64 = "layout=nchw with model.framework=tensorflow, model=mnist_cnn, precision=fp64, device=cpu must be nhwc"
IN_BF16 = "beta_2=0.999 is 1 in BF16: choose amp_bf16"


@pytest.mark.parametrize(
    ("model", "words", "says"),
    [
        ("lstm", ["precision=bf16"], IN_BF16),
        ("lstm", ["precision=tf32"], "precision=tf32 is refused on this CPU"),
        ("lstm", PIPELINE, "strategy=pipeline is nothing of tensorflow"),
        ("lstm", ["model.options.generate=5"], "model.options.generate=5 with data=fibonacci must be at most 0"),
        ("lstm_text", ["model.options.generate=5"], "prompt='' must be at most 0: there is nothing"),
        ("mnist_cnn", ["precision=fp64"], IN_FP64),
        ("resnet18", [], "model.framework=tensorflow is not in the recipe resnet: choose torch"),
    ],
)
def test_what_a_twin_does_not_do_is_refused_before_anything_starts(
    tmp_path: Path, hpcml_environ: dict[str, str], model: str, words: list[str], says: str
) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)

    done = hpcml("run", f"model={model}", "model.framework=tensorflow", *words)

    assert done.returncode == 2
    assert says in said_in_one_line(done)
    assert hpcml.runs() == []


@pytest.mark.parametrize(
    ("model", "options", "metric"),
    [
        ("lstm_text", {"layers": 1, "context": 8, "width": 32, "prompt": "'The '", "generate": 3}, "val_loss"),
    ],
)
def test_a_run_is_planned_started_and_recorded(
    tmp_path: Path, hpcml_environ: dict[str, str], model: str, options: dict[str, object], metric: str
) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)
    small = [f"model.options.{name}={value}" for name, value in options.items()]
    words = ["precision=amp_bf16", "training.steps=2", "training.batch_size=4"]
    words += ["layout=nhwc"] if "image_size" in options else []

    done = hpcml("run", f"model={model}", "model.framework=tensorflow", *small, *words)

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["precision_effective"]) == ("COMPLETED", "amp_bf16")
    assert run["metrics"][metric]["n"] >= 1
    if "prompt" in options:
        assert "The " in hpcml("show", str(run["uid"]), "--all").stdout
