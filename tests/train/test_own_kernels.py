"""What Triton says of its kernels tells the formats of their products; the lines are as Triton 3.6 printed them."""

from __future__ import annotations

import sys
import types

import pytest

pytest.importorskip("torch")

from hpcml_train.torch.own_kernels import OwnKernels, formats_in

TF32 = (
    "%4 = tt.dot %x_8, %y_12, %cst, inputPrecision = tf32 : tensor<32x32xf32> * tensor<32x32xf32> -> tensor<32x32xf32>"
)
IEEE = "%4 = tt.dot %x_8, %y_12, %cst : tensor<32x32xf32> * tensor<32x32xf32> -> tensor<32x32xf32> loc(#loc1)"
BF16 = TF32.replace("xf32> *", "xbf16> *").replace("xf32> ->", "xbf16> ->")
EIGHT_BITS = (
    "%4 = tt.dot %x_8, %y_12, %cst, inputPrecision = tf32 {maxNumImpreciseAcc = 1073741824 : i32} : "
    "tensor<32x32xf8E4M3FN> * tensor<32x32xf8E4M3FN> -> tensor<32x32xf32> loc(#loc1)"
)
NONE = "%3 = arith.mulf %0, %1 : tensor<1024xf32> loc(#loc3)\n%4 = tt.dotted %3"


@pytest.mark.parametrize(
    ("ttir", "formats"),
    [
        (TF32, {"tf32"}),
        (IEEE, {"fp32"}),
        (BF16, {"bf16"}),
        (EIGHT_BITS, {"fp8_e4m3"}),
        (TF32.replace("= tf32", "= tf32x3"), {"tf32x3"}),
        (f"{TF32}\n{BF16}", {"tf32", "bf16"}),
        (NONE, set()),
    ],
)
def test_the_formats_of_a_kernels_products_are_those_of_its_own_text(ttir: str, formats: set[str]) -> None:
    assert formats_in(ttir) == formats


class Function:
    """A stand-in for Triton's ``JITFunction``: its `run` returns the kernel that was launched."""

    def __init__(self, name: str, ttir: str) -> None:
        self.__name__ = name
        self.kernel = types.SimpleNamespace(asm={"ttir": ttir})

    def run(self, *args: object, grid: object, warmup: bool) -> object:
        assert not warmup
        assert (args, grid) == ((1, 2), (8, 8))
        return self.kernel


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> type[Function]:
    class Launched(Function):
        def run(self, *args: object, grid: object, warmup: bool) -> object:
            return super().run(*args, grid=grid, warmup=warmup)

    module = types.ModuleType("triton.runtime.jit")
    module.JITFunction = Launched  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    return Launched


def test_kernels_that_are_launched_are_told_where_their_products_are_of_another_format(triton: type[Function]) -> None:
    run = vars(triton)["run"]
    kernels, attention, scale = OwnKernels(), triton("attention", TF32), triton("scale", NONE)
    kernels.watch()
    for function in (attention, scale, attention):
        assert function.run(1, 2, grid=(8, 8), warmup=False) is function.kernel
    kernels.end()

    assert kernels.unknown({"fp32"}) == ["attention: a kernel of Triton that multiplies in tf32"]
    assert kernels.unknown({"fp32", "tf32"}) == ["attention: a kernel of Triton that multiplies in tf32"]
    assert kernels.unknown({"tf32"}) == []
    assert vars(triton)["run"] is run


def test_a_kernel_that_tells_nothing_of_itself_harms_no_program(triton: type[Function]) -> None:
    kernels, odd = OwnKernels(), triton("odd", "")
    odd.kernel = types.SimpleNamespace()
    kernels.watch()
    assert odd.run(1, 2, grid=(8, 8), warmup=False) is odd.kernel
    kernels.end()

    assert kernels.unknown(()) == []


def test_without_triton_there_is_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", None)
    kernels = OwnKernels()
    kernels.watch()
    kernels.end()

    assert kernels.formats == {}
