from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from hpcml.journal import Event, Metrics, read_journal
from hpcml.precision import CPU, Numerics, PrecisionName, decide_numerics, effective_precision

pytestmark = pytest.mark.torch
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "image_classification" / "train.py"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a run left in the journal of its first rank."""

    metrics: list[Metrics]
    events: dict[str, dict[str, Any]]

    def series(self, name: str) -> list[float]:
        return [record.values[name] for record in self.metrics if name in record.values]


def _config(precision: str = "fp32", **changes: object) -> dict[str, Any]:
    run = {
        "model": {"name": "mnist_cnn", "recipe": "image_classification", "framework": "torch"},
        "data": {"name": "digits", "path": None, "holdout": 0.2},
        "precision": {"name": precision, "numerics": "auto", "rounding": "rna", "loss_scaling": True},
        "strategy": {"name": "single"},
        "layout": {"name": "nchw"},
        "training": {"steps": 30, "batch_size": 64, "learning_rate": 1e-3, "eval_every": 20, "deterministic": True},
        "seed": 0,
    }
    for path, value in changes.items():
        *outer, last = path.split("__")
        place: dict[str, Any] = run
        for name in outer:
            place = place[name]
        place[last] = value
    numerics = decide_numerics(PrecisionName[precision], Numerics.auto, CPU).name
    return {"run": run, "plan": {"device": "cpu", "numerics": numerics}}


def _start(run_dir: Path, config: Mapping[str, Any], **environ: str) -> subprocess.Popen[str]:
    run_dir.mkdir(exist_ok=True)
    (run_dir / "run.json").write_text(json.dumps(config))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    env = {**kept, "HPCML_RUN_DIR": str(run_dir), "HPCML_CONFIG": str(run_dir / "run.json"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(RECIPE)]
    env.update(environ)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _run(run_dir: Path, config: Mapping[str, Any]) -> Recorded:
    process = _start(run_dir, config)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return _read(run_dir)


def _read(run_dir: Path) -> Recorded:
    (path,) = (run_dir / "journal").glob("*-rank0.jsonl")
    chunk = read_journal(path)
    assert chunk.bad_lines == 0
    return Recorded(
        metrics=[record for record in chunk.records if isinstance(record, Metrics)],
        events={record.name: record.details for record in chunk.records if isinstance(record, Event)},
    )


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return _run(tmp_path_factory.mktemp("fp32"), _config())


def test_each_step_and_each_evaluation_is_reported(fp32: Recorded) -> None:
    assert [record.step for record in fp32.metrics] == list(range(1, 31))
    assert len(fp32.series("loss")) == len(fp32.series("step_time_s")) == 30
    assert [record.step for record in fp32.metrics if "val_accuracy" in record.values] == [20, 30]
    assert fp32.series("val_accuracy")[-1] > 0.7
    assert min(fp32.series("step_time_s")) > 0


def test_the_events_say_what_was_trained_with_what(fp32: Recorded) -> None:
    assert set(fp32.events) == {"framework", "precision", "training"}
    assert fp32.events["framework"]["threads"] == 1
    assert fp32.events["training"] == {
        "steps": 30,
        "parameters": 354_002,
        "batch_size": 64,
        "training_samples": 1797 - fp32.events["training"]["validation_samples"],
        "validation_samples": fp32.events["training"]["validation_samples"],
    }
    assert abs(fp32.events["training"]["validation_samples"] - 0.2 * 1797) < 10


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(fp32: Recorded, tmp_path: Path) -> None:
    again = _run(tmp_path / "again", _config())
    other = _run(tmp_path / "other", _config(seed=1, training__steps=2))

    for name in ("loss", "val_accuracy", "val_loss"):
        assert again.series(name) == fp32.series(name)
    assert other.series("loss")[0] != fp32.series("loss")[0]


@pytest.mark.parametrize(
    ("precision", "first", "early"),
    [
        # largest relative difference to FP32 of the first loss (same weights, same samples) and of the first ten
        ("fp64", 1e-6, 1e-3),
        ("tf32", 1e-3, 2e-2),
        ("amp_fp16", 1e-3, 2e-2),
        ("amp_bf16", 1e-2, 5e-2),
        ("bf16", 2e-2, 0.2),
        ("fp8_e4m3", 3e-2, 0.2),
    ],
)
def test_a_precision_follows_fp32_as_closely_as_its_bits_allow(
    fp32: Recorded, tmp_path: Path, precision: str, first: float, early: float
) -> None:
    recorded = _run(tmp_path / "run", _config(precision))

    probe = recorded.events["precision"]
    differences = [abs(a - b) / b for a, b in zip(recorded.series("loss"), fp32.series("loss"), strict=True)]
    assert effective_precision(probe["products"], probe["parameters"]) == precision
    assert differences[0] < first
    assert 0 < max(differences[:10]) < early  # of one loss alone it may be zero by chance
    assert recorded.series("val_accuracy")[-1] > 0.6
    assert bool(recorded.series("loss_scale")) == (precision == "amp_fp16")
    if probe["numerics"] == "emulated":
        assert recorded.events["emulated_products"]["aten.convolution"] == 3 * 30


def test_channels_last_trains_the_same_network(fp32: Recorded, tmp_path: Path) -> None:
    recorded = _run(tmp_path / "run", _config(layout__name="nhwc", training__steps=5))

    for one, other in zip(recorded.series("loss"), fp32.series("loss")[:5], strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    config = _config("fp64", model__name="mnist_mlp")
    alone = _run(tmp_path / "one", config)
    config["run"]["strategy"]["name"] = "ddp"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    ranks = [_start(tmp_path / "two", config, RANK=str(r), LOCAL_RANK=str(r), **shared) for r in (0, 1)]

    ends = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], ends
    together = _read(tmp_path / "two")
    assert together.events["training"]["parameters"] == 12_730
    for name in ("loss", "val_loss"):
        assert together.series(name) == pytest.approx(alone.series(name), rel=1e-12)
    (second,) = (tmp_path / "two" / "journal").glob("*-rank1.jsonl")
    assert {type(record) for record in read_journal(second).records} == {Event}


def test_mnist_files_are_trained_on(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    generator = numpy.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 80), ("test", 20)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 28, 28), dtype="uint8")
        arrays[f"y_{part}"] = generator.integers(0, 10, count, dtype="uint8")
    numpy.savez(tmp_path / "mnist.npz", **arrays)
    changes = {"data": {"name": "mnist", "path": str(tmp_path)}, "model__name": "mnist_mlp", "training__steps": 3}

    recorded = _run(tmp_path / "run", _config(**changes))

    assert recorded.events["training"]["training_samples"] == 80
    assert recorded.events["training"]["validation_samples"] == 20


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model__name": "resnet50"}, "model=resnet50 is not in this recipe: choose mnist_cnn or mnist_mlp"),
        ({"data": {"name": "mnist", "path": "/nowhere"}}, "data.path=/nowhere does not exist"),
        ({"strategy__name": "ddp"}, "strategy=ddp does not fit 1 process(es)"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    process = _start(tmp_path / "run", _config(**changes))

    _, stderr = process.communicate(timeout=60)

    assert (process.returncode, stderr) == (2, f"image_classification: {reason}\n")


def test_a_missing_torch_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")

    process = _start(tmp_path / "run", _config(), PYTHONPATH=str(tmp_path))

    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (
        2,
        "image_classification: torch is missing: pip install 'hpcml[torch]'\n",
    )


def test_the_recipe_runs_by_hand(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(RECIPE)], env=kept, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.kill()
    process.communicate()

    assert first.startswith("step 50: loss ")
    assert list(tmp_path.iterdir()) == []
