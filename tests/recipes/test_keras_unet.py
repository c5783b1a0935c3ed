"""The U-Net in Keras: the same network, pictures and measures as in torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_runs import Recorded
from numeric_runs import ROOT, assert_it_went_on_bit_for_bit, config_of, has_avx512, run_all

from hpcml_train.precision.formats import name_precision
from tests.train.framework_scripts import run_script

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("torch") is None,
        reason="TensorFlow or torch is not installed",
    ),
]

STEPS = 4
SMALL = {"width": 4, "image_size": 32, "pictures": 20}
# Gives the Keras network torch's weights, and both the same pictures, of which some pixels are of no class.
TWINS = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT / "recipes" / "unet")!r})
import numpy as np, tensorflow as tf, torch
import tensorflow_training as twin, training
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.flops import count_step
from hpcml_train.torch.arithmetic import Arithmetic as InTorch
from hpcml_train.torch.flops import count_step as count_in_torch
Arithmetic("fp64")
torch.manual_seed(0)
tf.keras.utils.set_random_seed(0)
task = Task(layout="nhwc", data="mask_pairs", data_path=os.environ["PAIRS"], options={{"width": 8}})
theirs, ours = training.Segmentation(task, InTorch("fp64")), twin.Segmentation(task, None)
network, keras = theirs.model.double(), ours.build()
def of_torch(path):
    layer, kind = path.split("/")[-2:]
    norm = layer.endswith("norm")
    layer = layer.removesuffix("norm")
    kind = {{"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}}[kind]
    if layer == "classify":
        return f"classify.{{kind}}"
    if layer.startswith("enlarge"):
        return f"enlarge.{{layer[-1]}}.{{kind}}"
    place = 3 * "ab".index(layer[-1]) + norm
    block = layer[:-1]
    return f"bottom.{{place}}.{{kind}}" if block == "bottom" else f"{{block[:-1]}}.{{block[-1]}}.{{place}}.{{kind}}"
def of_keras(value):
    value = value.detach().numpy()
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value
names = [of_torch(weight.path) for weight in keras.weights]
known = dict(network.named_parameters())
spread = [one.std() / of_keras(known[name]).std() for one, name in zip(keras.get_weights(), names) if one.ndim > 1]
keras.set_weights([of_keras(known[name]) for name in names])
places = np.arange(5)
batch, torchs = ours.batch(places), theirs.batch(torch.tensor(places))
with tf.GradientTape() as tape:
    loss = ours.loss(keras, batch)
gradients = [one.numpy() for one in tape.gradient(loss, keras.trainable_variables)]
expected = theirs.loss(network, torchs)
expected.backward()
wanted = [of_keras(known[name].grad) for name in names]
told = {{
    "names": sorted(names) == sorted(known),
    "pictures": bool((batch[0].numpy() == torchs[0].permute(0, 2, 3, 1).numpy()).all()),
    "loss": [float(loss), expected.item()],
    "gradients": max(abs(one - other).max() / abs(other).max() for one, other in zip(gradients, wanted)),
    "evaluated": [ours.evaluate(keras), theirs.evaluate(network.eval())],
    "spread": spread,
    "facts": [ours.facts(), theirs.facts()],
    "flops": [count_step(keras, batch, ours.loss).flops, count_in_torch(network, torchs, theirs.loss).flops],
}}
print(json.dumps(told))
"""


def config(
    precision: str = "fp32", *, options: Mapping[str, object] = {}, layout: str = "nhwc", **groups: Mapping[str, Any]
) -> dict[str, Any]:
    training = {"steps": STEPS, "batch_size": 8, "learning_rate": 1e-2, "eval_every": 2, "deterministic": True}
    groups["data"] = {"name": "shapes", "holdout": 0.2, "path": None, **groups.get("data", {})}
    groups["training"] = {**training, **groups.get("training", {})}
    groups["layout"] = {"name": layout}
    return config_of("unet", precision, "tensorflow", options={**SMALL, **options}, **groups)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with masks, some pixels of which are of no class."""
    folder, draws = tmp_path_factory.mktemp("pairs"), np.random.RandomState(0)
    for number in range(12):
        mask = draws.randint(0, 4, (16, 24)).astype(np.uint8)
        mask[draws.uniform(size=mask.shape) < 0.2] = 255
        np.savez(folder / f"{number:02d}.npz", image=draws.randint(0, 256, (16, 24, 3)).astype(np.uint8), mask=mask)
    return folder


@pytest.fixture(scope="module")
def runs(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """Everything that is trained here; the first one fixes the devices that TensorFlow has."""
    return run_all(
        tmp_path_factory.mktemp("keras_unet"),
        "unet::shallow_unet",
        {
            "mirrored": config("fp64", strategy={"name": "mirrored", "devices": 2}),
            "fp32": config(training={"steps": 60, "eval_every": 60}),
            **{name: config(name) for name in ("fp64", "amp_bf16")},
            "nchw": config(layout="nchw"),
            "parts": config("fp64", training={"accumulate": 2}),
            "pairs": config(data={"name": "mask_pairs", "path": str(pairs)}),
        },
        left={"amp_bf16": 2},
    )


@pytest.fixture(scope="module")
def twins(pairs: Path) -> dict[str, Any]:
    return run_script(TWINS, "tensorflow", PAIRS=str(pairs))


def test_with_torchs_weights_it_says_and_learns_what_torch_does(twins: dict[str, Any]) -> None:
    ours, theirs = twins["evaluated"]

    assert twins["names"]
    assert twins["pictures"]
    assert twins["loss"][0] == pytest.approx(twins["loss"][1], rel=1e-12)
    assert twins["gradients"] < 1e-10  # of the largest of each weight
    assert ours == pytest.approx(theirs, rel=1e-12)
    assert twins["facts"][0] == twins["facts"][1]


def test_its_weights_begin_as_widely_spread_as_torchs(twins: dict[str, Any]) -> None:
    assert twins["spread"] == pytest.approx([1.0] * len(twins["spread"]), rel=0.25)  # the last has 32


def test_a_step_costs_the_operations_that_torch_counts(twins: dict[str, Any]) -> None:
    ours, torchs = twins["flops"]

    assert ours == torchs


def test_it_reports_what_the_torch_half_reports(runs: dict[str, Recorded]) -> None:
    found = runs["fp64"]

    assert set(found.metrics[-1].values) == {"loss", "step_time_s", "data_time_s", "val_mean_iou", "val_loss"}
    assert [record.step for record in found.metrics if "val_loss" in record.values] == [2, 4]
    assert (found.events["training"]["training_samples"], found.events["training"]["validation_samples"]) == (16, 4)
    assert found.events["work"]["flops_doubt"] is None
    assert runs["pairs"].events["training"]["training_samples"] == 10


def test_it_finds_shapes(runs: dict[str, Recorded]) -> None:
    losses = runs["fp32"].series("loss")

    assert losses[-1] < losses[0] / 2
    assert runs["fp32"].series("val_mean_iou")[-1] > runs["fp64"].series("val_mean_iou")[0]


@pytest.mark.parametrize(
    ("name", "precision", "first"),
    # largest relative difference of the first loss to that of FP32: same weights, same pictures
    [("fp64", "fp64", 1e-6), ("amp_bf16", "amp_bf16", 2e-2), ("nchw", "fp32", 1e-5)],
)
def test_each_precision_and_layout_begins_where_fp32_does(
    runs: dict[str, Recorded], name: str, precision: str, first: float
) -> None:
    exact, found = runs["fp32"], runs[name]

    probe, rows = found.events["precision"], found.events["precision_observed"]["rows"]
    assert name_precision(probe["products"], probe["parameters"]) == precision
    trained = {row["format"] for row in rows if row["phase"] in ("forward", "backward")}
    assert trained == {{"amp_bf16": "bf16"}.get(precision, precision)}
    assert found.series("loss")[0] == pytest.approx(exact.series("loss")[0], rel=first)
    assert found.series("loss") != exact.series("loss")[:STEPS] or (name == "nchw" and not has_avx512())


@pytest.mark.parametrize("name", ["mirrored", "parts"])
def test_a_batch_that_is_shared_trains_as_the_whole(runs: dict[str, Recorded], name: str) -> None:
    for metric in ("loss", "val_loss"):
        assert runs[name].series(metric) == pytest.approx(runs["fp64"].series(metric), rel=1e-9)
    assert runs[name].events["work"]["model_flops"] == runs["fp64"].events["work"]["model_flops"]


def test_a_training_that_left_ends_with_the_same_weights_bit_for_bit(runs: dict[str, Recorded]) -> None:
    assert_it_went_on_bit_for_bit(runs, "amp_bf16")
