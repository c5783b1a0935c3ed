"""What is seen of programs on a real GPU, with PyTorch's switches as a program finds or sets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from hpcml_train.torch import observer
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.probe import measure_precision
from tests.train.test_torch_observer import Told, watching

HAS_TF32 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not HAS_TF32, reason="no GPU with TF32"),
    pytest.mark.filterwarnings("ignore"),  # of torch.compile's own, as that TF32 would be faster
    pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch has the old switches"),
]
KINDS = ("linear", "conv", "rnn")


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's own, put back after the test."""
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    parts = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [part.fp32_precision for part in parts]
    yield
    for part, value in zip(parts, before, strict=True):
        part.fp32_precision = value


def allow(*kinds: str) -> None:
    for kind, part in zip(
        KINDS, (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn), strict=True
    ):
        part.fp32_precision = "tf32" if kind in kinds else "ieee"


class Net(nn.Module):
    """A convolution, a recurrent layer and a product of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn, self.linear = nn.Conv2d(64, 64, 3, padding=1), nn.LSTM(256, 256), nn.Linear(256, 512)

    def forward(self, x: Any) -> Any:
        y = self.conv(x).relu()  # (batch, 64, 16, 16)
        states, _ = self.rnn(y.flatten(2).transpose(0, 1).contiguous())  # (64, batch, 256)
        return self.linear(states)


def trained(model: nn.Module | None = None, *, context: Any = None, x: Any = None, steps: int = 4) -> Told:
    proof = measure_precision(Arithmetic("own", device=torch.device("cuda")))
    with watching(probe=(proof["products"], "cuda")) as told:
        torch.manual_seed(0)
        model = (model or Net()).cuda()
        x = torch.randn(32, 64, 16, 16) if x is None else x
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            if context is None:
                loss = model(x.cuda()).square().mean()
            else:
                with context():
                    loss = model(x.cuda()).square().mean()
            loss.backward()
            optimizer.step()
    return told


def by_layer(told: Told, phase: str = "forward") -> dict[str | None, str]:
    return {row.layer: row.format for row in told.windows[0].rows if row.phase == phase}


@pytest.mark.parametrize("kinds", [(), KINDS, ("conv", "rnn"), ("linear",)])
def test_each_kind_of_layer_has_the_format_that_its_own_switch_allows(kinds: tuple[str, ...]) -> None:
    allow(*kinds)

    told = trained()

    wanted = {kind: "tf32" if kind in kinds else "fp32" for kind in KINDS}
    assert by_layer(told) == wanted
    assert {row.format for row in told.windows[0].rows if row.phase == "backward"} == set(wanted.values())
    assert told.word("fp32") == "fp32" or kinds
    assert told.word("tf32") == "tf32" or set(kinds) != set(KINDS)


PRODUCTS = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(2), nn.Linear(256, 512))


def test_a_context_that_says_float32_is_seen_as_a_program_without_one() -> None:
    allow(*KINDS)

    told = trained(PRODUCTS, context=lambda: torch.autocast("cuda", dtype=torch.float32))

    assert told.word("tf32") == "tf32"


@pytest.mark.parametrize(("dtype", "word"), [(torch.bfloat16, "amp_bf16"), (torch.float16, "amp_fp16")])
def test_autocast_is_seen_with_the_switches_open(dtype: Any, word: str) -> None:
    allow(*KINDS)

    assert trained(PRODUCTS, context=lambda: torch.autocast("cuda", dtype=dtype)).word(word) == word


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_recurrent_layers_are_in_fp16_in_every_autocast(dtype: Any) -> None:
    """PyTorch casts what cuDNN gets to FP16, whatever type the context has."""
    told = trained(context=lambda: torch.autocast("cuda", dtype=dtype))

    assert by_layer(told)["rnn"] == "fp16"
    assert "fp16" in {row.format for row in told.windows[0].rows if row.phase == "backward"}


def test_recurrent_layers_alone_that_are_allowed_tf32_are_probed_by_nothing() -> None:
    allow("rnn")

    assert by_layer(trained()) == {"conv": "fp32", "rnn": "tf32 allowed", "linear": "fp32"}


def test_a_convolution_that_cudnn_keeps_in_fp32_counts_as_the_probes() -> None:
    """A picture of one channel: seen in cuDNN 9.19 on an H200."""
    allow(*KINDS)
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.Flatten(), nn.LazyLinear(64))
    model(torch.randn(2, 1, 28, 28))

    told = trained(model, x=torch.randn(64, 1, 28, 28))

    assert set(by_layer(told).values()) == {"tf32"}
    assert told.word("tf32") == "tf32"
    assert told.word("fp32") == "not used(tf32)"


def test_compiled_programs_are_not_observed() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()

    told = trained(torch.compile(model), x=torch.randn(128, 256), steps=12)

    assert told.word("fp32") == "not observed: compiled"
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_attention_in_float32_keeps_to_fp32() -> None:
    """Kernels of torch's own; the numbers are those of FP32 though TF32 is allowed."""
    allow(*KINDS)
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 8, 128, 64, device="cuda") for _ in range(3))

    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        found = nn.functional.scaled_dot_product_attention(q, k, v)

    wide = (one.double() for one in (q, k, v))
    exact = nn.functional.scaled_dot_product_attention(*wide)
    assert float((found - exact).norm() / exact.norm()) < 5e-6


def test_tf32_that_is_allowed_in_the_middle_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_SHARE", 1e9)  # as if time were no matter
    allow()
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching() as told:
        for step in range(12):
            if step == 4:
                allow("linear")
            optimizer.zero_grad()
            model(torch.randn(256, 512, device="cuda")).square().mean().backward()
            optimizer.step()

    assert told.word("fp32").startswith("mixed(")


def test_a_kernel_of_triton_computes_float32_in_tf32_whatever_the_switches_say() -> None:
    triton_kernels = pytest.importorskip("tests.train.triton_kernels")
    allow()

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(x, weight)
            return triton_kernels.multiply(x, weight)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> Any:
            x, weight = context.saved_tensors
            return gradient @ weight.T, x.T @ gradient

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(256, 256) / 16)
            self.linear = nn.Linear(256, 256)

        def forward(self, x: Any) -> Any:
            return self.linear(Multiply.apply(x, self.weight))

    x = torch.randn(256, 256)
    told = trained(Own(), x=x)

    assert told.word("fp32") == "unknown"
    assert told.windows[0].unknown == ("product_kernel: a kernel of Triton that multiplies",)
    wrong = triton_kernels.multiply(x.cuda(), x.cuda()).cpu().double() - x.double() @ x.double()
    assert float(wrong.norm() / (x.double() @ x.double()).norm()) > 1e-4
