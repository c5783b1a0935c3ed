"""ResNets in Keras: the same network, pictures and optimiser as in torch."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
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

STEPS = 3
SMALL = {"classes": 10, "image_size": 32}
# Gives the Keras network torch's weights, and both the same pictures; takes two steps of each optimiser in FP64.
TWINS = f"""
import json, sys
sys.path.insert(0, {str(ROOT / "recipes" / "resnet")!r})
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
torch.set_num_threads(1)
PARTS = {{"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias",
         "moving_mean": "running_mean", "moving_variance": "running_var"}}
def of_torch(path, blocks, last):
    layer, kind = path.split("/")[-2:]
    norm = layer.endswith("norm")
    layer = layer.removesuffix("norm")
    if layer == "stem":
        place = str(int(norm))
    elif layer == "classify":
        place = str(last)
    else:
        block = next(name for name in blocks if layer.startswith(name))
        rest = layer.removeprefix(block)
        inner = f"shortcut.{{int(norm)}}" if rest == "shortcut" else f"body.{{3 * 'abc'.index(rest) + norm}}"
        place = f"{{4 + blocks.index(block)}}.{{inner}}"
    return f"{{place}}.{{PARTS[kind]}}"
def of_keras(value):
    value = value.detach().numpy()
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
told = {{}}
for model, depths in (("resnet18", (2, 2, 2, 2)), ("resnet50", (3, 4, 6, 3))):
    task = Task(model=model, data="synthetic", layout="nhwc", options={{"classes": 10, "image_size": 40}})
    theirs, ours = training.Pictures(task, InTorch("fp64")), twin.Pictures(task, None)
    network, keras = theirs.model.double(), ours.build()
    blocks = [f"stage{{stage}}block{{number}}" for stage, depth in enumerate(depths) for number in range(depth)]
    names = [of_torch(weight.path, blocks, len(network) - 1) for weight in keras.weights]
    trained = [of_torch(weight.path, blocks, len(network) - 1) for weight in keras.trainable_weights]
    state = network.state_dict()
    first = [(name, weight.std(), float(state[name].std(correction=0))) for name, weight in
             zip(names, keras.get_weights()) if weight.ndim > 1]
    keras.set_weights([of_keras(state[name]) for name in names])
    places = np.arange(6)
    batch, torchs = ours.batch(places), theirs.batch(torch.tensor(places))
    drawn = abs(batch[0].numpy().transpose(0, 3, 1, 2) - torchs[0].numpy()).max()
    batch = tf.constant(torchs[0].numpy().transpose(0, 2, 3, 1)), batch[1]  # to the last digit
    how = {{"learning_rate": 0.01, "eps": 0}}
    trainers = ours.optimizer(**how), theirs.optimizer(network.parameters(), **how)
    trainers[0].build(keras.trainable_variables)
    losses = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = ours.loss(keras, batch)
        gradients = tape.gradient(loss, keras.trainable_variables)
        trainers[0].apply(gradients, keras.trainable_variables)
        expected = theirs.loss(network, torchs)
        trainers[1].zero_grad(); expected.backward()
        trainers[1].step()
        losses.append([float(loss), expected.item()])
    known, state = dict(network.named_parameters()), network.state_dict()
    apart = {{}}
    for name, weight in zip(names, keras.get_weights()):
        kind, wanted = name.rpartition(".")[2], of_keras(state[name])
        apart[kind] = max(apart.get(kind, 0.0), abs(weight - wanted).max() / abs(wanted).max())
    told[model] = {{
        "parameters": sum(weight.size for weight in map(np.asarray, keras.trainable_weights)),
        "names": [sorted(trained) == sorted(known), len(set(names)) == len(names)],
        "pictures": float(drawn),
        "labels": batch[1].numpy().tolist() == torchs[1].tolist(),
        "losses": losses,
        "apart": apart,
        "spread": [one / other for _, one, other in first],
        "flops": [count_step(keras, batch, ours.loss).flops, count_in_torch(network, torchs, theirs.loss).flops],
    }}
print(json.dumps(told))
"""


def config(
    precision: str = "fp32", *, options: Mapping[str, object] = {}, layout: str = "nhwc", **groups: Mapping[str, Any]
) -> dict[str, Any]:
    training = {"steps": STEPS, "batch_size": 8, "learning_rate": 5e-3, "eval_every": 3, "deterministic": True}
    groups["data"] = {"name": "synthetic", "holdout": 0.2, "path": None, **groups.get("data", {})}
    groups["training"] = {**training, **groups.get("training", {})}
    groups["layout"] = {"name": layout}
    return config_of("resnet18", precision, "tensorflow", options={**SMALL, **options}, **groups)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keras_resnet")
    draws = np.random.RandomState(0)
    labels = np.arange(60) % 3
    pictures = draws.randint(0, 60, (60, 16, 16, 1)) + 90 * labels[:, None, None, None]  # as bright as their class
    np.savez(folder / "pictures.npz", x=pictures.astype(np.uint8), y=labels)
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Recorded]:
    """Everything that is trained here; the first one fixes the devices that TensorFlow has."""
    pictures = {"name": "npz", "path": str(folder / "pictures.npz")}
    nchw = {"amp_bf16_nchw": config("amp_bf16", layout="nchw")}
    return run_all(
        folder,
        "resnet::shallow_resnet",
        {
            "mirrored": config(strategy={"name": "mirrored", "devices": 2}),
            "fp32": config(),
            "nchw": config(layout="nchw"),
            "amp_bf16": config("amp_bf16"),
            "bf16": config("bf16"),
            "parts": config(training={"accumulate": 2}),
            "npz": config(options={"classes": 3}, data=pictures, training={"steps": 12, "eval_every": 12}),
            **nchw,
        },
        left={"amp_bf16": 1},
        refused=[] if has_avx512() else list(nchw),
    )


@pytest.fixture(scope="module")
def twins() -> dict[str, Any]:
    return run_script(TWINS, "tensorflow")


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_from_torchs_weights_two_steps_end_where_torch_ends(twins: dict[str, Any], name: str) -> None:
    found = twins[name]

    assert found["names"] == [True, True]
    assert found["parameters"] == {"resnet18": 11_689_512 - 990 * 513, "resnet50": 25_557_032 - 990 * 2049}[name]
    assert found["pictures"] < 1e-5  # drawn from the same numbers, by other logarithms and cosines
    assert found["labels"]
    (ours, theirs), later = found["losses"]
    assert ours == pytest.approx(theirs, rel=1e-12)  # FP64, of the same pictures
    assert later[0] == pytest.approx(later[1], rel=1e-6)  # Keras keeps the learning rate in FP32
    assert found["apart"]["running_mean"] < 1e-6
    assert max(found["apart"]["weight"], found["apart"]["bias"]) < 1e-5
    # torch divides the running variance by one less: in the last stage one sees 24 numbers
    assert found["apart"]["running_var"] < 1 / 24


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_its_weights_begin_as_widely_spread_as_torchs(twins: dict[str, Any], name: str) -> None:
    spread = twins[name]["spread"]

    assert spread == pytest.approx([1.0] * len(spread), rel=0.05)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_step_costs_the_operations_that_torch_counts(twins: dict[str, Any], name: str) -> None:
    ours, torchs = twins[name]["flops"]

    assert ours == torchs


def test_it_reports_what_the_torch_half_reports(runs: dict[str, Recorded]) -> None:
    found, pictures = runs["fp32"], runs["npz"]

    assert set(found.metrics[-1].values) == {"loss", "step_time_s", "data_time_s"}  # nothing is validated on synthetic
    assert set(pictures.metrics[-1].values) == {"loss", "step_time_s", "data_time_s", "val_accuracy", "val_loss"}
    second_blocks = sum(2 * (9 * width**2 + 2 * width) for width in (64, 128, 256, 512))
    assert found.events["training"]["parameters"] == 11_689_512 - 990 * 513 - second_blocks  # of ResNet-18, 10 classes
    assert found.events["training"]["training_samples"] == 512
    assert (pictures.events["training"]["training_samples"], pictures.events["training"]["validation_samples"]) == (
        48,
        12,
    )
    assert found.series("loss")[0] == pytest.approx(math.log(10), rel=0.35)  # it knows nothing yet


def test_it_tells_pictures_apart(runs: dict[str, Recorded]) -> None:
    losses = runs["npz"].series("loss")

    assert median(losses[-6:]) < 0.7 * losses[0]  # single batches of eight pictures have losses of their own


@pytest.mark.parametrize(
    ("name", "precision", "first"),
    # largest relative difference of the first loss to that of FP32: same weights, same pictures
    [
        ("amp_bf16", "amp_bf16", 0.05),
        ("amp_bf16_nchw", "amp_bf16", 0.05),
        ("bf16", "bf16", 0.05),
        ("nchw", "fp32", 1e-4),
    ],
)
def test_each_precision_and_layout_begins_where_fp32_does(
    runs: dict[str, Recorded], name: str, precision: str, first: float
) -> None:
    exact, found = runs["fp32"], runs[name]
    if name == "amp_bf16_nchw" and not has_avx512():
        refused = "layout=nchw: TensorFlow has no such convolution here: set layout=nhwc"
        assert found.events["refused"]["reason"] == refused
        return

    probe, rows = found.events["precision"], found.events["precision_observed"]["rows"]
    assert name_precision(probe["products"], probe["parameters"]) == precision
    trained = {row["format"] for row in rows if row["phase"] in ("forward", "backward")}
    assert trained == {"fp32" if precision == "fp32" else "bf16"}
    assert found.series("loss")[0] == pytest.approx(exact.series("loss")[0], rel=first)
    assert found.series("loss") != exact.series("loss") or (name == "nchw" and not has_avx512())


def test_batchnorm_sees_the_parts_that_are_computed_at_once(runs: dict[str, Recorded]) -> None:
    whole, parts, shared = (runs[name].series("loss") for name in ("fp32", "parts", "mirrored"))

    assert parts[0] != pytest.approx(whole[0], rel=1e-3)
    assert shared[0] == pytest.approx(parts[0], rel=1e-5)  # two devices see the same halves as one after the other
    assert runs["mirrored"].events["work"]["model_flops"] == runs["fp32"].events["work"]["model_flops"]


def test_a_training_that_left_ends_with_the_same_weights_bit_for_bit(runs: dict[str, Recorded]) -> None:
    assert_it_went_on_bit_for_bit(runs, "amp_bf16")
