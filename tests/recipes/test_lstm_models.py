from __future__ import annotations

import contextlib
import copy

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from language_runs import RECIPES, load, options_of

from hpcml.model.recipe import read_recipe
from hpcml_train.errors import RecipeError
from hpcml_train.torch.emulation import emulate
from hpcml_train.torch.flops import count_step

pytestmark = pytest.mark.torch
models = load("lstm", "models")

# The worked example of the course that hpcml began with: one cell, two steps, E = 1/2 sum (out - y)^2, learning rate
# 0.1, printed with five digits after rounding in between, hence 5e-5. Two errata: y_1 is printed as -1.25 where all
# numbers follow from +1.25, and the learning rate, which is not printed, follows from the new weights. Gates in torch's
# order: i, f, a (torch's g), o.
WEIGHT = [[0.95, 0.8], [0.7, 0.45], [0.45, 0.25], [0.6, 0.4]]
RECURRENT = [[0.8], [0.1], [0.15], [0.25]]
BIAS = [0.65, 0.15, 0.2, 0.1]
X, Y = [[1.0, 2.0], [0.5, 3.0]], [0.5, 1.25]
OUT, STATE = [0.53631, 0.77197], [0.78572, 1.5176]
GATES = [[-0.00165, 0.0, -0.01703, 0.00176], [-0.00112, -0.00631, -0.01938, -0.05538]]
D_X = [[-0.00817, -0.00487], [-0.04743, -0.03073]]
D_OUT_0, D_OUT_BEFORE = 0.01803, -0.00343
D_WEIGHT = [[-0.00221, -0.00666], [-0.00316, -0.01893], [-0.02672, -0.0922], [-0.02593, -0.16262]]
D_RECURRENT = [[-0.0006], [-0.00338], [-0.01039], [-0.0297]]
D_BIAS = [-0.00277, -0.00631, -0.03641, -0.05362]
NEW_WEIGHT = [[0.95022, 0.80067], [0.70031, 0.45189], [0.45267, 0.25922], [0.60259, 0.41626]]
NEW_RECURRENT = [[0.80006], [0.10034], [0.15104], [0.25297]]
NEW_BIAS = [0.65028, 0.15063, 0.20364, 0.10536]


def cell(dtype: torch.dtype) -> torch.nn.LSTM:
    network = models.Recurrent(models.Shape(embedding=2, width=1), 3).to(dtype)
    lstm: torch.nn.LSTM = network.lstm
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.tensor(WEIGHT))
        lstm.weight_hh_l0.copy_(torch.tensor(RECURRENT))
        lstm.bias_ih_l0.copy_(torch.tensor(BIAS))
        lstm.bias_hh_l0.zero_()  # torch has two biases where the example has one
    return lstm


def close(found: torch.Tensor | None, printed: object) -> bool:
    assert found is not None
    return torch.allclose(found.double().squeeze(), torch.tensor(printed, dtype=torch.float64).squeeze(), atol=5e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("products", ["fused", "plain"])  # the second: as emulated precisions compute them
def test_the_layer_computes_the_worked_example(dtype: torch.dtype, products: str) -> None:
    first, second = cell(dtype), cell(dtype)
    x = [torch.tensor([[row]], dtype=dtype, requires_grad=True) for row in X]
    before = torch.zeros(1, 1, 1, dtype=dtype, requires_grad=True)
    with contextlib.nullcontext() if products == "fused" else emulate("half", has_rnn=True, must_see=False):
        # torch's own words, since the recipe's layer hands on no memory
        _, (out_0, state_0) = torch.nn.LSTM.forward(first, x[0], (before, torch.zeros(1, 1, 1, dtype=dtype)))
        out_0.retain_grad()
        _, (out_1, state_1) = torch.nn.LSTM.forward(second, x[1], (out_0, state_0))
        (((out_0 - Y[0]) ** 2 + (out_1 - Y[1]) ** 2) / 2).sum().backward()

    assert close(torch.cat([out_0, out_1]), OUT)
    assert close(torch.cat([state_0, state_1]), STATE)
    assert close(out_0.grad, D_OUT_0)
    assert close(before.grad, D_OUT_BEFORE)
    for step, layer in enumerate((first, second)):
        assert close(x[step].grad, D_X[step])
        assert close(layer.bias_ih_l0.grad, GATES[step])  # of one step alone: the gradients before the gates


def test_one_step_down_the_gradient_gives_the_printed_weights() -> None:
    lstm = cell(torch.float64)
    before = copy.deepcopy(lstm)
    optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)

    out = lstm(torch.tensor([X], dtype=torch.float64))
    ((out[0, :, 0] - torch.tensor(Y)) ** 2 / 2).sum().backward()
    optimizer.step()

    assert close(lstm.weight_ih_l0.grad, D_WEIGHT)
    assert close(lstm.weight_hh_l0.grad, D_RECURRENT)
    assert close(lstm.bias_ih_l0.grad, D_BIAS)
    assert close(lstm.weight_ih_l0, NEW_WEIGHT)
    assert close(lstm.weight_hh_l0, NEW_RECURRENT)
    assert close(lstm.bias_ih_l0, NEW_BIAS)
    assert not close(before.weight_ih_l0, NEW_WEIGHT)


def test_a_plain_network_computes_what_the_course_writes() -> None:
    network = models.Recurrent(models.Shape(cell="rnn", embedding=2, width=3), 4).double()
    rnn, x = network.rnn, torch.randn(1, 5, 2, dtype=torch.float64)

    found = rnn(x)[0]

    h = torch.zeros(3, dtype=torch.float64)
    for at in range(5):  # h_t = tanh(W_hh h_(t-1) + W_xh x_t), with torch's two biases
        h = torch.tanh(rnn.weight_hh_l0 @ h + rnn.bias_hh_l0 + rnn.weight_ih_l0 @ x[0, at] + rnn.bias_ih_l0)
        assert torch.allclose(found[at], h)
    assert not hasattr(network, "lstm")


sequences = load("lstm", "sequences")


def test_fibonaccis_numbers_are_fibonaccis() -> None:
    found = sequences.fibonacci(np.array([[1, 1], [0, 1]]), 62, 10)

    assert found[0, :11].tolist() == [1, 1, 2, 3, 5, 8, 3, 1, 4, 5, 9]
    assert found[1, 60:].tolist() == [0, 1]  # Pisano's period of 10 is 60


def test_held_out_pairs_are_not_trained_on_and_no_pair_is_lost() -> None:
    shape = models.Shape(modulus=10, context=4)

    found = sequences.Fibonacci(shape, 0.2, torch.tensor)

    trained = {tuple(row[:2].tolist()) for row in found.training(torch.arange(len(found)))}
    held_out = {tuple(row[:2].tolist()) for row in found.validation()}
    assert (len(trained), len(held_out)) == (80, 20)
    assert len(trained | held_out) == 100
    assert len({second for _, second in held_out}) > 5


def test_a_share_that_leaves_no_pair_is_refused_in_one_line() -> None:
    with pytest.raises(RecipeError, match=r"data.holdout=0.01 of 9 pairs leaves none"):
        sequences.Fibonacci(models.Shape(modulus=3), 0.01, torch.tensor)


@pytest.mark.parametrize(("name", "vocabulary", "parameters"), [("lstm", 12, 84_876), ("lstm_text", 256, 1_020_160)])
def test_every_file_says_every_option_and_gives_the_network_it_claims(
    name: str, vocabulary: int, parameters: int
) -> None:
    recipe, options = read_recipe(RECIPES / "lstm"), options_of(name)

    network = models.Recurrent(models.Shape(**options), vocabulary)

    assert set(options) == set(recipe.options)
    assert [recipe.options[key].complaint(value) for key, value in options.items()] == [None] * len(options)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


def test_the_operations_of_a_step_are_those_of_its_products() -> None:
    shape = models.Shape(width=16, embedding=8, context=5)
    network, tokens = models.Recurrent(shape, 7), torch.zeros(3, 5, dtype=torch.long)

    counted = count_step(network, tokens, lambda model, batch: model(batch).sum())

    forward = 2 * 3 * 5 * (4 * 16 * (8 + 16) + 16 * 7)
    assert counted.doubt is None
    assert counted.flops == pytest.approx(3 * forward, rel=0.1)  # nobody needs the gradient of the first state
