from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from image_runs import RECIPE, Recorded, config_of, finish, read_rank0, run_whole, start, start_ranks
from numeric_runs import run_all

from hpcml.model.failure_causes import ended_because
from hpcml.runs.journal import Event, read_journal
from hpcml_client.formats import name_precision

pytestmark = pytest.mark.torch
MLP: dict[str, object] = {"model__name": "mnist_mlp", "training__steps": 6}
REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "model": ({"model__name": "resnet50"}, "model=resnet50 is not in this recipe: choose mnist_cnn or mnist_mlp"),
    "strategy": ({"strategy__name": "ddp"}, "strategy=ddp does not fit 1 process(es)"),
    "parts": (
        {"training__batch_size": 30, "training__accumulate": 4},
        "training.accumulate=4 does not divide the 30 samples",
    ),
}
# largest relative difference to FP32 of the first loss (same weights, same samples) and of the first ten
PRECISIONS = {
    "fp64": (1e-6, 1e-3),
    "tf32": (1e-3, 2e-2),
    "amp_fp16": (1e-3, 2e-2),
    "amp_bf16": (1e-2, 5e-2),
    "bf16": (2e-2, 0.2),
    "fp8_e4m3": (3e-2, 0.2),
}


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The program itself, in a process of its own."""
    return run_whole(tmp_path_factory.mktemp("fp32"), config_of())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """What else is trained, one after the other in one process."""
    folder = tmp_path_factory.mktemp("runs")
    draws, arrays = np.random.RandomState(0), {}
    for part, count in (("train", 80), ("test", 20)):
        arrays[f"x_{part}"] = draws.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"y_{part}"] = draws.randint(0, 10, count).astype(np.uint8)
    np.savez(folder / "mnist.npz", **arrays)
    configs = {
        "again": config_of(),
        "other": config_of(seed=1, training__steps=2),
        **{name: config_of(name, training__steps=20) for name in PRECISIONS},
        "nhwc": config_of(layout__name="nhwc", training__steps=5),
        "mlp": config_of("fp64", model__name="mnist_mlp"),
        "whole": config_of("fp64", **MLP),
        "parts": config_of("fp64", **MLP, training__accumulate=4),
        "mnist": config_of(**{**MLP, "data": {"name": "mnist", "path": str(folder)}}),
        **{f"refused {name}": config_of(**changes) for name, (changes, _) in REFUSED.items()},
    }
    return run_all(folder, "image_classification", configs, refused=[f"refused {name}" for name in REFUSED])


def test_each_step_and_each_evaluation_is_reported(fp32: Recorded) -> None:
    assert [record.step for record in fp32.metrics] == list(range(1, 31))
    assert len(fp32.series("loss")) == len(fp32.series("step_time_s")) == 30
    assert [record.step for record in fp32.metrics if "val_accuracy" in record.values] == [20, 30]
    assert fp32.series("val_accuracy")[-1] > 0.7
    assert len(fp32.series("data_time_s")) == 30
    assert min(fp32.series("step_time_s") + fp32.series("data_time_s")) > 0
    assert fp32.series("communication_time_s") == []


def test_the_events_say_what_was_trained_with_what(fp32: Recorded) -> None:
    told = {"framework", "precision", "training", "work", "memory", "final", "closed"}
    assert set(fp32.events) == told | {"precision_observer", "precision_observed", "precision_observer_closed"}
    assert fp32.events["framework"]["threads"] == 1
    assert fp32.events["training"] == {
        "steps": 30,
        "parameters": 354_002,
        "batch_size": 64,
        "training_samples": 1797 - fp32.events["training"]["validation_samples"],
        "validation_samples": fp32.events["training"]["validation_samples"],
    }
    assert abs(fp32.events["training"]["validation_samples"] - 0.2 * 1797) < 10


def test_the_events_say_what_a_step_does_and_what_it_took(fp32: Recorded) -> None:
    images = 64
    # three convolutions (28x28, 14x14 and 7x7 outputs) and two dense layers, a multiply-add as two
    layers = [28 * 28 * 12 * 9, 14 * 14 * 24 * 12 * 36, 7 * 7 * 32 * 24 * 36, 1568 * 200, 200 * 10]
    forward = 2 * images * sum(layers)

    assert fp32.events["work"] == {
        "devices": 1,
        "model_flops": 3 * forward - 2 * images * layers[0],  # nobody needs the gradient of the images
        "flops_method": "meta",
        "flops_doubt": None,
        "samples": 64.0,
        "tokens": None,
    }
    # torch does not count what it allocates on a CPU
    assert fp32.events["memory"] == {"device": "cpu", "peak_allocated_mb": None, "peak_reserved_mb": None}


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(
    fp32: Recorded, runs: dict[str, Recorded]
) -> None:
    again, other = runs["again"], runs["other"]

    for name in ("loss", "val_accuracy", "val_loss"):
        assert again.series(name) == fp32.series(name)
    assert other.series("loss")[0] != fp32.series("loss")[0]
    assert again.events["final"] == fp32.events["final"]
    assert other.events["final"]["sha256"] != fp32.events["final"]["sha256"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_precision_follows_fp32_as_closely_as_its_bits_allow(
    fp32: Recorded, runs: dict[str, Recorded], precision: str
) -> None:
    recorded, (first, early) = runs[precision], PRECISIONS[precision]

    probe = recorded.events["precision"]
    differences = [abs(a - b) / b for a, b in zip(recorded.series("loss"), fp32.series("loss")[:20], strict=True)]
    assert name_precision(probe["products"], probe["parameters"]) == precision
    assert differences[0] < first
    assert 0 < max(differences[:10]) < early  # of one loss alone it may be zero by chance
    assert recorded.series("val_accuracy")[-1] > 0.6
    assert bool(recorded.series("loss_scale")) == (precision == "amp_fp16")
    if probe["numerics"] == "emulated":
        assert recorded.events["emulated_products"]["aten.convolution"] == 3 * 20


def test_channels_last_trains_the_same_network(fp32: Recorded, runs: dict[str, Recorded]) -> None:
    for one, other in zip(runs["nhwc"].series("loss"), fp32.series("loss")[:5], strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_two_processes_train_as_one(runs: dict[str, Recorded], tmp_path: Path) -> None:
    alone = runs["mlp"]

    finish(start_ranks(tmp_path / "two", config_of("fp64", model__name="mnist_mlp"), 2))

    together = read_rank0(tmp_path / "two")
    assert together.events["training"]["parameters"] == 12_730
    for name in ("loss", "val_loss"):
        assert together.series(name) == pytest.approx(alone.series(name), rel=1e-12)
    assert len(together.series("communication_time_s")) == 30
    for waited, took in zip(together.series("communication_time_s"), together.series("step_time_s"), strict=True):
        assert 0 <= waited < took
    assert together.events["work"] == {**alone.events["work"], "devices": 2}
    (second,) = (tmp_path / "two" / "journal").glob("*-rank1.jsonl")
    events = [record for record in read_journal(second).records if isinstance(record, Event)]
    told = [event.name for event in events]
    observed = ["precision_observer", "precision_observed", "precision_observer_closed"]
    assert [name for name in told if name not in observed] == ["framework", "precision", "memory", "closed"]
    assert set(told) >= set(observed)
    assert len(events) == len(read_journal(second).records)


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_in_parts_trains_as_the_whole(runs: dict[str, Recorded], tmp_path: Path, count: int) -> None:
    whole, recorded = runs["whole"], runs["parts"]
    if count > 1:
        finish(start_ranks(tmp_path / "parts", config_of("fp64", **MLP, training__accumulate=4), count))
        recorded = read_rank0(tmp_path / "parts")

    for name in ("loss", "val_loss"):
        assert recorded.series(name) == pytest.approx(whole.series(name), rel=1e-12)
    assert recorded.events["work"]["model_flops"] == whole.events["work"]["model_flops"]


def test_a_loss_that_is_no_number_any_more_ends_the_training_in_one_line(tmp_path: Path) -> None:
    process = start(tmp_path / "run", config_of(model__name="mnist_mlp", training__learning_rate=1e30))

    _, stderr = process.communicate(timeout=300)

    losses = read_rank0(tmp_path / "run").series("loss")
    assert process.returncode == 1
    assert [math.isfinite(loss) for loss in losses[-4:]] == [True, False, False, False]
    assert stderr == (
        f"hpcml_client: ended, because loss is nan at step {len(losses) - 2} and the 2 after it: "
        "choose a smaller training.learning_rate or a precision of greater range\n"
    )
    assert ended_because(stderr) is not None


def test_mnist_files_are_trained_on(runs: dict[str, Recorded]) -> None:
    assert runs["mnist"].events["training"]["training_samples"] == 80
    assert runs["mnist"].events["training"]["validation_samples"] == 20


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused(runs: dict[str, Recorded], name: str) -> None:
    (_, reason), said = REFUSED[name], runs[f"refused {name}"].events["refused"]["reason"]

    assert said.startswith(reason)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": {"name": "mnist", "path": "/nowhere"}}, "data.path=/nowhere does not exist"),
        ({"training__checkpoint_every": 0}, "training.checkpoint_every=0 must be at least 1 step"),
    ],
)
def test_what_is_refused_ends_the_program_with_one_line(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    process = start(tmp_path / "run", config_of(**changes))

    _, stderr = process.communicate(timeout=300)

    assert process.returncode == 2
    assert stderr.startswith(f"image_classification: {reason}")
    assert stderr.count("\n") == 1


def test_code_that_cannot_be_compiled_is_refused_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    config.write_text(json.dumps(config_of(model__name="mnist_mlp", training__steps=1, training__compile=True)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    env = {**kept, "HPCML_CONFIG": str(config), "CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    # without -W error: torch's compiler warns of its own parts
    done = subprocess.run([sys.executable, str(RECIPE)], env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert said.startswith("image_classification: training.compile=true: ")
    assert "No working C++ compiler" in said
    assert said.endswith(": set it to false")
    assert "Traceback" not in done.stderr


def test_a_missing_torch_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")

    process = start(tmp_path / "run", config_of(), PYTHONPATH=str(tmp_path))

    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (
        2,
        "image_classification: torch is missing: pip install 'hpcml[torch]'\n",
    )


def test_the_recipe_runs_by_hand(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    env = {**kept, "OMP_NUM_THREADS": "1"}  # of two, each waits for the other by spinning, where others compute too
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(RECIPE)], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.kill()
    process.communicate()

    assert first.startswith("step 50: loss ")
    assert list(tmp_path.iterdir()) == []
