"""Which precision is computed in natively, emulated or refused where, and which variables set it.

The table is `hpcml_client.precisions`; `decide_numerics` chooses native or emulated arithmetic when a run is planned,
and refuses what would not be what its name says. `environment` gives the variables that the agent sets for the
workload. What the probe in the workload measured is named by `hpcml_client.formats`. docs/precision.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml_client.observed import NOT_OBSERVED, UNKNOWN
from hpcml_client.precisions import Precision
from hpcml_client.precisions import PrecisionName as PrecisionName  # noqa: PLC0414 - hpcml's rooms take it from here

RECIPES_OWN = PrecisionName.fp32  # what recipes compute in where nothing was asked for
# names in conf/precision that stand for others
ALIASES: Mapping[str, PrecisionName] = {"amp": PrecisionName.amp_fp16, "3xtf32": PrecisionName.tf32x3}


def mixed_precision(name: PrecisionName) -> str:
    """Return accelerate's word for the precision *name*; raise `ConfigError` where it has none.

    >>> mixed_precision(PrecisionName.amp_bf16)
    'bf16'
    """
    if name.value.in_accelerate is None:
        known = ", ".join(each.name for each in PrecisionName if each.value.in_accelerate)
        raise ConfigError(f"precision={name.name}: {{mixed_precision}} has no word for it; choose one of {known}")
    return name.value.in_accelerate


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


# All rows but that of `own`, which asks for nothing.
CAPABILITIES: Mapping[PrecisionName, Precision] = {
    name: name.value for name in PrecisionName if name is not PrecisionName.own
}
INFERENCE = "model=inference deploys networks in it"  # where precisions that do not train are


# What the adaptors of other frameworks differ in: they emulate nothing, and their CPU kernels are others. Measured with
# TensorFlow 2.21 (gradient of a 3x3 convolution, 2 cores with AVX-512: FP16 takes 4.5 times as long as FP32; 43 times
# in a whole training) and JAX 0.10.2 (the same gradient: 1.1 times, since XLA computes FP16 in FP32 and rounds).
_SLOW_IN_TENSORFLOW = "TensorFlow's CPU kernels for FP16 are 4 to 43 times slower than FP32"
_NOT_ON_CPU: Mapping[str, Mapping[PrecisionName, str]] = {
    "tensorflow": {PrecisionName.amp_fp16: _SLOW_IN_TENSORFLOW, PrecisionName.fp16: _SLOW_IN_TENSORFLOW},
    "jax": {},
}


def capability(name: PrecisionName, framework: str | None) -> Precision:
    """Return what *framework* supports of the precision *name*.

    Torch's row holds for torch, and for programs that name no framework (None). TensorFlow, JAX and NumPy emulate
    nothing, and have no more than the precisions that every framework has. What is left to the program is on no device
    refused or emulated.
    """
    row = name.value
    if name is PrecisionName.own or (framework or "torch") == "torch":
        return row
    if not row.in_every_framework:
        because = f"hpcml computes in {name.name} with torch only"
        why_not = row.why_not or because
        return row._replace(min_compute_capability=None, emulation=None, why_not=why_not, why_not_on_gpu=because)
    slow = _NOT_ON_CPU.get(str(framework))
    if slow is None:
        return row
    why_not = slow.get(name, row.why_not if name is PrecisionName.tf32 else "")
    return row._replace(emulation=None, why_not=why_not)


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


def _obstacle(row: Precision, device: Device, framework: str | None) -> str | None:
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


def _cure(row: Precision, device: Device, framework: str | None) -> str:
    if device.kind != "cpu":
        return ""
    if row.emulation is None:
        return f" (and {framework} has no emulation here, which torch has)"
    return " (precision.numerics=emulated rounds as the units would)"


def _emulation(name: PrecisionName, row: Precision, device: Device) -> Numerics:
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


EVIDENCE, PROBED_AS = "precision_evidence", "precision_probed"  # facts: how it is known, and what a probe has shown
OBSERVED_TO, STEPS = "precision_observed_to_step", "precision_steps"  # facts: the last window's step, and how many


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
