"""Nothing passes an emulation unrounded without a word: neither what torch has, nor what it may get."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.flop_counter import flop_registry  # noqa: E402

from hpcml_train.torch.emulation import emulate  # noqa: E402
from hpcml_train.torch.operations import Kind, kind_of, name_of  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),  # the tests' own
]
SEEN = (Kind.PRODUCT, Kind.COMPOSITE, Kind.FUSED)


def every_operation() -> Iterator[object]:
    """All overloads of aten that the dispatcher knows; the others are words of TorchScript."""
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        if packet is None or not hasattr(packet, "overloads"):
            continue
        func = getattr(packet, schema.overload_name or "default")
        try:
            torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
        except RuntimeError:
            continue
        yield func


FUSED = (  # what this torch had when each of its operations was looked at
    *("_conv_depthwise2d", "_cudnn_rnn", "_efficient_attention_forward", "_flash_attention_backward", "_grouped_mm"),
    *("_mixed_dtypes_linear", "_native_multi_head_attention", "_scaled_mm", "_transformer_encoder_layer_fwd"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_weight_int4pack_mm", "conv_depthwise3d", "cudnn_convolution"),
    *("linear_backward", "matmul_backward", "mkldnn_convolution", "mkldnn_rnn_layer", "quantized_gru", "miopen_rnn"),
    *("slow_conv_transpose2d", "_trilinear", "_cdist_forward", "affine_grid_generator", "conv_tbc"),
)


def test_products_inside_of_a_kernel_are_fused_and_what_only_sounds_like_one_is_not() -> None:
    kinds = {name_of(func): kind_of(func) for func in every_operation()}

    assert {name: kinds[name] for name in FUSED} == dict.fromkeys(FUSED, Kind.FUSED)
    others = ("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell_backward", "_cudnn_rnn_flatten_weight", "im2col")
    others = (*others, "linspace", "upsample_bilinear2d", "embedding", "native_layer_norm", "_softmax", "_ctc_loss")
    assert {name: kinds[name] for name in others} == dict.fromkeys(others, Kind.OTHER)


def test_what_torch_counts_operations_of_is_never_harmless() -> None:
    packets = [packet for packet in flop_registry if hasattr(packet, "overloads")]  # the others are no operations
    counted = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]

    assert len(counted) > 20
    assert {kind_of(func) for func in counted} <= set(SEEN)


def test_an_operation_that_nobody_has_looked_at_is_refused_by_its_name() -> None:
    with torch.library._scoped_library("hpcml_test", "DEF") as library:
        library.define("own_product(Tensor a, Tensor b) -> Tensor")
        library.impl("own_product", torch.matmul, "CPU")
        a = torch.ones(2, 2)

        reason = r"hpcml_test\.own_product is not known to the emulation of tf32"
        with pytest.raises(NotImplementedError, match=reason), emulate("tf32"):
            torch.ops.hpcml_test.own_product(a, a)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def positive(size: int = 48) -> torch.Tensor:
    a = draw(size, size)
    return a @ a.T + size * torch.eye(size)


def sparse() -> torch.Tensor:
    return draw(48, 48).relu().to_sparse()


ROUNDED: dict[str, Callable[[], torch.Tensor]] = {
    "mm": lambda: draw(48, 48) @ draw(48, 48),
    "mm with out": lambda: torch.mm(draw(8, 8), draw(8, 8), out=torch.empty(8, 8)),
    "mv": lambda: draw(48, 48) @ draw(48),
    "vdot": lambda: torch.vdot(draw(48), draw(48)),
    "in place": lambda: torch.zeros(8, 8).addmm_(draw(8, 8), draw(8, 8)),
    "batched in place": lambda: torch.zeros(2, 8, 8).baddbmm_(draw(2, 8, 8), draw(2, 8, 8), alpha=0.5),
    "sum of products": lambda: torch.addbmm(draw(8, 8), draw(3, 8, 8), draw(3, 8, 8)),
    "einsum of three": lambda: torch.einsum("ij,ik,il->jkl", draw(8, 8), draw(8, 8), draw(8, 8)),
    "conv1d": lambda: F.conv1d(draw(2, 4, 8), draw(6, 2, 3), groups=2),
    "conv_transpose3d": lambda: F.conv_transpose3d(draw(2, 4, 5, 5, 5), draw(4, 6, 3, 3, 3), stride=2),
    "sampled": lambda: torch.sparse.sampled_addmm(sparse().to_sparse_csr(), draw(48, 48), draw(48, 48)).to_dense(),
    "covariance": lambda: torch.cov(draw(8, 48)),
    "attention of an encoder that is evaluated": lambda: torch.nn.MultiheadAttention(48, 4, batch_first=True).eval()(
        *[draw(1, 48, 48)] * 3
    )[0],
    "an encoder that is evaluated": lambda: torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False
    ).eval()(draw(2, 5, 8)),
    "attention": lambda: F.scaled_dot_product_attention(draw(1, 2, 8, 8), draw(1, 2, 8, 8), draw(1, 2, 8, 8)),
}
LISTED: dict[str, Callable[[], torch.Tensor]] = {
    "solve": lambda: torch.linalg.solve(positive(), draw(48, 48)),
    "inverse": lambda: torch.linalg.inv(positive()),
    "cholesky": lambda: torch.linalg.cholesky(positive()),
    "matrix_exp": lambda: torch.matrix_exp(draw(48, 48) / 48),
    "svd": lambda: torch.linalg.svdvals(draw(48, 48)),
    "lstsq": lambda: torch.linalg.lstsq(positive(), draw(48, 48))[0],
    "fft": lambda: torch.fft.fft(draw(48)).abs(),
    "stft": lambda: torch.stft(draw(48), 16, window=torch.ones(16), return_complex=True).abs(),
    "integers": lambda: torch._int_mm(draw(48, 48).to(torch.int8), draw(48, 48).to(torch.int8)),
}
REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "activated": lambda: torch._addmm_activation(draw(48), draw(48, 48), draw(48, 48)),
    "bilinear": lambda: F.bilinear(draw(48, 48), draw(48, 40), draw(5, 48, 40)),
    "distances": lambda: torch.cdist(draw(48, 48), draw(48, 48)),
    "conv_tbc": lambda: torch.conv_tbc(draw(8, 2, 4), draw(3, 4, 4), draw(4), 1),
    "where pixels come from": lambda: F.affine_grid(draw(2, 2, 3), [2, 1, 5, 4], align_corners=False),
    "one library's convolution": lambda: torch.ops.aten.mkldnn_convolution(
        draw(2, 4, 8, 8), draw(4, 4, 3, 3), None, [0, 0], [1, 1], [1, 1], 1
    ),
    "many products at once": lambda: torch._grouped_mm(draw(1, 48, 48).bfloat16(), draw(1, 48, 48).bfloat16()),
    "scaled": lambda: torch._scaled_mm(
        draw(16, 16).to(torch.float8_e4m3fn),
        draw(16, 16).to(torch.float8_e4m3fn).t(),
        scale_a=torch.ones(()),
        scale_b=torch.ones(()),
        out_dtype=torch.float32,
    ),
    "quantised": lambda: torch.ops.aten._weight_int8pack_mm(
        draw(8, 32).bfloat16(), draw(16, 32).to(torch.int8), draw(16).bfloat16()
    ),
}
HARMLESS: dict[str, Callable[[], torch.Tensor]] = {
    "an outer product": lambda: torch.ger(draw(48), draw(48)) + torch.kron(draw(2, 2), draw(24, 24)),
    "distances inside": lambda: F.pdist(draw(8, 8)),
    "a weighted bag": lambda: F.embedding_bag(
        torch.arange(8)[None], draw(48, 4), per_sample_weights=draw(1, 8), mode="sum"
    ),
    "interpolation": lambda: F.interpolate(draw(1, 1, 8, 8), size=(5, 5), mode="bilinear"),
    "norms and losses": lambda: F.cross_entropy(F.layer_norm(draw(8, 8), (8,)), torch.arange(8)),
}


def _same_numbers(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    torch.manual_seed(1)
    with torch.no_grad():
        return compute()


@pytest.mark.parametrize("name", ROUNDED)
def test_a_product_is_rounded_wherever_it_hides(name: str) -> None:
    plain = _same_numbers(ROUNDED[name])
    with emulate("fp8_e5m2") as emulation:
        rounded = _same_numbers(ROUNDED[name])

    assert sum(emulation.calls.values()) >= 1
    assert rounded.shape == plain.shape
    error = float((rounded - plain).norm() / plain.norm())
    assert 1e-3 < error < 0.2


@pytest.mark.parametrize("name", ROUNDED)
def test_a_product_in_many_bits_is_what_torch_computes(name: str) -> None:
    plain = _same_numbers(ROUNDED[name])
    with emulate("tf32"):
        rounded = _same_numbers(ROUNDED[name])

    assert torch.allclose(rounded, plain, rtol=5e-3, atol=5e-3 * float(plain.abs().max()))


@pytest.mark.parametrize("name", LISTED)
def test_solvers_and_transforms_pass_and_are_counted(name: str) -> None:
    plain = _same_numbers(LISTED[name])
    with emulate("fp8_e5m2", must_see=False) as emulation:
        passed = _same_numbers(LISTED[name])

    assert sum(emulation.unrounded.values()) >= 1
    if not emulation.calls:  # the matrix that is solved for is itself a product in some of these
        assert torch.allclose(passed, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_rounded_is_refused_by_its_name(name: str) -> None:
    reason = r"aten\.\w+ is a fused product"
    with pytest.raises(NotImplementedError, match=reason), emulate("fp8_e5m2", must_see=False):
        _same_numbers(REFUSED[name])


@pytest.mark.parametrize("compressed", [False, True])
def test_a_sparse_factor_is_refused_by_its_layout(compressed: bool) -> None:  # noqa: FBT001 - a parameter
    a = sparse().to_sparse_csr() if compressed else sparse()
    with pytest.raises(NotImplementedError, match=r"aten\.\w+ of a tensor in torch\.sparse_"), emulate("tf32"):
        a @ draw(48, 48)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_multiplies_no_matrices_passes_as_it_is(name: str) -> None:
    plain = _same_numbers(HARMLESS[name])
    with emulate("fp8_e5m2", must_see=False) as emulation:
        assert torch.equal(_same_numbers(HARMLESS[name]), plain)

    assert (emulation.calls, emulation.unrounded) == ({}, {})
