"""What each precision means: which device computes it natively, which can emulate it, which variables set it.

`CAPABILITIES` is the table of what hardware supports; `decide_numerics` chooses native or emulated arithmetic when a
run is planned, and refuses what would not be what its name says. `environment` gives the variables that the agent sets
for the workload. What the probe in the workload measured is named by `hpcml_client.formats`. docs/precision.md
has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics


class PrecisionName(Enum):
    """The precisions that can be compared; ``precision=amp`` on the command line is `amp_fp16`.

    `own` is no request: a program of the user's own computes as it does without hpcml.
    """

    own = "own"
    fp64 = "fp64"
    fp32 = "fp32"
    tf32x3 = "tf32x3"
    bf16x3 = "bf16x3"
    tf32 = "tf32"
    amp_fp16 = "amp_fp16"
    amp_bf16 = "amp_bf16"
    bf16 = "bf16"
    fp16 = "fp16"
    fp8_e4m3 = "fp8_e4m3"
    fp8_e5m2 = "fp8_e5m2"
    fp8_hybrid = "fp8_hybrid"
    int8 = "int8"


RECIPES_OWN = PrecisionName.fp32  # what recipes compute in where nothing was asked for
# names in conf/precision that stand for others
ALIASES: Mapping[str, PrecisionName] = {"amp": PrecisionName.amp_fp16, "3xtf32": PrecisionName.tf32x3}


# What accelerate calls them (--mixed_precision). TF32 is no mixed precision: its switches are
# variables.
_IN_ACCELERATE: Mapping[PrecisionName, str] = {
    PrecisionName.fp32: "no",
    PrecisionName.tf32: "no",
    PrecisionName.amp_fp16: "fp16",
    PrecisionName.amp_bf16: "bf16",
}


def mixed_precision(name: PrecisionName) -> str:
    """Return accelerate's word for the precision *name*; raise `ConfigError` where it has none.

    >>> mixed_precision(PrecisionName.amp_bf16)
    'bf16'
    """
    if name not in _IN_ACCELERATE:
        known = ", ".join(each.name for each in _IN_ACCELERATE)
        raise ConfigError(f"precision={name.name}: {{mixed_precision}} has no word for it; choose one of {known}")
    return _IN_ACCELERATE[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that a run computes on; `compute_capability` is None where it is not known (or it is a CPU)."""

    kind: str  # cpu | cuda
    name: str | None = None
    compute_capability: tuple[int, int] | None = None

    def __str__(self) -> str:
        name = self.name or self.kind
        if self.compute_capability is None:
            return name
        return f"{name} (compute capability {'.'.join(map(str, self.compute_capability))})"


CPU = Device(kind="cpu", name="this CPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One row of `CAPABILITIES`: which devices compute a precision natively, and how it is emulated elsewhere."""

    on_cpu: bool  # whether a CPU's own kernels do it at a usable speed
    min_compute_capability: tuple[int, int] | None  # None: no GPU does it natively in hpcml's recipes
    emulation: str | None  # how hpcml_train rounds; None: not emulated
    why_not: str  # why a CPU is not native, for the line that refuses
    why_not_on_gpu: str = ""  # why no GPU is native, where none is
    trains: bool = True  # False: for networks that are trained already


_NO_SPLIT = "a CPU multiplies FP32 numbers whole: parts of them are for tensor cores"
_NO_FP8 = "no CPU has FP8 units"
_NO_SWITCH = "PyTorch has no switch for it on any GPU"


def _emulated(  # the common row: what tensor cores have, and a CPU emulates
    name: str, why_not: str, since: tuple[int, int] | None, why_not_on_gpu: str = ""
) -> Capability:
    return Capability(
        on_cpu=False,
        min_compute_capability=since,
        emulation=name,
        why_not=why_not,
        why_not_on_gpu=why_not_on_gpu,
    )


# CPU column: torch 2.13 on AVX-512 (docs/precision.md): a TF32 switch changes nothing, 16-bit floating point
# convolutions have no backward kernel and run about 100 times slower. GPU column: first generation with the units.
CAPABILITIES: Mapping[PrecisionName, Capability] = {
    PrecisionName.fp64: Capability(on_cpu=True, min_compute_capability=(1, 3), emulation=None, why_not=""),
    PrecisionName.fp32: Capability(on_cpu=True, min_compute_capability=(1, 0), emulation=None, why_not=""),
    PrecisionName.tf32x3: _emulated("tf32x3", _NO_SPLIT, None, _NO_SWITCH),
    PrecisionName.bf16x3: _emulated("bf16x3", _NO_SPLIT, None, _NO_SWITCH),
    PrecisionName.tf32: _emulated(
        "tf32", "no CPU has TF32 units: its switch is silently ignored there and the run would be FP32", (8, 0)
    ),
    PrecisionName.amp_fp16: _emulated(
        "half", "CPU kernels for FP16 are missing or about 100 times slower than FP32", (7, 0)
    ),
    PrecisionName.amp_bf16: Capability(on_cpu=True, min_compute_capability=(8, 0), emulation=None, why_not=""),
    PrecisionName.bf16: Capability(on_cpu=True, min_compute_capability=(8, 0), emulation=None, why_not=""),
    PrecisionName.fp16: _emulated(
        "half", "CPU kernels for FP16 are missing or about 100 times slower than FP32", (6, 0)
    ),
    PrecisionName.fp8_e4m3: _emulated("fp8_e4m3", _NO_FP8, (8, 9)),
    PrecisionName.fp8_e5m2: _emulated("fp8_e5m2", _NO_FP8, None, "cuBLAS multiplies no E5M2 by E5M2"),
    PrecisionName.fp8_hybrid: _emulated("fp8_hybrid", _NO_FP8, (8, 9)),
    PrecisionName.int8: Capability(
        on_cpu=True, min_compute_capability=(6, 1), emulation=None, why_not="", trains=False
    ),
}
# Computed by other products than the framework's own, which compiled code and a pipeline would escape: emulated ones
# everywhere, and these by the device's own units too.
SCALED_PRODUCTS = frozenset({PrecisionName.fp8_e4m3, PrecisionName.fp8_hybrid})


INFERENCE = "model=inference deploys networks in it"  # where precisions that do not train are


_OWN = Capability(on_cpu=True, min_compute_capability=(1, 0), emulation=None, why_not="")

# What the adaptors of other frameworks differ in: they emulate nothing, and their CPU kernels are others. Measured with
# TensorFlow 2.21 (gradient of a 3x3 convolution, 2 cores with AVX-512: FP16 takes 4.5 times as long as FP32; 43 times
# in a whole training) and JAX 0.10.2 (the same gradient: 1.1 times, since XLA computes FP16 in FP32 and rounds).
_SLOW_IN_TENSORFLOW = "TensorFlow's CPU kernels for FP16 are 4 to 43 times slower than FP32"
_NOT_ON_CPU: Mapping[str, Mapping[PrecisionName, str]] = {
    "tensorflow": {PrecisionName.amp_fp16: _SLOW_IN_TENSORFLOW, PrecisionName.fp16: _SLOW_IN_TENSORFLOW},
    "jax": {},
}
_IN_EVERY_FRAMEWORK = frozenset(
    {
        *(PrecisionName.fp64, PrecisionName.fp32, PrecisionName.tf32, PrecisionName.amp_fp16, PrecisionName.amp_bf16),
        *(PrecisionName.bf16, PrecisionName.fp16),
    }
)


def capability(name: PrecisionName, framework: str | None) -> Capability:
    """Return what *framework* supports of the precision *name*.

    Torch's row holds for torch, and for programs that name no framework (None). TensorFlow, JAX and NumPy emulate
    nothing, and have no more than the precisions that every framework has. What is left to the program is on no device
    refused or emulated.
    """
    if name is PrecisionName.own:
        return _OWN
    row = CAPABILITIES[name]
    if (framework or "torch") == "torch":
        return row
    if name not in _IN_EVERY_FRAMEWORK:
        because = f"hpcml computes in {name.name} with torch only"
        return replace(
            row,
            on_cpu=False,
            min_compute_capability=None,
            emulation=None,
            why_not=row.why_not or because,
            why_not_on_gpu=because,
        )
    slow = _NOT_ON_CPU.get(str(framework))
    if slow is None:
        return row
    why_not = slow.get(name, row.why_not if name is PrecisionName.tf32 else "")
    return replace(row, on_cpu=not why_not, emulation=None, why_not=why_not)


def decide_numerics(name: PrecisionName, wanted: Numerics, device: Device, framework: str | None = None) -> Numerics:
    """Return native or emulated for the precision *name* on *device*, or raise `ConfigError` with the reason.

    `auto` is native where the device supports it, and emulated only where there is no GPU at all and the framework is
    torch. A GPU that lacks the units is refused, not emulated: an emulated arm among measured ones would be read as
    measured.

        >>> decide_numerics(PrecisionName.fp32, Numerics.auto, CPU)
        <Numerics.native: 'native'>
    """
    if name is PrecisionName.own and wanted is Numerics.emulated:
        raise ConfigError("precision.numerics=emulated says nothing without a precision: add one, as precision=tf32")
    row = capability(name, framework)
    if wanted is Numerics.emulated and framework in _NOT_ON_CPU:
        raise ConfigError(f"precision.numerics=emulated is refused with {framework}: hpcml emulates in torch only")
    obstacle = _obstacle(row, device, framework)
    if wanted is Numerics.emulated:
        return _emulation(name, row, device)
    if obstacle is None:
        return Numerics.native
    if wanted is Numerics.native or why_refused(name, device, framework) is not None:
        raise ConfigError(f"precision={name.name} is refused on {device}: {obstacle}{_cure(row, device, framework)}")
    return Numerics.emulated


def why_refused(name: PrecisionName, device: Device, framework: str | None = None) -> str | None:
    """Return why *device* does *name* neither natively nor emulated, or None."""
    row = capability(name, framework)
    obstacle = _obstacle(row, device, framework)
    if obstacle is None or (device.kind == "cpu" and row.emulation is not None):
        return None
    return f"{obstacle}{_cure(row, device, framework)}"


def _obstacle(row: Capability, device: Device, framework: str | None) -> str | None:
    if device.kind == "cpu":
        return None if row.on_cpu else row.why_not
    if framework == "numpy":
        return "NumPy computes on the CPU: set resources.gpus_per_node=0"
    if row.min_compute_capability is None:
        return row.why_not_on_gpu or "hpcml computes in it on no GPU"
    known = device.compute_capability
    if known is None or known >= row.min_compute_capability:
        return None
    return f"it needs compute capability {'.'.join(map(str, row.min_compute_capability))}"


def _cure(row: Capability, device: Device, framework: str | None) -> str:
    if device.kind != "cpu":
        return ""
    if row.emulation is None:
        return f" (and {framework} has no emulation here, which torch has)"
    return " (precision.numerics=emulated rounds as the units would)"


def _emulation(name: PrecisionName, row: Capability, device: Device) -> Numerics:
    if device.kind != "cpu":
        raise ConfigError(
            f"precision.numerics=emulated is refused on {device}: emulation is for machines without a GPU"
        )
    if row.emulation is None:
        raise ConfigError(f"precision.numerics=emulated is refused: {name.name} is native on every CPU")
    return Numerics.emulated


# An image may set these, and so may a shell, so each arm states all of them; None: must not be set. NGC's PyTorch sets
# TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, which makes FP32 TF32.
_ALWAYS: Mapping[str, str | None] = {
    # cuBLAS from CUDA 12.9 on: FP32 products made of BF16 ones, FP64 products of integers (cuBLAS manual, emulation)
    "CUBLAS_EMULATE_SINGLE_PRECISION": "0",
    "CUBLAS_EMULATION_STRATEGY": None,
    "CUBLAS_EMULATE_DOUBLE_PRECISION": "0",
    # oneDNN's default for FP32 primitives on CPUs, in torch, TensorFlow and XLA: BF16 or ANY would let it round inputs
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    "TF_SET_ONEDNN_FPMATH_MODE": None,  # TensorFlow's own word for the same, which knows no "strict"
    # NGC's TensorFlow 1 and 2: the graph rewritten to AMP, FP32 operations on FP16 tensor cores
    "TF_ENABLE_AUTO_MIXED_PRECISION": "0",
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": "0",
    "TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32": "0",
    "TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32": "0",
    "TF_ENABLE_CUDNN_RNN_TENSOR_OP_MATH_FP32": "0",
    # TensorFlow's sums of FP16 products, in FP32 unless one of these is 0
    "TF_FP16_CONV_USE_FP32_COMPUTE": "1",
    "TF_FP16_MATMUL_USE_FP32_COMPUTE": "1",
    "TF_FP16_RNN_USE_FP32_COMPUTE": "1",
}
_TF32_OFF: Mapping[str, str | None] = {
    **_ALWAYS,
    "NVIDIA_TF32_OVERRIDE": "0",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "float32",  # JAX's own default is TF32 on GPUs that have it
}
# NVIDIA_TF32_OVERRIDE knows no "on": for tf32 it must be unset.
_TF32_ON: Mapping[str, str | None] = {
    **_ALWAYS,
    "NVIDIA_TF32_OVERRIDE": None,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "JAX_DEFAULT_MATMUL_PRECISION": "tensorfloat32",
}


def environment(name: PrecisionName) -> Mapping[str, str | None]:
    """Return the environment variables that a workload of this precision must see; None means that it must not be set.

    The variables are those by which CUDA libraries, oneDNN, PyTorch, TensorFlow and JAX change the arithmetic behind
    the program's back; each precision states all of them, since a container image or a shell may have set any. `own`
    sets none.
    """
    if name is PrecisionName.own:
        return {}
    return _TF32_ON if name is PrecisionName.tf32 else _TF32_OFF


# Words for an effective precision that is none: hpcml_client.observed says when which is due.
UNKNOWN, NOT_OBSERVED = "unknown", "not observed"
EVIDENCE, PROBED_AS = "precision_evidence", "precision_probed"  # facts: how it is known, and what a probe has shown
OBSERVED_TO, STEPS = "precision_observed_to_step", "precision_steps"  # facts: the last window's step, and how many
OBSERVED, PROBED = "observed", "probed"  # the program's own products, or those of a probe beside it


def contradicts(requested: str, effective: str | None) -> bool:
    """Tell whether the *effective* precision is another than *requested*.

    Nothing contradicts `own`, which asks for nothing; and what is not known contradicts nothing (`is_proven`).

    >>> contradicts("tf32", "not used(fp32)"), contradicts("own", "fp32"), contradicts("tf32", "unknown")
    (True, False, False)
    """
    return is_proven(effective) and requested not in (effective, PrecisionName.own.name)


def is_proven(effective: str | None) -> bool:
    """Tell whether the *effective* precision says in what was computed; None was neither observed nor measured."""
    return effective is not None and effective != UNKNOWN and not effective.startswith(NOT_OBSERVED)
