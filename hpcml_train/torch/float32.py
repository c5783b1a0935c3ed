"""What float32 products were computed in, by the switches that leave a library the choice, and by a probe.

On a GPU float32 is FP32 where TF32 is switched off. Where it is allowed, cuBLAS and cuDNN decide for each size: it
counts as what the probe measured, where that was allowed it too, and as `TF32_ALLOWED` where nothing was probed. On a
CPU oneDNN's switches decide in the same way.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

import torch

from hpcml_train.precision.observed import TF32_ALLOWED
from hpcml_train.torch import switches, traces

_CLOSED = ("ieee", "none", False, "highest")  # values of switches; "none": neither it nor its parents say anything
# The switches of each kind of product on a GPU: of torch 2.9 and later, and of those before. Attention in float32 is
# kernels of torch's own, which keep to FP32 (docs/precision.md); in plain products it is as they are.
_ON_GPU: Mapping[str, Tuple[str, str]] = {
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
_DRIVERS_WORD = "NVIDIA_TF32_OVERRIDE"
_FIRST_WITH_TF32 = (8, 0)  # compute capability


# Which of the probe's products stands for each kind, and the kind of that. Attention has none: see above.
_PROBED_BY: Mapping[str, Tuple[str, str]] = {
    "linear": ("matmul", "linear"),
    "conv": ("conv", "conv"),
    "rnn": ("conv", "conv"),
}


class Probed(NamedTuple):
    """The formats that a probe measured of the kinds of product that had leave then, on the CPU and on a GPU."""

    on_cpu: Mapping[str, str] = {}
    on_gpu: Mapping[str, str] = {}


class Leave:
    """The kinds of product that a GPU, or a CPU, has had leave to compute in less than FP32, whenever anybody looked.

    A program may switch it on for a part of a step alone. `at_start` is the driver's variable as the process was found:
    nobody knows whether what was put there later is still read.
    """

    def __init__(self, at_start: Optional[str]) -> None:
        self.on_gpu: Set[str] = set()
        self.on_cpu: Set[str] = set()
        self._at_start = at_start
        self.look()

    def look(self) -> None:
        """Add what has leave now."""
        try:
            settings = switches.read_fp32_switches()
        except RuntimeError:  # a program that has used torch's old interface and the new one
            settings = None
        self.on_gpu.update(tf32_allowed(settings or {}, self._at_start))
        self.on_cpu.update(open_on_cpu(settings))


def drivers_word() -> Optional[str]:
    """Return the value of the variable by which NVIDIA's libraries allow TF32 or forbid it, above torch's switches."""
    return os.environ.get(_DRIVERS_WORD)


def probed(products: Mapping[str, str], device: str, leave: Leave) -> Probed:
    """Return what a probe says whose *products* were measured just now, on *device* (``cpu`` or ``cuda``)."""
    allowed = leave.on_gpu if device == "cuda" else leave.on_cpu
    found = {
        kind: products[product]
        for kind, (product, its_kind) in _PROBED_BY.items()
        if {kind, its_kind} <= allowed and product in products
    }
    return Probed(on_gpu=found) if device == "cuda" else Probed(on_cpu=found)


def tf32_allowed(settings: Mapping[str, Any], at_start: Optional[str]) -> List[str]:
    """Return the kinds of product for which a GPU may compute float32 in TF32, with torch's switches set so.

    A switch that could not be read is open. The driver's word forbids where it has done so from the *at_start* on.
    """
    words = {at_start, drivers_word()}
    if words == {"0"} or not _has_tf32():
        return []
    return [
        kind for kind, names in _ON_GPU.items() if "1" in words or not any(settings.get(n) in _CLOSED for n in names)
    ]


def open_on_cpu(settings: Optional[Mapping[str, Any]]) -> List[str]:
    """Return the kinds of product that oneDNN may compute in less than FP32; all where *settings* could not be read."""
    return [kind for kind, name in _ON_CPU.items() if settings is None or settings.get(name, "ieee") not in _CLOSED]


def _has_tf32() -> bool:
    """Whether a GPU that this process can use has TF32; before it has used any, one might, and is left alone."""
    if not torch.cuda.is_available() or not _is_used() or torch.version.hip is not None:
        return True
    return any(torch.cuda.get_device_capability(at) >= _FIRST_WITH_TF32 for at in range(torch.cuda.device_count()))


def _is_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call, unused-ignore]


def resolve(
    found: traces.Found, leave: Leave, probed: Probed
) -> Tuple[List[traces.Product], Dict[str, Optional[float]]]:
    """Return the products of a window, none of them in a float32 that may be another format, and what stays unknown."""
    products: List[traces.Product] = []
    unknown = dict(found.unknown)
    for one in found.products:
        if one.format == traces.FLOAT32_ON_GPU:
            form = probed.on_gpu.get(one.kind, TF32_ALLOWED) if one.kind in leave.on_gpu else "fp32"
            products.append(one._replace(format=form))
            continue
        is_open = one.format == "fp32" and not one.emulated and one.kind in leave.on_cpu
        if is_open and one.kind in probed.on_cpu:
            products.append(one._replace(format=probed.on_cpu[one.kind]))
        elif one.emulated or not (is_open or _is_vague(one.format)):
            products.append(one)
        else:
            what = f"float32 with oneDNN's {one.kind} switch open" if is_open else one.format
            before = unknown.get(what, 0.0)
            unknown[what] = None if before is None else before + one.flops
    return products, unknown


def _is_vague(form: str) -> bool:
    return traces.FLOAT32_ON_GPU in form or traces.FLOAT32_ELSEWHERE in form
