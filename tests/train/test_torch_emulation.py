from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from hpcml_train.torch.emulation import Emulation, emulate  # noqa: E402
from hpcml_train.torch.rounding import quantise, round_mantissa  # noqa: E402

pytestmark = pytest.mark.torch


def _spread(low: int, high: int, count: int = 100_000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(low, high, (count,), generator=generator)
    return torch.randn(count, generator=generator) * torch.exp2(exponents.float())


def _relative(measured: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((measured.double() - exact).norm() / exact.norm()).detach())


def test_bf16_rounding_is_that_of_the_cast() -> None:
    x = _spread(-40, 40)

    assert torch.equal(round_mantissa(x, 7), x.bfloat16().float())


def test_tf32_is_fp16_in_the_normal_range_of_fp16() -> None:
    x = _spread(-2, 3)
    x = x[x.abs() > 2**-14]

    assert torch.equal(quantise(x, "tf32", rounding="rne"), x.half().float())


@pytest.mark.parametrize(("rounding", "bound"), [("rna", 2**-11), ("rne", 2**-11), ("rz", 2**-10)])
def test_the_error_of_tf32_is_within_its_bound(rounding: str, bound: float) -> None:
    x = _spread(-40, 40)

    error = ((quantise(x, "tf32", rounding=rounding) - x).abs() / x.abs()).max()

    assert bound / 2 < float(error) <= bound


def test_ties_go_where_the_rounding_says() -> None:
    tie = torch.tensor([1 + 2**-11, -1 - 2**-11])

    assert quantise(tie, "tf32").tolist() == [1 + 2**-10, -1 - 2**-10]
    assert quantise(tie, "tf32", rounding="rne").tolist() == [1.0, -1.0]
    assert quantise(tie, "tf32", rounding="rz").tolist() == [1.0, -1.0]


@pytest.mark.parametrize("rounding", ["rna", "rne", "rz"])
def test_special_values_survive(rounding: str) -> None:
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int32)  # NaNs, payloads of all ones included
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf])

    assert torch.isnan(quantise(bits.view(torch.float32), "tf32", rounding=rounding)).all()
    found = quantise(special, "tf32", rounding=rounding)
    assert torch.equal(found, special)
    assert torch.equal(torch.signbit(found), torch.signbit(special))


def test_what_is_beyond_the_largest_number_becomes_infinite() -> None:
    largest = torch.tensor([torch.finfo(torch.float32).max])

    assert quantise(largest, "tf32").isinf().all()
    assert quantise(largest, "tf32", rounding="rz").isfinite().all()
    assert quantise(torch.tensor([65520.0, 65519.0]), "fp16").tolist() == [math.inf, 65504.0]


# lower and upper bound of the relative Frobenius error: half and twice what docs/precision.md says
@pytest.mark.parametrize(
    ("name", "measured"),
    [("tf32", 2.9e-4), ("fp16", 2.9e-4), ("bf16", 2.3e-3), ("fp8_e4m3", 3.8e-2), ("fp8_e5m2", 7.4e-2)],
)
def test_products_forward_and_backward_have_the_error_of_the_format(name: str, measured: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 16, 20, 20, generator=generator, dtype=torch.float64)
    w = torch.randn(32, 16, 3, 3, generator=generator, dtype=torch.float64)
    g = torch.randn(8, 32, 20, 20, generator=generator, dtype=torch.float64)

    def products(dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()]
        y = F.conv2d(*inputs, padding=1)
        return [y.detach(), *torch.autograd.grad(y, inputs, g.to(dtype)), x[0, 0].to(dtype) @ x[0, 1].to(dtype)]

    exact = products(torch.float64)
    with emulate(name) as emulation:
        found = products(torch.float32)

    for one, reference in zip(found, exact, strict=True):
        assert measured / 2 < _relative(one, reference) < measured * 2
    assert emulation.calls == {"aten.convolution": 1, "aten.convolution_backward": 1, "aten.mm": 1}


def test_sums_are_kept_in_fp32() -> None:
    a, b = torch.ones(1, 4096), torch.ones(4096, 1)

    with emulate("fp8_e5m2"):
        assert float(a @ b) == 4096.0


def test_a_matrix_factored_with_rounded_updates_has_the_error_of_the_format() -> None:
    errors = {name: _lu_error(name) for name in ("fp32", "tf32", "bf16", "fp8_e4m3")}

    assert errors["fp32"] < 1e-6
    assert 1e-5 < errors["tf32"] < 1e-3
    assert errors["tf32"] < errors["bf16"] / 4
    assert errors["bf16"] < errors["fp8_e4m3"] / 4


def _lu_error(name: str, size: int = 192, block: int = 32) -> float:
    """Return |A - LU| / |A| of a blocked factorisation without pivoting whose updates are emulated."""
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    matrix += 2 * size**0.5 * torch.eye(size, dtype=torch.float64)  # safe without pivoting
    a = matrix.float()
    for begin in range(0, size, block):
        end = begin + block
        for k in range(begin, end):
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 : end] -= a[k + 1 :, k : k + 1] * a[k, k + 1 : end]
        if end == size:
            break
        lower = a[begin:end, begin:end].tril(-1) + torch.eye(block)
        a[begin:end, end:] = torch.linalg.solve_triangular(lower, a[begin:end, end:], upper=False)
        if name == "fp32":
            a[end:, end:] -= a[end:, begin:end] @ a[begin:end, end:]
        else:
            with emulate(name):
                a[end:, end:] -= a[end:, begin:end] @ a[begin:end, end:]
    lower, upper = a.double().tril(-1) + torch.eye(size, dtype=torch.float64), a.double().triu()
    return _relative(lower @ upper, matrix)


def test_half_is_fp16_with_fp32_arithmetic() -> None:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(shape, generator=generator).half() for shape in ((4, 8, 12, 12), (16, 8, 3, 3)))
    exact = F.conv2d(x.double(), w.double(), padding=1)

    with emulate("half"):
        y = F.conv2d(x, w, padding=1)

    assert y.dtype is torch.float16
    assert float((y == exact.half()).double().mean()) > 0.99  # the rest are ties of FP32 sums
    assert torch.allclose(y.double(), exact, rtol=2**-11, atol=1e-5)  # one rounding at the end, to half a unit


def test_half_leaves_fp32_products_alone() -> None:
    a = torch.randn(16, 16, generator=torch.Generator().manual_seed(4))

    plain = a @ a

    with emulate("half", must_see=False) as emulation:
        assert torch.equal(a @ a, plain)

    assert (emulation.calls, emulation.unrounded) == ({}, {"aten.mm of float32": 1})


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64, torch.bfloat16])
def test_products_of_other_types_pass_and_count_as_unrounded(dtype: torch.dtype) -> None:
    a = torch.randn(8, 8, generator=torch.Generator().manual_seed(5)).mul(8).to(dtype)
    plain = a @ a

    with emulate("fp8_e5m2", must_see=False) as emulation:
        assert torch.equal(a @ a, plain)

    assert (emulation.calls, list(emulation.unrounded)) == ({}, [f"aten.mm of {str(dtype)[6:]}"])


def test_a_model_in_double_precision_was_not_seen() -> None:
    layer = torch.nn.Linear(8, 8, dtype=torch.float64)

    reason = r"no matrix product was rounded: .* aten.addmm of float64, which it passes"
    with pytest.raises(RuntimeError, match=reason), emulate("bf16"):
        layer(torch.ones(4, 8, dtype=torch.float64))


@pytest.mark.parametrize(("name", "measured"), [("tf32", 2.9e-4), ("fp8_e4m3", 3.8e-2)])
@pytest.mark.parametrize("convolution", [F.conv2d, F.conv_transpose2d])
def test_the_gradient_of_a_bias_is_a_sum_and_not_rounded(name: str, measured: float, convolution: object) -> None:
    generator = torch.Generator().manual_seed(6)
    x, w, b, g = (torch.randn(s, generator=generator) for s in ((8, 32, 9, 9), (32, 32, 3, 3), (32,), (8, 32, 9, 9)))
    inputs = [x.requires_grad_(), w.requires_grad_(), b.requires_grad_()]

    with emulate(name):
        of_x, of_w, of_b = torch.autograd.grad(convolution(x, w, b, padding=1), inputs, g)

    exact = [one.detach().double().requires_grad_() for one in inputs]
    references = torch.autograd.grad(convolution(*exact, padding=1), exact, g.double())
    assert _relative(of_b, references[2]) < 1e-6
    assert measured / 2 < _relative(of_x, references[0]) < measured * 2
    assert measured / 2 < _relative(of_w, references[1]) < measured * 2


def test_inference_mode_is_rounded_too() -> None:
    layer = torch.nn.Linear(32, 32)
    x = torch.randn(4, 32)

    with torch.inference_mode(), emulate("fp8_e5m2") as emulation:
        y = layer(x)

    assert sum(emulation.calls.values()) == 1
    assert not torch.equal(y, layer(x))


def test_attention_is_done_by_plain_products() -> None:
    q = torch.randn(2, 2, 8, 16)

    with emulate("tf32") as emulation:
        F.scaled_dot_product_attention(q, q, q, is_causal=True)

    assert emulation.calls["aten.bmm"] == 2


def test_a_fused_product_is_refused_and_not_skipped() -> None:
    lstm, x = torch.nn.LSTM(4, 4), torch.randn(2, 3, 4)

    with pytest.raises(NotImplementedError, match="fused product"), emulate("tf32"):
        lstm(x)


def test_a_recurrent_layer_is_rounded_without_onednn() -> None:
    lstm, x = torch.nn.LSTM(4, 4), torch.randn(2, 3, 4)

    with emulate("tf32", has_rnn=True) as emulation:
        lstm(x)[0].sum().backward()

    assert sum(emulation.calls.values()) > 4
    assert torch.backends.mkldnn.enabled


def test_seeing_no_product_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no matrix product was rounded"), emulate("tf32"):
        torch.ones(3).sum()


def test_another_error_is_not_hidden_by_that() -> None:
    with pytest.raises(KeyError), emulate("tf32"):
        raise KeyError("the model's own")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of tf32"):
        Emulation("fp4")
