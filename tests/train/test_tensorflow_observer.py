"""What a program of TensorFlow multiplies is what it is called, whatever it was asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import Event, read_journal
from hpcml_train.precision.observed import name_observed, read_window
from tests.train.framework_scripts import OBSERVED, run_script

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

SCRIPT = (
    OBSERVED.format(framework="tensorflow")
    + """
import tensorflow as tf
import hpcml_client
from tensorflow.python.eager.polymorphic_function import atomic_function
from hpcml_train.tensorflow.arithmetic import Arithmetic
keras, layers = tf.keras, tf.keras.layers
made = atomic_function.from_func_graph
x, y = tf.random.normal((48, 4, 4, 3)), tf.zeros((48,), tf.int32)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def model(head=None):
    return keras.Sequential([
        layers.Input((4, 4, 3)), layers.Conv2D(4, 3, name="conv"), layers.Flatten(),
        layers.Dense(16, name="hidden"), layers.Dense(10, dtype=head, name="head")])

def fit(head=None, **more):
    made = model(head)
    made.compile("sgd", loss, **more)
    made.fit(x, y, batch_size=32, verbose=0, validation_data=(x, y))

def loop(*, head=None, jit=False):
    net, optimizer = model(head), keras.optimizers.SGD()
    @tf.function(jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            found = loss(y, net(x, training=True))
        optimizer.apply(tape.gradient(found, net.trainable_variables), net.trainable_variables)
    for _ in range(3):
        step(x, y)

def forward_alone(compiled=tf.function):
    net = model()
    forward = compiled(lambda x: net(x))
    with tf.GradientTape() as tape:
        found = loss(y, forward(x))
    tape.gradient(found, net.trainable_variables)

def recurrent():
    # too long to be unrolled: a loop in the graph, whose body is a function of its own
    net = keras.Sequential([layers.Input((9, 8)), layers.LSTM(6, name="rnn"), layers.Dense(2, name="out")])
    net.compile("sgd", "mse")
    net.fit(tf.random.normal((32, 9, 8)), tf.zeros((32, 2)), batch_size=16, verbose=0)

def attention():
    inputs = layers.Input((5, 8))
    found = layers.Dense(2, name="out")(layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs))
    net = keras.Model(inputs, found)
    net.compile("sgd", "mse")
    net.fit(tf.random.normal((32, 5, 8)), tf.zeros((32, 5, 2)), batch_size=16, verbose=0)

def in_fp32(program):
    keras.mixed_precision.set_dtype_policy("float32")
    program()

def under(precision, title, program, **more):
    keras.backend.clear_session()
    Arithmetic(precision)
    case(title, program, precision, **more)

under("amp_bf16", "fit", fit)
under("amp_bf16", "fit by xla", lambda: fit(jit_compile=True))
under("amp_bf16", "fp32 head", lambda: fit("float32"))
under("amp_bf16", "ignored", lambda: in_fp32(fit))
under("amp_bf16", "loop", loop)
under("amp_bf16", "loop by xla, fp32 head", lambda: loop(head="float32", jit=True))
under("amp_bf16", "forward alone", forward_alone)
under("amp_bf16", "eager", lambda: forward_alone(lambda function: function))
under("amp_bf16", "fit eagerly", lambda: fit(run_eagerly=True))
under("amp_bf16", "recurrent", recurrent)
under("amp_bf16", "attention", attention)
under("bf16", "bf16", fit, parameters="bfloat16")
under("fp32", "gpu", loop, on_gpu=True)

def rewritten():
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    loop()
    told["switch"] = tf.config.optimizer.get_experimental_options()

under("fp32", "rewritten", rewritten)
tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})
def with_tf32():
    tf.config.experimental.enable_tensor_float_32_execution(True)
    loop()
under("fp32", "gpu with tf32", with_tf32, on_gpu=True)
told["put_back"] = atomic_function.from_func_graph is made

# an observer that fails: the program does not notice
from hpcml_train.tensorflow import observer as module
flops, module._flops = module._flops, lambda operation: 1 / 0
under("fp32", "failing", loop)
module._flops = flops
told["put_back_after_a_failure"] = atomic_function.from_func_graph is made

# by the client, as a program of a run has it
run = hpcml_client.connect()
arithmetic = run.apply_precision("tensorflow")
with arithmetic.context():
    fit()
run.close()
print(json.dumps(told))
"""
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def told(run_dir: Path) -> dict[str, Any]:
    return run_script(SCRIPT, "tensorflow", HPCML_RUN_DIR=str(run_dir), HPCML_PRECISION="amp_bf16")


def test_a_program_is_called_what_it_multiplies(told: dict[str, Any]) -> None:
    for title in ("fit", "fit by xla", "loop", "forward alone", "recurrent", "attention"):
        assert told[title]["word"] == "amp_bf16", title
    assert told["bf16"]["word"] == "bf16"
    assert told["ignored"]["word"] == "not used(fp32)"


@pytest.mark.parametrize("title", ["fp32 head", "loop by xla, fp32 head"])
def test_a_head_in_fp32_makes_it_mixed_and_is_named(told: dict[str, Any], title: str) -> None:
    conv, hidden, head = 2 * (2 * 2 * 4) * (3 * 3 * 3), 2 * 16 * 16, 2 * 16 * 10  # of one sample, forward
    share = 100 * head / (conv + hidden + head)

    assert told[title]["word"] == f"mixed({100 - share:.0f} % bf16, {share:.0f} % fp32: head)"
    assert {row["layer"] for row in told[title]["rows"]} == {"conv", "hidden", "head"}


def test_operations_are_those_of_the_layers_in_both_passes(told: dict[str, Any]) -> None:
    rows = {(row["phase"], row["layer"]): row["flops"] for row in told["loop"]["rows"]}
    dense = 2 * 48 * 16 * 16
    convolution = 2 * 48 * (2 * 2 * 4) * (3 * 3 * 3)

    assert (rows[("forward", "hidden")], rows[("backward", "hidden")]) == (dense, 2 * dense)
    assert (rows[("forward", "conv")], rows[("backward", "conv")]) == (convolution, 2 * convolution)


def test_what_does_not_differentiate_is_an_evaluation_where_something_else_does(told: dict[str, Any]) -> None:
    assert {row["phase"] for row in told["fit"]["rows"]} == {"forward", "backward", "evaluation"}
    assert {row["phase"] for row in told["loop"]["rows"]} == {"forward", "backward"}
    assert {row["layer"] for row in told["recurrent"]["rows"] if row["phase"] == "forward"} == {"rnn", "out"}


def test_what_nobody_can_know_is_unknown(told: dict[str, Any]) -> None:
    assert told["eager"]["word"] is told["fit eagerly"]["word"] is None  # no graph, no window
    assert told["gpu"]["word"] == "fp32"
    for title, what in (
        ("gpu with tf32", "float32 on a GPU, where TF32 is allowed"),
        ("rewritten", "auto_mixed_precision rewrites the graphs"),
    ):
        assert told[title]["word"] == "unknown", title
        assert what in [one["what"] for one in told[title]["unknown"]]


def test_an_observer_never_harms_the_program(told: dict[str, Any]) -> None:
    assert told["put_back"] is told["put_back_after_a_failure"] is True
    hello, off = told["failing"]["hello"]
    assert "off" not in hello
    assert off["off"] == "ZeroDivisionError: division by zero"
    assert told["failing"]["word"] == "unknown"


def test_a_run_that_asks_for_its_precision_is_observed(told: dict[str, Any], run_dir: Path) -> None:
    assert told
    (path,) = run_dir.rglob("*.jsonl")
    events = [record for record in read_journal(path).records if isinstance(record, Event)]
    windows = [read_window(event.details) for event in events if event.name == "precision_observed"]

    assert [event.details["framework"] for event in events if event.name == "precision_observer"] == ["tensorflow"]
    assert name_observed([one for one in windows if one is not None], "amp_bf16", "float32") == "amp_bf16"
