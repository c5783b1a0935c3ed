"""What a float32 product is computed in, by the switches that leave a library the choice, and by a probe.

On a GPU float32 is FP32 where TF32 is switched off. Where it is allowed, cuBLAS and cuDNN decide for each size: it
counts as what the probe measured, where that was allowed it too, and as `TF32_ALLOWED` where nothing was probed. On a
CPU oneDNN's switches decide in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from hpcml_client.observed import TF32_ALLOWED
from hpcml_train.torch import switches

_CLOSED = ("ieee", "none", False, "highest")  # values of switches; "none": neither it nor its parents say anything
# The switches of each kind of product on a GPU: of torch 2.9 and later, and of those before. Attention in float32 is
# kernels of torch's own, which keep to FP32 (docs/precision.md); in plain products it is as they are.
_ON_GPU: Mapping[str, tuple[str, str]] = {
    "linear": ("cuda.matmul.fp32_precision", "cuda.matmul.allow_tf32"),
    "attention": ("cuda.matmul.fp32_precision", "cuda.matmul.allow_tf32"),
    "conv": ("cudnn.conv.fp32_precision", "cudnn.allow_tf32"),
    "rnn": ("cudnn.rnn.fp32_precision", "cudnn.allow_tf32"),
}
_ON_CPU = {  # of oneDNN, which torch before 2.9 never lets compute float32 in less
    "linear": "mkldnn.matmul.fp32_precision",
    "attention": "mkldnn.matmul.fp32_precision",
    "conv": "mkldnn.conv.fp32_precision",
    "rnn": "mkldnn.rnn.fp32_precision",
}
_DRIVERS_VARIABLE = "NVIDIA_TF32_OVERRIDE"  # allows TF32 or forbids it, above torch's switches
_FIRST_WITH_TF32 = (8, 0)  # compute capability
# Which of the probe's products stands for each kind, and the kind of that. Attention has none: see above.
_PROBED_BY: Mapping[str, tuple[str, str]] = {
    "linear": ("matmul", "linear"),
    "conv": ("conv", "conv"),
    "rnn": ("conv", "conv"),
}


class Probed(NamedTuple):
    """The formats that a probe measured of the kinds of product that had leave then, on the CPU and on a GPU."""

    on_cpu: Mapping[str, str] = {}
    on_gpu: Mapping[str, str] = {}


class Float32:
    """What float32 products are computed in, in this process."""

    def __init__(self) -> None:
        self._probed = Probed()
        # As the process was found: nobody knows whether what is put there later is still read.
        self._driver_at_start = os.environ.get(_DRIVERS_VARIABLE)
        self.allowed: dict[str, bool] = {}  # kinds of product that met TF32 allowed; True: the probe measured it

    def know_probe(self, products: Mapping[str, str], device: str) -> None:
        """Take what a probe has measured just now on *device*, ``cpu`` or ``cuda``."""
        settings = _settings()
        allowed = tf32_allowed(settings or {}, self._driver_at_start) if device == "cuda" else open_on_cpu(settings)
        found = {
            kind: products[product]
            for kind, (product, its_kind) in _PROBED_BY.items()
            if {kind, its_kind} <= set(allowed) and product in products
        }
        self._probed = Probed(on_gpu=found) if device == "cuda" else Probed(on_cpu=found)

    def format_of(self, kind: str, device: str) -> str | None:
        """Return the format of a product of *kind* that is computed now on *device*; None where it is unknown."""
        settings = _settings()
        if device == "cpu":
            return self._probed.on_cpu.get(kind) if kind in open_on_cpu(settings) else "fp32"
        if device != "cuda":
            return None
        if kind not in tf32_allowed(settings or {}, self._driver_at_start):
            return "fp32"
        self.allowed[kind] = kind in self._probed.on_gpu
        return self._probed.on_gpu.get(kind, TF32_ALLOWED)


def tf32_allowed(settings: Mapping[str, Any], at_start: str | None) -> list[str]:
    """Return the kinds of product for which a GPU may compute float32 in TF32, with torch's switches set so.

    A switch that could not be read is open. The driver's variable forbids where it has done so from the *at_start* on.
    """
    words = {at_start, os.environ.get(_DRIVERS_VARIABLE)}
    if words == {"0"} or not _has_tf32():
        return []
    return [
        kind for kind, names in _ON_GPU.items() if "1" in words or not any(settings.get(n) in _CLOSED for n in names)
    ]


def open_on_cpu(settings: Mapping[str, Any] | None) -> list[str]:
    """Return the kinds of product that oneDNN may compute in less than FP32; all where *settings* could not be read."""
    return [kind for kind, name in _ON_CPU.items() if settings is None or settings.get(name, "ieee") not in _CLOSED]


def _settings() -> Mapping[str, Any] | None:
    try:
        return switches.read_fp32_switches()
    except RuntimeError:  # a program that has used torch's old interface and the new one
        return None


def _has_tf32() -> bool:
    """Whether a GPU that this process can use has TF32; before it has used any, one might, and is left alone."""
    if not torch.cuda.is_available() or not _is_used() or torch.version.hip is not None:
        return True
    return any(torch.cuda.get_device_capability(at) >= _FIRST_WITH_TF32 for at in range(torch.cuda.device_count()))


def _is_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call, unused-ignore]
