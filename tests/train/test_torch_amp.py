"""What autocast computes in 16 bits and what it keeps in FP32, by running every class of operations on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from hpcml_train.torch.arithmetic import Arithmetic  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]

SIXTEEN = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
Operation = Callable[[torch.Tensor], torch.Tensor]

# The table of the LAPENNA training material, unit 11 (mixed precision), class by class. Where the CPU's autocast does
# otherwise, it stands in ON_CPU; CUDA's does otherwise for batch norm alone. docs/precision.md says the same.
POLICY: dict[str, tuple[str, dict[str, Operation]]] = {
    "matrix multiplications": (
        "16 bits",
        {
            "linear": lambda x: F.linear(x.float(), x.float()),
            "matmul": lambda x: x.float() @ x.float(),
            "bmm": lambda x: torch.bmm(x.float()[None], x.float()[None]),
            "conv": lambda x: F.conv2d(x.float()[None, None], torch.ones(1, 1, 2, 2)),
        },
    ),
    "pointwise": (
        "16 bits",
        {
            "relu": F.relu,
            "sigmoid": torch.sigmoid,
            "tanh": torch.tanh,
            "add": lambda x: x + x,
            "sub": lambda x: x - 2 * x,
            "mul": lambda x: x * x,
        },
    ),
    "reductions": (
        "FP32",
        {
            "batch norm": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
            "layer norm": lambda x: F.layer_norm(x, (4,)),
            "sum": lambda x: x.sum(),
            "softmax": lambda x: F.softmax(x, dim=1),
        },
    ),
    "losses": (
        "FP32",
        {
            "cross entropy": lambda x: F.cross_entropy(x, torch.arange(4)),
            "l2 loss": lambda x: F.mse_loss(x, 2 * x),
        },
    ),
    "pointwise with f(x) >> |x|": (
        "FP32",
        {"exp": torch.exp, "log": torch.log, "pow": lambda x: x.pow(2.5)},
    ),
}
ON_CPU = dict.fromkeys(("batch norm", "layer norm", "sum", "softmax", "exp", "log", "pow"), "16 bits")
CASES = [
    (name, operation, ON_CPU.get(name, kept))
    for kept, operations in POLICY.values()
    for name, operation in operations.items()
]


def _positive(dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.5).to(dtype)


@pytest.mark.parametrize("precision", SIXTEEN)
@pytest.mark.parametrize(("name", "operation", "kept"), CASES, ids=[name for name, _, _ in CASES])
def test_each_class_of_operations_is_kept_as_the_page_says(
    precision: str, name: str, operation: Operation, kept: str
) -> None:
    x = _positive(SIXTEEN[precision])
    with Arithmetic(precision)._autocast():
        found = operation(x).dtype

    assert found is (torch.float32 if kept == "FP32" else SIXTEEN[precision]), name


@pytest.mark.parametrize("precision", SIXTEEN)
def test_weights_and_their_gradients_and_the_optimisers_state_stay_in_fp32(precision: str) -> None:
    arithmetic = Arithmetic(precision)
    model = arithmetic.prepare(torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    with arithmetic.context():
        y = model(_positive(torch.float32))
        loss = y.float().mean() * 1e-3
    arithmetic.backward(loss)
    gradients = [parameter.grad for parameter in model.parameters()]
    arithmetic.step(optimizer)

    assert y.dtype is SIXTEEN[precision]
    assert {gradient.dtype for gradient in gradients if gradient is not None} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.float32}


def test_small_gradients_are_lost_in_fp16_without_scaling_and_kept_with_it() -> None:
    kept = {scaled: _gradient(Arithmetic("amp_fp16", loss_scaling=scaled)) for scaled in (True, False)}

    assert kept[False] == 0.0  # 1e-9 is less than half of FP16's smallest number, 6e-8
    assert kept[True] == pytest.approx(1e-9, rel=2e-3)
    assert _gradient(Arithmetic("amp_bf16")) == pytest.approx(1e-9, rel=1e-2)  # the table: no scaling is needed


def _gradient(arithmetic: Arithmetic) -> float:
    layer = arithmetic.prepare(torch.nn.Linear(1, 1, bias=False))
    with arithmetic.context():
        loss = layer(torch.ones(1, 1)).float().sum() * 1e-9
    arithmetic.backward(loss)
    (gradient,) = (parameter.grad for parameter in layer.parameters())
    assert gradient is not None
    scale = arithmetic.scaling().get("loss_scale", 1.0)
    return float(gradient.double()) / scale


def test_overflows_are_counted_in_the_step_that_they_cost() -> None:
    arithmetic = Arithmetic("amp_fp16")
    layer = arithmetic.prepare(torch.nn.Linear(3, 2, bias=False))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    told = []
    for factor in (1e3, 1e3, 1e-3):  # 1e3 times the first two scales, 65536 and 32768, is beyond FP16
        with arithmetic.context():
            loss = layer(torch.ones(1, 3)).float().sum() * factor
        done = arithmetic.backward_and_step(loss, optimizer)
        told.append((done, *arithmetic.scaling().values()))

    assert told == [(False, 32768.0, 1.0, 6.0), (False, 16384.0, 2.0, 6.0), (True, 16384.0, 2.0, 0.0)]
    assert list(arithmetic.scaling()) == ["loss_scale", "skipped_steps", "overflowed_gradients"]
