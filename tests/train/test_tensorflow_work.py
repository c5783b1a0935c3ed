from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.train.framework_scripts import run_script

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

SCRIPT = """
import json
import tensorflow as tf
from hpcml_train.tensorflow.flops import count_step
layers = tf.keras.layers
def count(shape, *stack):
    model = tf.keras.Sequential([layers.Input(shape), *stack])
    return list(count_step(model, tf.zeros((4, *shape)), lambda model, x: tf.reduce_sum(model(x, training=True))))
weight = tf.Variable(tf.ones((3, 3)))
class Loop(tf.Module):
    trainable_variables = [weight]
    def __call__(self, x):
        return tf.while_loop(lambda h: tf.reduce_sum(h) < 0, lambda h: [h @ weight], [x])[0]
filters = tf.Variable(tf.ones((3, 3, 2, 6)))
class Grouped(tf.Module):
    trainable_variables = [filters]
    def __call__(self, x):
        return tf.nn.conv2d(x, filters, 1, "SAME")
def stubborn(model, x):
    raise ValueError("I must see\\nnumbers")
told = {
    "network": count((8, 8, 3),
        layers.Conv2D(6, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(),
        layers.Conv2D(4, 3, 2, padding="valid"), layers.Flatten(), layers.Dense(10)),
    "groups": list(count_step(Grouped(), tf.zeros((4, 8, 8, 4)), lambda model, x: tf.reduce_sum(model(x)))),
    "attention": count((5, 8), layers.Dense(8), layers.Lambda(lambda x: tf.matmul(x, x, transpose_b=True))),
    "unseen": count((8, 8, 3), layers.DepthwiseConv2D(3)),
    "compiled": count((8, 8, 4), layers.Conv2D(6, 3, groups=2)),
    "loop": list(count_step(Loop(), tf.ones((3, 3)), lambda model, x: tf.reduce_sum(model(x)))),
    "stubborn": list(count_step(Loop(), tf.ones((3, 3)), stubborn)),
}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return run_script(SCRIPT, "tensorflow")


def test_a_convolutional_net_costs_what_one_computes_by_hand(told: dict[str, Any]) -> None:
    first = 2 * (4 * 8 * 8 * 6) * (3 * 3 * 3)
    second = 2 * (4 * 3 * 3 * 4) * (6 * 3 * 3)
    last = 2 * 4 * (3 * 3 * 4) * 10

    # forward, and as much each for the gradients of weights and inputs; nobody needs those of the images
    assert told["network"] == [2 * first + 3 * second + 3 * last, None]


def test_groups_see_their_own_channels_only(told: dict[str, Any]) -> None:
    assert told["groups"] == [2 * 2 * (4 * 8 * 8 * 6) * (2 * 3 * 3), None]


def test_products_of_many_matrices_are_counted(told: dict[str, Any]) -> None:
    dense, product = 2 * (4 * 5 * 8) * 8, 2 * (4 * 5 * 5) * 8

    assert told["attention"] == [2 * dense + 3 * product, None]


def test_what_the_count_cannot_see_is_named(told: dict[str, Any]) -> None:
    assert told["unseen"] == [0, "operations that are not counted: DepthwiseConv2dNative"]
    assert "While" in told["loop"][1]
    assert "PartitionedCall" in told["compiled"][1]  # Keras compiles groups by themselves


def test_a_model_that_has_no_graph_has_no_count_and_the_doubt_says_why(told: dict[str, Any]) -> None:
    flops, doubt = told["stubborn"]

    assert flops is None
    assert doubt.startswith("not counted: the graph of the model cannot be read: ValueError: ")
    assert "I must see numbers" in doubt
    assert "\n" not in doubt
