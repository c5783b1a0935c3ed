"""The TensorFlow halves of recipes, several trainings in one process, since an import of TensorFlow takes seconds."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
from image_runs import Recorded, config_of
from numeric_runs import assert_it_went_on_bit_for_bit, load, run_all

from hpcml_client.formats import name_precision

pytest.importorskip("sklearn")

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

STEPS = 6


def _config(precision: str = "fp32", **changes: object) -> dict[str, Any]:
    wanted: dict[str, object] = {"model__framework": "tensorflow", "layout__name": "nhwc"}
    return config_of(precision, **{**wanted, "training__steps": STEPS, "training__eval_every": 3, **changes})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """Everything that is trained here, by its name; the first one fixes the devices that TensorFlow has."""
    folder = tmp_path_factory.mktemp("tensorflow")
    mlp = {"model__name": "mnist_mlp"}
    configs = {
        "mirrored": _config(strategy={"name": "mirrored", "devices": 2}),
        "central_storage": _config(strategy={"name": "central_storage", "devices": 2}),
        "fp32": _config(),
        "nchw": _config(layout__name="nchw"),
        "fp64": _config("fp64"),
        "amp_bf16": _config("amp_bf16"),
        "seed1": _config(seed=1, **mlp),
        "mlp": _config(**mlp),
        "parts": _config(training__accumulate=4, **mlp),
    }
    return run_all(folder, "image_classification::tensorflow_training", configs, left={"mlp": 4})


def _weights(recorded: Recorded) -> str:
    return str(recorded.events["final"]["sha256"])


def test_it_reports_what_the_torch_half_reports(recorded: dict[str, Recorded]) -> None:
    run = recorded["fp32"]

    known = {"framework", "precision", "training", "work", "memory", "final", "closed"}
    assert set(run.events) == known
    assert [record.step for record in run.metrics] == list(range(1, STEPS + 1))
    assert set(run.metrics[0].values) == {"loss", "step_time_s", "data_time_s"}
    assert [record.step for record in run.metrics if "val_accuracy" in record.values] == [3, 6]
    # 354,002 and 1797 images, a fifth of each class held out: as in torch
    assert run.events["training"]["parameters"] == 354_002
    assert run.events["training"]["training_samples"] + run.events["training"]["validation_samples"] == 1797
    assert run.events["work"]["devices"] == 1
    assert (run.events["work"]["flops_method"], run.events["work"]["flops_doubt"]) == ("graph", None)
    assert run.events["memory"] == {"device": "CPU:0", "peak_allocated_mb": None, "peak_reserved_mb": None}


def test_it_counts_the_operations_that_torch_counts(recorded: dict[str, Recorded]) -> None:
    torch = pytest.importorskip("torch")
    count_step = importlib.import_module("hpcml_train.torch.flops").count_step
    models = load("image_classification", "models").MODELS
    batch = (torch.zeros(64, 1, 28, 28), torch.zeros(64, dtype=torch.long))
    counted = {
        name: count_step(
            models[name](), batch, lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        )
        for name in ("mnist_cnn", "mnist_mlp")
    }

    for name in ("fp32", "fp64", "amp_bf16", "nchw", "mirrored"):
        assert recorded[name].events["work"]["model_flops"] == counted["mnist_cnn"].flops
    for name in ("mlp", "parts"):
        assert recorded[name].events["work"]["model_flops"] == counted["mnist_mlp"].flops


def test_it_learns(recorded: dict[str, Recorded]) -> None:
    losses = recorded["fp32"].series("val_loss")

    assert recorded["fp32"].series("loss")[0] == pytest.approx(2.30, abs=0.05)  # ln 10: it knows nothing yet
    assert losses[-1] < losses[0] < 2.3


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_two_devices_train_as_one(recorded: dict[str, Recorded], strategy: str) -> None:
    alone, shared = recorded["fp32"], recorded[strategy]

    for name in ("loss", "val_loss", "val_accuracy"):
        assert shared.series(name) == pytest.approx(alone.series(name), rel=1e-5)
    assert shared.events["work"]["devices"] == 2
    assert shared.events["work"]["samples"] == alone.events["work"]["samples"] == 64.0


def test_both_strategies_of_two_devices_add_up_alike_bit_for_bit(recorded: dict[str, Recorded]) -> None:
    assert _weights(recorded["mirrored"]) == _weights(recorded["central_storage"])


@pytest.mark.parametrize(
    ("precision", "first", "later"),
    # largest relative difference to FP32 of the first loss (same weights, same samples) and of all six
    [("fp64", 1e-6, 1e-4), ("amp_bf16", 1e-2, 5e-2)],
)
def test_a_precision_begins_with_the_same_weights_and_follows_fp32(
    recorded: dict[str, Recorded], precision: str, first: float, later: float
) -> None:
    run, fp32 = recorded[precision], recorded["fp32"]

    probe = run.events["precision"]
    differences = [abs(a - b) / b for a, b in zip(run.series("loss"), fp32.series("loss"), strict=True)]
    assert name_precision(probe["products"], probe["parameters"]) == precision
    assert differences[0] < first
    assert 0 < max(differences) < later


def test_the_layout_changes_the_order_in_memory_and_not_the_data(recorded: dict[str, Recorded]) -> None:
    # the dense layer behind the convolutions sees its inputs in another order, and so begins elsewhere
    assert recorded["nchw"].events["training"] == recorded["fp32"].events["training"]
    assert recorded["nchw"].series("loss") != recorded["fp32"].series("loss")


def test_a_batch_in_parts_trains_as_the_whole(recorded: dict[str, Recorded]) -> None:
    for name in ("loss", "val_loss"):
        assert recorded["parts"].series(name) == pytest.approx(recorded["mlp"].series(name), rel=1e-5)


def test_another_seed_draws_other_weights(recorded: dict[str, Recorded]) -> None:
    assert recorded["seed1"].series("loss")[0] != recorded["mlp"].series("loss")[0]


def test_a_signal_ends_it_at_a_checkpoint_and_it_goes_on_bit_for_bit(recorded: dict[str, Recorded]) -> None:
    assert_it_went_on_bit_for_bit(recorded, "mlp")
    before, after = recorded["mlp left"], recorded["mlp gone on"]
    assert before.events["checkpoint"]["step"] == after.events["resumed"]["step"]
