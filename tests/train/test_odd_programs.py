"""Programs that are rarely seen, and must come to the same: each trains with and without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations

from hpcml_train.torch import observer
from tests.train.test_torch_observer import watching

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program of its own."""
    monkeypatch.setattr(observer, "is_anything_compiled", lambda: False)


def plain_loop(model: Any, make: Callable[[], Any], *, steps: int = 4) -> list[Any]:
    """Train *model* in the window that its second step is, and return what came of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(make()).square().mean().backward()
        optimizer.step()
    return [one.detach().clone() for one in model.parameters()]


def of_another_default_type() -> list[Any]:
    model = nn.Conv2d(6, 8, 3, padding=1)
    torch.set_default_dtype(torch.float64)
    try:
        return plain_loop(model, lambda: torch.randn(2, 6, 8, 8, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


def on_another_default_device() -> list[Any]:
    model, x = nn.Conv2d(6, 8, 3, padding=1), torch.randn(2, 6, 8, 8)
    torch.set_default_device("meta")
    try:
        return plain_loop(model, lambda: x)
    finally:
        torch.set_default_device(None)


def each_example_alone() -> list[Any]:
    model = nn.Sequential(nn.Linear(32, 32), nn.Unflatten(-1, (1, 32)), nn.Conv1d(1, 4, 17))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        parameters = dict(model.named_parameters())
        gradients = vmap(grad(lambda own, x: functional_call(model, own, (x,)).square().mean()), (None, 0))(
            parameters, torch.randn(8, 3, 32)
        )
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].mean(0).detach()
        optimizer.step()
    return [one.detach().clone() for one in model.parameters()]


def of_sparse_inputs() -> list[Any]:
    return plain_loop(nn.Linear(32, 32), lambda: torch.randn(8, 32).to_sparse())


def traced_for_another_program() -> list[Any]:
    model, found = nn.Linear(32, 32), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found.append(str(torch.jit.trace(nn.Conv2d(3, 8, 3), torch.ones(4, 3, 8, 8)).graph).count("\n"))
        found.append(len(said))
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
    return [*found, *(one.detach().clone() for one in model.parameters())]


def without_positional_inputs() -> list[Any]:
    class Named(nn.Linear):
        def __call__(self, x: Any) -> Any:
            return super().__call__(input=x)

    return plain_loop(Named(32, 32), lambda: torch.randn(8, 32))


def of_nothing() -> list[Any]:
    class Twice(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 10))

        def forward(self, x: Any) -> Any:
            super().forward(torch.zeros(0, 3, 8, 8))
            return super().forward(x)

    return plain_loop(Twice(), lambda: torch.randn(2, 3, 8, 8))


def with_a_power_iteration() -> list[Any]:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(32, 32)), nn.utils.spectral_norm(nn.Linear(32, 32)))
    return [*plain_loop(model, lambda: torch.randn(8, 32)), *(one.clone() for one in model.buffers())]


@pytest.mark.parametrize(
    "program",
    [
        *(of_another_default_type, on_another_default_device, each_example_alone, of_sparse_inputs),
        *(without_positional_inputs, of_nothing, with_a_power_iteration),
    ],
)
def test_odd_programs_are_observed_and_come_to_the_same(program: Callable[[], list[Any]]) -> None:
    torch.manual_seed(0)
    plain = program()
    with watching() as told:
        torch.manual_seed(0)
        observed = program()

    assert not told.off
    assert told.windows
    assert len(plain) == len(observed)
    assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(plain, observed, strict=True))


def test_a_program_that_traces_a_module_in_each_step_is_not_observed_and_comes_to_the_same() -> None:
    torch.manual_seed(0)
    plain = traced_for_another_program()
    with watching() as told:
        torch.manual_seed(0)
        observed = traced_for_another_program()

    assert not told.off
    assert not told.windows
    assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(plain, observed, strict=True))


def evaluating_with_padding(model: Any, *, steps: int, at: int) -> list[Any]:
    """Train *model* and evaluate it after the step *at*: torch's encoder then makes nested tensors for itself."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.01), []
    padded = torch.zeros(4, 7, dtype=torch.bool)
    padded[1, 4:] = True
    for step in range(steps):
        model.train()(torch.randn(4, 7, 32), src_key_padding_mask=padded).square().mean().backward()
        optimizer.step()
        if step == at:
            with torch.no_grad():
                found.append(model.eval()(torch.randn(4, 7, 32), src_key_padding_mask=padded))
    return [*found, *(one.detach().clone() for one in model.parameters())]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("at", [0, 1])
def test_an_encoder_that_is_evaluated_with_padding_goes_on_and_is_observed(at: int) -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        return evaluating_with_padding(nn.TransformerEncoder(layer, 2), steps=5, at=at)

    plain = program()
    with watching() as told:
        observed = program()

    assert all(torch.equal(*pair) for pair in zip(plain, observed, strict=True))
    assert not told.off
    assert told.word("fp32") == "fp32"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_program_that_makes_nested_tensors_goes_on() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Linear(32, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            parts = torch.nested.nested_tensor([torch.randn(3, 32), torch.randn(5, 32)])
            torch.cat([*model(parts).unbind()]).square().mean().backward()
            optimizer.step()
        return [one.detach().clone() for one in model.parameters()]

    plain = program()
    with watching() as told:
        observed = program()

    assert all(torch.equal(*pair) for pair in zip(plain, observed, strict=True))
    assert told.windows
