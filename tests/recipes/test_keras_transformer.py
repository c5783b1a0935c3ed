"""The transformers in Keras: the same network, windows and measures as in torch, and text that they write."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from image_runs import Recorded
from language_runs import DRAWS, SAYS, SQUARES, assert_it_continues
from numeric_runs import ROOT, assert_it_went_on_bit_for_bit, config_of, run_all

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
SMALL = {"layers": 2, "width": 32, "heads": 2, "feed_forward": 64, "context": 24, "validation_windows": 8}
KINDS = ("decoder", "encoder", "encoder_decoder")
TWO = {"name": "mirrored", "devices": 2}
# Gives the Keras network torch's weights, and both the same windows; says how far losses and gradients are apart, how
# widely the first weights are spread, and what a step costs in each.
TWINS = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT / "recipes" / "transformer")!r})
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
told = {{}}
def of_keras(name, value):
    value = value.detach().numpy()
    return value.T if value.ndim == 2 and not name.startswith("embedding") else value
for kind in {KINDS!r}:
    task = Task(data="text", data_path=os.environ["TEXT"], options={{**{SMALL!r}, "kind": kind}})
    theirs, ours = training.LanguageModelling(task, InTorch("fp64")), twin.LanguageModelling(task, None)
    network, keras = theirs.model.double(), ours.build()
    named = list(network.named_parameters())  # in the order in which both make them
    copied = [of_keras(*pair) for pair in named]
    first = [(one.std(), other.std()) for one, other in zip(keras.get_weights(), copied) if other.ndim > 1]
    keras.set_weights(copied)
    places = np.arange(5) * 37
    batch, torchs = ours.batch(places), theirs.batch(torch.tensor(places))
    with tf.GradientTape() as tape:
        loss = ours.loss(keras, batch)
    gradients = [tf.convert_to_tensor(one).numpy() for one in tape.gradient(loss, keras.trainable_variables)]
    expected = theirs.loss(network, torchs)
    expected.backward()
    wanted = [of_keras(name, value.grad) for name, value in named]
    told[kind] = {{
        "loss": [float(loss), expected.item()],
        "gradients": max(abs(one - other).max() / abs(other).max() for one, other in zip(gradients, wanted)),
        "evaluated": [ours.evaluate(keras), theirs.evaluate(network.eval())],
        "spread": [one / other for one, other in first],
        "facts": [ours.facts(), theirs.facts()],
        "flops": [count_step(keras, batch, ours.loss).flops, count_in_torch(network, torchs, theirs.loss).flops],
    }}
print(json.dumps(told))
"""


def config(
    folder: Path, precision: str = "fp32", *, options: Mapping[str, object] = {}, **groups: Mapping[str, Any]
) -> dict[str, Any]:
    training = {"steps": STEPS, "batch_size": 16, "learning_rate": 5e-3, "eval_every": 2, "deterministic": True}
    groups["data"] = {"name": "text", "holdout": 0.2, "path": str(folder / "text.txt")}
    groups["training"] = {**training, **groups.get("training", {})}
    return config_of("transformer_tiny", precision, "tensorflow", options={**SMALL, "layers": 1, **options}, **groups)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformer")
    (folder / "text.txt").write_text(SQUARES)
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Recorded]:
    """Everything that is trained here; the first one fixes the devices that TensorFlow has."""
    dropout = {"dropout": 0.2}
    return run_all(
        folder,
        "transformer::tensorflow_training",
        {
            "mirrored": config(folder, "fp64", strategy=TWO),
            "left out by two": config(folder, "fp64", options=dropout, strategy=TWO),
            "left out by two again": config(folder, "fp64", options=dropout, strategy=TWO),
            "fp32": config(folder, options=SAYS, training={"steps": 200, "eval_every": 100}),
            "fp64": config(folder, "fp64"),
            "amp_bf16": config(folder, "amp_bf16"),
            "parts": config(folder, "fp64", options=DRAWS, training={"accumulate": 2}),
            "left out": config(folder, "fp64", options=dropout, training={"accumulate": 2}),
            **{kind: config(folder, options={"kind": kind, "layers": 2}) for kind in KINDS[1:]},
        },
        left={"left out": 2},
    )


@pytest.fixture(scope="module")
def twins(folder: Path) -> dict[str, Any]:
    return run_script(TWINS, "tensorflow", TEXT=str(folder / "text.txt"))


@pytest.mark.parametrize("kind", KINDS)
def test_with_torchs_weights_it_says_and_learns_what_torch_does(twins: dict[str, Any], kind: str) -> None:
    found = twins[kind]

    ours, theirs = found["evaluated"]
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-12)  # FP64, of the same windows
    assert found["gradients"] < 1e-10  # of the largest of each weight
    assert ours == pytest.approx(theirs, rel=1e-12)
    assert found["facts"][0] == found["facts"][1]


@pytest.mark.parametrize("kind", KINDS)
def test_its_weights_begin_as_widely_spread_as_torchs(twins: dict[str, Any], kind: str) -> None:
    spread = twins[kind]["spread"]

    assert spread == pytest.approx([1.0] * len(spread), rel=0.15)  # of a thousand numbers and more


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_costs_the_operations_that_torch_counts(twins: dict[str, Any], kind: str) -> None:
    ours, torchs = twins[kind]["flops"]

    # torch may compute the products of its fused attention once more; of an encoder_decoder each half sees 16 tokens
    windows, width, context = 5, SMALL["width"], SMALL["context"]
    pairs = 3 * (context // 2) ** 2 if kind == "encoder_decoder" else 2 * context**2
    assert torchs - ours in (0, windows * 2 * pairs * width)


def test_it_reports_what_the_torch_half_reports(runs: dict[str, Recorded]) -> None:
    found = runs["fp64"]

    observed = {"precision_observer", "precision_observed"}
    assert set(found.events) == {"framework", "precision", *observed, "training", "work", "memory", "final", "closed"}
    assert set(found.metrics[-1].values) > {"loss", "step_time_s", "val_loss", "perplexity", "val_accuracy"}
    assert [record.step for record in found.metrics if "val_loss" in record.values] == [2, 4]
    work = found.events["work"]
    assert (work["tokens"], work["flops_method"], work["flops_doubt"]) == (16.0 * SMALL["context"], "graph", None)


@pytest.mark.parametrize("name", ["fp32", "encoder", "encoder_decoder"])
def test_each_kind_begins_knowing_nothing_and_learns(runs: dict[str, Recorded], name: str) -> None:
    losses = runs[name].series("loss")

    assert losses[0] == pytest.approx(math.log(257), rel=0.02)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize(
    ("precision", "first"),
    # largest relative difference of the first loss to that of FP32: same weights, same windows
    [("fp64", 1e-6), ("amp_bf16", 1e-3)],
)
def test_each_precision_begins_where_fp32_does(runs: dict[str, Recorded], precision: str, first: float) -> None:
    exact, found = runs["fp32"], runs[precision]

    probe, rows = found.events["precision"], found.events["precision_observed"]["rows"]
    assert name_precision(probe["products"], probe["parameters"]) == precision
    trained = [row for row in rows if row["phase"] in ("forward", "backward")]
    assert {row["format"] for row in trained} == {{"fp64": "fp64", "amp_bf16": "bf16"}[precision]}
    assert {row["layer"] for row in trained} == {"decoder0", "head"}
    assert found.series("loss")[0] == pytest.approx(exact.series("loss")[0], rel=first)
    assert found.series("loss") != exact.series("loss")[:STEPS]


@pytest.mark.parametrize(
    ("kind", "blocks"), [("encoder", ["encoder0", "encoder1"]), ("encoder_decoder", ["encoder0", "decoder0"])]
)
def test_the_products_of_each_block_are_observed(runs: dict[str, Recorded], kind: str, blocks: list[str]) -> None:
    rows = runs[kind].events["precision_observed"]["rows"]

    trained = {row["layer"] for row in rows if row["phase"] in ("forward", "backward")}
    assert trained == {*blocks, "head"}


@pytest.mark.parametrize("name", ["mirrored", "parts"])
def test_a_batch_that_is_shared_trains_as_the_whole(runs: dict[str, Recorded], name: str) -> None:
    for metric in ("loss", "val_loss"):
        assert runs[name].series(metric) == pytest.approx(runs["fp64"].series(metric), rel=1e-10)
    assert runs[name].events["work"]["model_flops"] == runs["fp64"].events["work"]["model_flops"]


@pytest.mark.parametrize(("name", "with_all"), [("left out", "parts"), ("left out by two", "mirrored")])
def test_what_is_left_out_changes_training_and_no_validation(
    runs: dict[str, Recorded], name: str, with_all: str
) -> None:
    found, whole = runs[name], runs[with_all]

    assert found.series("loss")[0] != whole.series("loss")[0]
    assert found.series("loss")[0] == pytest.approx(whole.series("loss")[0], rel=0.02)
    assert found.series("val_loss")[-1] == pytest.approx(whole.series("val_loss")[-1], rel=0.05)


def test_two_devices_leave_out_the_same_again(runs: dict[str, Recorded]) -> None:
    assert runs["left out by two"].events["final"] == runs["left out by two again"].events["final"]
    assert runs["left out by two"].series("loss") != runs["left out"].series("loss")


def test_a_training_that_left_ends_with_the_same_weights_bit_for_bit(runs: dict[str, Recorded]) -> None:
    assert_it_went_on_bit_for_bit(runs, "left out")


def test_a_trained_decoder_continues_a_text(runs: dict[str, Recorded]) -> None:
    assert_it_continues(runs["fp32"], runs["parts"])
