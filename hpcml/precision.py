"""What each precision means: who can do it natively, who emulates it, which switches it sets, how it is proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hpcml.errors import ConfigError


class PrecisionName(Enum):
    """The arms that can be compared; `amp` in the configs is `amp_fp16`."""

    fp64 = "fp64"
    fp32 = "fp32"
    tf32 = "tf32"
    amp_fp16 = "amp_fp16"
    amp_bf16 = "amp_bf16"
    bf16 = "bf16"
    fp16 = "fp16"
    fp8_e4m3 = "fp8_e4m3"
    fp8_e5m2 = "fp8_e5m2"


ALIASES: Mapping[str, PrecisionName] = {"amp": PrecisionName.amp_fp16}  # names in conf/precision that stand for others


class Numerics(Enum):
    """How the arithmetic is done: by the device's own units, or rounded as they would round."""

    auto = "auto"
    native = "native"
    emulated = "emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a run computes on; `compute_capability` is None where a site's profile does not tell."""

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
    """One row of the table below."""

    on_cpu: bool  # whether a CPU's own kernels do it at a usable speed
    min_compute_capability: tuple[int, int] | None  # None: no GPU does it natively in hpcml's recipes yet
    emulation: str | None  # the format that hpcml_client rounds to; None: not emulated
    why_not: str  # why a CPU is not native, for the line that refuses


# CPU column: torch 2.13 on AVX-512 (docs/precision.md): a TF32 switch changes nothing, 16-bit floating point
# convolutions have no backward kernel and run about 100 times slower. GPU column: first generation with the units.
CAPABILITIES: Mapping[PrecisionName, Capability] = {
    PrecisionName.fp64: Capability(on_cpu=True, min_compute_capability=(1, 3), emulation=None, why_not=""),
    PrecisionName.fp32: Capability(on_cpu=True, min_compute_capability=(1, 0), emulation=None, why_not=""),
    PrecisionName.tf32: Capability(
        on_cpu=False,
        min_compute_capability=(8, 0),
        emulation="tf32",
        why_not="no CPU has TF32 units: its switch is silently ignored there and the run would be FP32",
    ),
    PrecisionName.amp_fp16: Capability(
        on_cpu=False,
        min_compute_capability=(7, 0),
        emulation="half",
        why_not="CPU kernels for FP16 are missing or about 100 times slower than FP32",
    ),
    PrecisionName.amp_bf16: Capability(on_cpu=True, min_compute_capability=(8, 0), emulation=None, why_not=""),
    PrecisionName.bf16: Capability(on_cpu=True, min_compute_capability=(8, 0), emulation=None, why_not=""),
    PrecisionName.fp16: Capability(
        on_cpu=False,
        min_compute_capability=(6, 0),
        emulation="half",
        why_not="CPU kernels for FP16 are missing or about 100 times slower than FP32",
    ),
    PrecisionName.fp8_e4m3: Capability(
        on_cpu=False, min_compute_capability=None, emulation="fp8_e4m3", why_not="no CPU has FP8 units"
    ),
    PrecisionName.fp8_e5m2: Capability(
        on_cpu=False, min_compute_capability=None, emulation="fp8_e5m2", why_not="no CPU has FP8 units"
    ),
}


def decide_numerics(name: PrecisionName, wanted: Numerics, device: Device) -> Numerics:
    """Return native or emulated for *name* on *device*, or raise `ConfigError` with the reason.

    `auto` is native where the device can, emulated only where there is no GPU at all, else refused: a GPU that
    lacks the units gets no emulation, since an emulated arm among measured ones would be read as measured.
    """
    row = CAPABILITIES[name]
    obstacle = _obstacle(row, device)
    if wanted is Numerics.emulated:
        return _emulation(name, row, device)
    if obstacle is None:
        return Numerics.native
    if wanted is Numerics.native or device.kind != "cpu" or row.emulation is None:
        cure = " (precision.numerics=emulated rounds as the units would)" if device.kind == "cpu" else ""
        raise ConfigError(f"precision={name.name} is refused on {device}: {obstacle}{cure}")
    return Numerics.emulated


def _obstacle(row: Capability, device: Device) -> str | None:
    if device.kind == "cpu":
        return None if row.on_cpu else row.why_not
    if row.min_compute_capability is None:
        return "the recipes have no native FP8 yet"
    if device.compute_capability is None or device.compute_capability >= row.min_compute_capability:
        return None
    return f"it needs compute capability {'.'.join(map(str, row.min_compute_capability))}"


def _emulation(name: PrecisionName, row: Capability, device: Device) -> Numerics:
    if device.kind != "cpu":
        raise ConfigError(
            f"precision.numerics=emulated is refused on {device}: emulation is for machines without a GPU"
        )
    if row.emulation is None:
        raise ConfigError(f"precision.numerics=emulated is refused: {name.name} is native on every CPU")
    return Numerics.emulated


_TF32_OFF = {"NVIDIA_TF32_OVERRIDE": "0", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0"}
# An image may set these (NGC's PyTorch sets the second to 1), so each arm states both; the FP32 part of AMP is FP32.
# NVIDIA_TF32_OVERRIDE knows no "on": for tf32 it must be unset, which `None` says.
_TF32_ON: Mapping[str, str | None] = {"NVIDIA_TF32_OVERRIDE": None, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}


def environment(name: PrecisionName) -> Mapping[str, str | None]:
    """Return the variables that a workload of this precision must see; None means: must not be set."""
    return _TF32_ON if name is PrecisionName.tf32 else _TF32_OFF


# (product format, parameter dtype) as measured by the probe -> the precision that this is
_EFFECTIVE = {
    ("fp64", "float64"): PrecisionName.fp64,
    ("fp32", "float32"): PrecisionName.fp32,
    ("tf32", "float32"): PrecisionName.tf32,
    ("fp16", "float32"): PrecisionName.amp_fp16,
    ("bf16", "float32"): PrecisionName.amp_bf16,
    ("bf16", "bfloat16"): PrecisionName.bf16,
    ("fp16", "float16"): PrecisionName.fp16,
    ("fp8_e4m3", "float32"): PrecisionName.fp8_e4m3,
    ("fp8_e5m2", "float32"): PrecisionName.fp8_e5m2,
}


def effective_precision(products: Mapping[str, str], parameter_dtype: str) -> str:
    """Name what the probe measured: a precision, or ``mixed(conv=tf32, matmul=fp32)`` where products disagree.

    *products* maps each probed product (matmul, conv) to the format its error against FP64 shows.
    """
    formats = set(products.values())
    if len(formats) == 1:
        found = _EFFECTIVE.get((formats.pop(), parameter_dtype))
        if found is not None:
            return found.name
    parts = ", ".join(f"{product}={form}" for product, form in sorted(products.items()))
    return f"mixed({parts}, parameters={parameter_dtype})"
