"""The recurrent networks in Keras: the same network, sequences and measures as in torch."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from typing import Any

import pytest
from image_runs import Recorded
from language_runs import DRAWS, SAYS, SQUARES, assert_it_continues
from numeric_runs import ROOT, config_of, run_all

from tests.train.framework_scripts import run_script

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("torch") is None,
        reason="TensorFlow or torch is not installed",
    ),
]

STEPS = 4
SMALL = {"layers": 2, "width": 24, "embedding": 16, "context": 8, "modulus": 7}
# Gives the Keras network torch's weights; says how far both are apart, and what a step costs
# in each.
TWINS = f"""
import json, sys
sys.path.insert(0, {str(ROOT / "recipes" / "lstm")!r})
import numpy as np, tensorflow as tf, torch
import models, tensorflow_training as twin
from shape import Shape
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.flops import count_step
from hpcml_train.torch.flops import count_step as count_in_torch
Arithmetic("fp64")
torch.manual_seed(0)
tf.keras.utils.set_random_seed(0)
rows, told = np.random.RandomState(0).randint(0, 64, (4, 9)), {{}}
batch = rows[:, :-1], rows[:, 1:]
def loss(model, batch):
    return tf.reduce_mean(twin.cross_entropies(model(batch[0], training=True), batch[1]))
def loss_in_torch(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
for cell in ("lstm", "rnn"):
    shape = Shape(cell=cell, layers=2, width=64, embedding=32, context=8)
    network = models.Recurrent(shape, 64).double()
    of = {{name: value.detach().numpy() for name, value in network.state_dict().items()}}
    copied = [of["embedding.weight"]]
    for n in range(shape.layers):
        one = {{part: of[f"{{cell}}.{{part}}_l{{n}}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}}
        copied += [one["weight_ih"].T, one["weight_hh"].T, one["bias_ih"] + one["bias_hh"]]
    copied += [of["out.weight"].T, of["out.bias"]]
    logits = network(torch.tensor(batch[0])).detach().numpy()
    told[cell] = found = {{"apart": []}}
    for unroll in (False, True):
        keras = twin.next_token(shape, 64, unroll=unroll)
        keras.set_weights(copied)
        found["apart"].append(abs(keras(tf.constant(batch[0], tf.int32)).numpy() - logits).max())
    found["keras"] = count_step(keras, batch, loss).flops
    found["torch"] = count_in_torch(network, tuple(map(torch.tensor, batch)), loss_in_torch).flops
print(json.dumps(told))
"""


def config(
    precision: str = "fp32", *, options: Mapping[str, object] = {}, **groups: Mapping[str, Any]
) -> dict[str, Any]:
    training = {"steps": STEPS, "batch_size": 8, "learning_rate": 1e-2, "eval_every": 2, "deterministic": True}
    groups["data"] = {"name": "fibonacci", "holdout": 0.2, "path": None, **groups.get("data", {})}
    groups["training"] = {**training, **groups.get("training", {})}
    return config_of("lstm", precision, "tensorflow", options={**SMALL, **options}, **groups)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """Everything that is trained here."""
    folder = tmp_path_factory.mktemp("keras")
    (folder / "text.txt").write_text(SQUARES)
    text = {"name": "text", "path": str(folder / "text.txt")}
    speaking = {"context": 12, "layers": 1, "width": 48}
    knows = {"steps": 250, "batch_size": 16, "eval_every": 250}
    learning = {"steps": 120, "batch_size": 32, "eval_every": 120}
    return run_all(
        folder,
        "lstm::tensorflow_training",
        {
            "fp32": config(),
            "rnn": config(options={"cell": "rnn"}),
            "learned": config(options={"layers": 1}, training=learning),
            "said": config(options={**speaking, **SAYS}, data=text, training=knows),
            "drawn": config(options={**speaking, **DRAWS}, data=text),
        },
    )


@pytest.fixture(scope="module")
def twins() -> dict[str, Any]:
    return run_script(TWINS, "tensorflow")


@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_with_torchs_weights_it_says_what_torch_says(twins: dict[str, Any], cell: str) -> None:
    assert max(twins[cell]["apart"]) < 1e-14  # logits of about 1, in FP64


@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_a_step_costs_the_operations_that_torch_counts(twins: dict[str, Any], cell: str) -> None:
    assert twins[cell]["keras"] == twins[cell]["torch"]


def test_it_reports_what_the_torch_half_reports(runs: dict[str, Recorded]) -> None:
    found = runs["fp32"]

    assert set(found.events) == {"framework", "precision", "training", "work", "memory", "final", "closed"}
    assert set(found.metrics[0].values) == {"loss", "step_time_s", "data_time_s"}
    assert set(found.metrics[-1].values) > {"val_loss", "perplexity", "val_accuracy"}
    assert [record.step for record in found.metrics if "val_loss" in record.values] == [2, 4]
    assert found.events["training"]["modulus"] == 7
    assert found.events["training"]["training_samples"] + found.events["training"]["validation_samples"] == 49
    work = found.events["work"]
    assert (work["tokens"], work["flops_method"], work["flops_doubt"]) == (8.0 * 8, "graph", None)
    assert found.series("loss")[0] == pytest.approx(math.log(7), rel=0.15)  # it knows nothing yet


def test_a_plain_network_is_another_one(runs: dict[str, Recorded]) -> None:
    plain, lstm = runs["rnn"].events, runs["fp32"].events

    assert plain["training"]["parameters"] < lstm["training"]["parameters"] / 2


def test_it_learns_to_add(runs: dict[str, Recorded]) -> None:
    learned = runs["learned"]

    assert learned.series("val_accuracy")[-1] > 0.7  # guessing: 1 of 7
    assert learned.series("perplexity")[-1] == pytest.approx(math.exp(learned.series("val_loss")[-1]))


def test_a_trained_network_continues_a_text(runs: dict[str, Recorded]) -> None:
    assert_it_continues(runs["said"], runs["drawn"])
    assert "generated" not in runs["fp32"].events
