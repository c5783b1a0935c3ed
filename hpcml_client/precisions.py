"""The one table of precisions: what each shows and is made of, who computes in it natively, and how it is emulated.

hpcml plans, refuses and lists by it, `hpcml_train` sets switches and names what it measures by it. docs/precision.md
has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from typing import NamedTuple

_NO_SPLIT = "a CPU multiplies FP32 numbers whole: parts of them are for tensor cores"
_NO_FP8 = "no CPU has FP8 units"
_NO_SWITCH = "PyTorch has no switch for it on any GPU"
_SLOW_FP16 = "CPU kernels for FP16 are missing or about 100 times slower than FP32"


class Precision(NamedTuple):
    """A row of the table. No two have the same products and parameters."""

    product: str | None  # the format of every product, as measured; None: the program's own
    parameters: str = "float32"  # their type
    autocast: str | None = None  # the type that torch and others cast the factors of products to
    why_not: str = ""  # why a CPU's own kernels do not compute in it at a usable speed, for the line that refuses
    min_compute_capability: tuple[int, int] | None = None  # of GPUs; None: hpcml's recipes compute in it on none
    why_not_on_gpu: str = ""  # why no GPU is native, where none is
    emulation: str | None = None  # how `hpcml_train.torch.emulation` rounds; None: not emulated
    peaks: tuple[str, ...] = ()  # by which rates of data sheets it is judged, the first that a GPU has
    in_every_framework: bool = False  # others are torch's alone
    scaled_products: bool = False  # other products than the framework's own, by a GPU's units too
    trains: bool = True  # False: for networks that are trained already
    in_accelerate: str | None = None  # accelerate's word (--mixed_precision); TF32 is none, its switches are variables

    @property
    def on_cpu(self) -> bool:
        """Whether a CPU's own kernels compute in it at a usable speed."""
        return not self.why_not


# CPU: torch 2.13 on AVX-512 (docs/precision.md): a TF32 switch changes nothing, 16-bit floating point convolutions have
# no backward kernel and run about 100 times slower. GPU: first generation with the units.
@unique
class PrecisionName(Enum):
    """The precisions that can be compared; ``precision=amp`` on the command line is `amp_fp16`.

    `own` is no request: a program of the user's own computes as it does without hpcml.
    """

    own = Precision(None, min_compute_capability=(1, 0))
    fp64 = Precision(
        "fp64",
        parameters="float64",
        min_compute_capability=(1, 3),
        peaks=("fp64_tc", "fp64"),  # a product is done by the tensor cores where there are any for it
        in_every_framework=True,
    )
    fp32 = Precision(
        "fp32", min_compute_capability=(1, 0), peaks=("fp32",), in_every_framework=True, in_accelerate="no"
    )
    # several products stand for one, and no data sheet has a rate of it
    tf32x3 = Precision("tf32x3", why_not=_NO_SPLIT, why_not_on_gpu=_NO_SWITCH, emulation="tf32x3")
    bf16x3 = Precision("bf16x3", why_not=_NO_SPLIT, why_not_on_gpu=_NO_SWITCH, emulation="bf16x3")
    tf32 = Precision(
        "tf32",
        why_not="no CPU has TF32 units: its switch is silently ignored there and the run would be FP32",
        min_compute_capability=(8, 0),
        emulation="tf32",
        peaks=("tf32",),
        in_every_framework=True,
        in_accelerate="no",
    )
    amp_fp16 = Precision(
        "fp16",
        autocast="float16",
        why_not=_SLOW_FP16,
        min_compute_capability=(7, 0),
        emulation="half",
        peaks=("fp16",),
        in_every_framework=True,
        in_accelerate="fp16",
    )
    amp_bf16 = Precision(
        "bf16",
        autocast="bfloat16",
        min_compute_capability=(8, 0),
        peaks=("bf16",),
        in_every_framework=True,
        in_accelerate="bf16",
    )
    bf16 = Precision(
        "bf16", parameters="bfloat16", min_compute_capability=(8, 0), peaks=("bf16",), in_every_framework=True
    )
    fp16 = Precision(
        "fp16",
        parameters="float16",
        why_not=_SLOW_FP16,
        min_compute_capability=(6, 0),
        emulation="half",
        peaks=("fp16",),
        in_every_framework=True,
    )
    fp8_e4m3 = Precision(
        "fp8_e4m3",
        why_not=_NO_FP8,
        min_compute_capability=(8, 9),
        emulation="fp8_e4m3",
        peaks=("fp8",),
        scaled_products=True,
    )
    fp8_e5m2 = Precision(
        "fp8_e5m2",
        why_not=_NO_FP8,
        why_not_on_gpu="cuBLAS multiplies no E5M2 by E5M2",
        emulation="fp8_e5m2",
        peaks=("fp8",),
    )
    fp8_hybrid = Precision(
        "fp8_hybrid",
        why_not=_NO_FP8,
        min_compute_capability=(8, 9),
        emulation="fp8_hybrid",
        peaks=("fp8",),
        scaled_products=True,
    )
    int8 = Precision("int8", parameters="int8", min_compute_capability=(6, 1), peaks=("int8",), trains=False)


OWN = PrecisionName.own.name  # nothing was asked for: no switch is set, and nothing is cast
PRECISIONS: Mapping[str, Precision] = {one.name: one.value for one in PrecisionName if one is not PrecisionName.own}
