"""What the loop of the JAX recipes is made of, in one process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.train.framework_scripts import run_script

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None or importlib.util.find_spec("torch") is None,
        reason="JAX or torch is not installed",
    ),
]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json
import jax, jax.numpy as jnp, numpy as np, torch
from hpcml_train.jax.recipe import Adam
from hpcml_train.jax.arithmetic import Arithmetic
from hpcml_train.jax.training import said_in_one_line
from hpcml_train.jax.flops import count_step
from hpcml_train.errors import TrainingFailed
told = {}

# ten steps on the same gradients as torch's own Adam
def adam(precision, dtype):
    arithmetic = Arithmetic(precision)
    numbers = np.random.RandomState(0)
    first, gradients = numbers.standard_normal(50), 0.1 * numbers.standard_normal((10, 50))
    theirs = torch.nn.Parameter(torch.tensor(first, dtype=dtype))
    optimizer = torch.optim.Adam([theirs], lr=0.01, eps=arithmetic.optimizer_eps())
    ours, adam = arithmetic.prepare({"weight": first}), Adam(0.01, arithmetic.optimizer_eps())
    moments = adam.begin(ours)
    for gradient in gradients:
        theirs.grad = torch.tensor(gradient, dtype=dtype)
        optimizer.step()
        ours, moments = jax.jit(adam.step)(ours, arithmetic.prepare({"weight": gradient}), moments)
    assert str(ours["weight"].dtype) == str(moments.second["weight"].dtype) == arithmetic.parameter_dtype
    found = np.asarray(ours["weight"].astype("float32" if dtype != torch.float64 else "float64"))
    moved = np.abs(theirs.detach().double().numpy() - first).max()
    return float(np.abs(found - theirs.detach().double().numpy()).max() / moved)
told["adam"] = {name: adam(name, dtype) for name, dtype in
    {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items()}

# a batch in parts
arithmetic = Arithmetic("fp64")
x = np.random.RandomState(0).standard_normal((8, 3))
rows = []
def loss_of(w, x):
    rows.append(x.shape[0])
    return ((x @ w) ** 2).mean()
def gradients(parts, factor=1.0):
    found = arithmetic.value_and_grad(lambda w, x: loss_of(w, x) * factor, parts=parts)
    loss, gradient, finite, _ = jax.jit(found)(jnp.ones(3), arithmetic.loss_scale(), x)
    return float(loss), gradient.tolist(), bool(finite)
told["parts"] = {parts: gradients(parts) for parts in (1, 2, 8)}
told["rows"] = sorted(set(rows))
arithmetic = Arithmetic("amp_fp16")
told["overflow"] = [gradients(parts, factor=100.0)[2] for parts in (1, 4)]

# operations
def flops(function, *shapes):
    return list(count_step(jax.grad(lambda *a: function(*a).sum()), *(jnp.zeros(shape) for shape in shapes)))
def convolve(w, x):
    return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
def grouped(w, x, stride=1):
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2)
def grouped_twice(w, x):
    return grouped(w, jnp.tanh(grouped(w, x, 2)), 2)
def both(w, x):
    return convolve(w, jnp.tanh(convolve(w, x)))
def repeated(w, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=5)[0]
def endless(x):
    return jax.lax.while_loop(lambda h: h.sum() < 0, lambda h: h @ h, x)
def chosen(x):
    return jax.lax.cond(x.sum() > 0, lambda y: y @ y, lambda y: y, x)
told["flops"] = {
    "dense": flops(lambda w, x: x @ w, (3, 5), (7, 3)),
    "batched": flops(lambda a, b: jnp.einsum("bij,bjk->bik", jnp.tanh(a), b), (2, 3, 4), (2, 4, 5)),
    "convolution": flops(convolve, (6, 4, 3, 3), (2, 4, 8, 8)),
    "two convolutions": flops(both, (4, 4, 3, 3), (2, 4, 8, 8)),
    "grouped": flops(grouped, (3, 3, 2, 6), (2, 8, 8, 4)),
    "grouped twice": flops(grouped_twice, (3, 3, 2, 4), (2, 8, 8, 4)),
    "compiled": flops(jax.jit(lambda w, x: x @ w), (3, 5), (7, 3)),
    "repeated": flops(repeated, (4, 4), (2, 4)),
    "endless": list(count_step(endless, jnp.ones((3, 3)))),
    "one of two": list(count_step(chosen, jnp.ones((3, 3)))),
}

# checkpoints
from hpcml_client.checkpoints import Saved
from hpcml_train.jax.training import Progress, digest_of, read, write
from hpcml_train.errors import RecipeError
def progress(precision, size=5):
    arithmetic = Arithmetic(precision)
    weights = arithmetic.prepare({"weight": np.linspace(0, 1, size), "bias": np.ones(3)})
    return Progress(weights, Adam(0.1, 1e-8).begin(weights), arithmetic.loss_scale())
def refused(path, like, precision):
    try:
        read(Saved(path, 1), like, precision)
    except RecipeError as error:
        return str(error)
kept = progress("bf16")
write(kept, "bf16", "saved")
begun = Progress(*jax.tree_util.tree_map(jnp.zeros_like, kept))
told["digests"] = [digest_of(found.weights) for found in (kept, read(Saved("saved", 1), begun, "bf16"), begun)]
with open("torn", "wb") as file:
    file.write(open("saved", "rb").read()[:200])
told["refused"] = [
    refused("saved", progress("fp32"), "fp32"),
    refused("saved", progress("bf16", size=6), "bf16"),
    refused("torn", begun, "bf16"),
]

# failures
def failure(act):
    try:
        with said_in_one_line():
            act()
    except TrainingFailed as error:
        return str(error)
    except Exception as error:
        return type(error).__name__
told["failures"] = [
    failure(lambda: jax.block_until_ready(jnp.zeros((1 << 45,), jnp.float32))),
    failure(lambda: np.zeros((1 << 50,))),
    failure(lambda: jnp.zeros(3) @ jnp.zeros(4)),
]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with contextlib.chdir(tmp_path_factory.mktemp("jax")):
        return run_script(SCRIPT, "jax")


@pytest.mark.parametrize(
    # largest difference of a weight after ten steps, as a share of the way that the weights went
    ("precision", "most"),
    [("fp64", 1e-13), ("fp32", 1e-5), ("bf16", 0.02), ("fp16", 0.01)],
)
def test_adam_goes_where_torchs_goes(told: dict[str, Any], precision: str, most: float) -> None:
    assert told["adam"][precision] < most


def test_a_batch_in_parts_has_the_gradients_of_the_whole(told: dict[str, Any]) -> None:
    (loss, gradient, finite), *others = told["parts"].values()

    assert finite
    assert told["rows"] == [1, 4, 8]
    for loss_in_parts, gradient_in_parts, _ in others:
        assert loss_in_parts == pytest.approx(loss, rel=1e-14)
        assert gradient_in_parts == pytest.approx(gradient, rel=1e-14)


def test_an_overflow_in_any_part_is_seen(told: dict[str, Any]) -> None:
    assert told["overflow"] == [False, False]


def test_the_operations_of_a_step_are_those_that_one_computes_by_hand(told: dict[str, Any]) -> None:
    convolution = 2 * (2 * 6 * 4 * 4) * (4 * 3 * 3)
    twice = [2 * (2 * 4 * side * side) * (4 * 3 * 3) for side in (4, 2)]  # the second one's input needs a gradient too

    assert told["flops"] == {
        "dense": [2 * 2 * 7 * 3 * 5, None],  # forward, and the gradient of the weights
        "batched": [2 * 2 * (2 * 3 * 4 * 5), None],
        "convolution": [2 * convolution, None],
        "two convolutions": [2 * twice[0] + 3 * twice[1], None],
        "grouped": [2 * 2 * (2 * 8 * 8 * 6) * (2 * 3 * 3), None],
        "grouped twice": [twice[0] + 3 * twice[1] // 2, None],
        "compiled": [2 * 2 * 7 * 3 * 5, None],
        "repeated": [5 * 3 * 2 * 2 * 4 * 4, None],
        "endless": [2 * 3**3, "while: a loop of unknown length, counted once"],
        "one of two": [2 * 3**3, None],
    }


def test_a_checkpoint_is_read_bit_for_bit_in_bf16_too(told: dict[str, Any]) -> None:
    written, found, begun = told["digests"]

    assert written == found != begun


def test_a_checkpoint_of_something_else_is_refused_in_one_line(told: dict[str, Any]) -> None:
    precision, model, torn = told["refused"]

    assert precision.startswith("cannot go on from saved: a checkpoint of precision=bf16 is no start for fp32: remove")
    assert model.startswith("cannot go on from saved: it holds another model: remove")
    assert torn.startswith("cannot go on from torn: ")
    assert "\n" not in torn


def test_exhausted_memory_is_one_line_with_what_to_do_and_other_mistakes_are_not(told: dict[str, Any]) -> None:
    *exhausted, other = told["failures"]

    for line in exhausted:
        assert line.startswith("out of memory (")
        assert line.endswith(
            "set training.accumulate=2 or more for the same batch in parts, or a smaller training.batch_size"
        )
        assert "\n" not in line
    assert other == "TypeError"
