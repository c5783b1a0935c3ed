"""What float32 products were computed in: by their numbers, and by the switches that leave a library the choice.

On a GPU float32 is FP32 where TF32 is switched off. Where it is allowed, cuBLAS and cuDNN decide for each size: what by
its numbers is TF32 is called so, and the rest `TF32_ALLOWED`, since nobody sees numbers of gradients, nor of what is
neither sampled nor computed again (`hpcml_train.torch.replays`). On a CPU oneDNN's switches decide, and where one is
open the numbers of each size.
"""

from __future__ import annotations

import os
from typing import AbstractSet, Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from hpcml_train.precision.observed import TF32_ALLOWED
from hpcml_train.torch import replays, switches, traces

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


class Seen(NamedTuple):
    """What the numbers of a window have shown: by layer, by size of a product, and by its kind on the CPU and on a GPU.

    A layer of whose numbers nothing can be said has None; one that is not there was not sampled.
    """

    by_layer: Mapping[str, Optional[str]]
    on_cpu: Mapping[str, Sequence[str]]
    on_gpu: Mapping[str, Sequence[str]]
    by_size: Mapping[Tuple[Any, ...], str] = {}


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


def seen(formats: Mapping[Tuple[Any, ...], Optional[str]], layers: Mapping[str, AbstractSet[Tuple[Any, ...]]]) -> Seen:
    """Return what *formats* show, which are by likeness (`samples.likeness`), as are those of each of *layers*.

    Of a layer that shows several nothing can be said: it has computed in several sizes, or two models call one so.
    """
    of_device: Dict[bool, Dict[str, List[str]]] = {True: {}, False: {}}
    for (kind, device, *_), form in formats.items():
        if form is not None:
            of_device[device == "cpu"].setdefault(kind, []).append(form)
    by_layer: Dict[str, Optional[str]] = {}
    for layer, alike in layers.items():
        if any(one in formats for one in alike):
            found = {formats.get(one) for one in alike}
            by_layer[layer] = found.pop() if len(found) == 1 else None
    return Seen(by_layer, of_device[True], of_device[False])


def with_replays(numbers: Seen, products: Sequence[traces.Product], allowed: Collection[str]) -> Seen:
    """Return *numbers* with those of products computed again, in the sizes of which a GPU was *allowed* TF32."""
    by_size = replays.formats(products, allowed, numbers.by_layer, torch.device("cuda"))
    on_gpu = {kind: [*formats] for kind, formats in numbers.on_gpu.items()}
    for size, form in by_size.items():
        on_gpu.setdefault("linear" if isinstance(size, traces.Matrices) else "conv", []).append(form)
    return numbers._replace(on_gpu=on_gpu, by_size=by_size)


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
    found: traces.Found, numbers: Seen, *, on_cpu: Collection[str], on_gpu: Collection[str]
) -> Tuple[List[traces.Product], Dict[str, Optional[float]]]:
    """Return the products of a window, none of them in a float32 that may be another format, and what stays unknown.

    *on_cpu* and *on_gpu* are the kinds which have leave to be computed in less than FP32 (`Leave`).
    """
    products: List[traces.Product] = []
    unknown = dict(found.unknown)
    for one in found.products:
        if one.format == traces.FLOAT32_ON_GPU:
            products.append(one._replace(format=_on_gpu(one, numbers, one.kind in on_gpu)))
            continue
        is_plain = one.format == "fp32" and not one.emulated
        form = _on_cpu(one, numbers, one.kind in on_cpu) if is_plain else None
        if form is not None:
            products.append(one._replace(format=form))
        elif one.emulated or not (one.format == "fp32" or _is_vague(one.format)):
            products.append(one)
        else:
            what = one.format if one.format != "fp32" else f"float32 with oneDNN's {one.kind} switch open"
            before = unknown.get(what, 0.0)
            unknown[what] = None if before is None else before + one.flops
    return products, unknown


def _is_vague(form: str) -> bool:
    return traces.FLOAT32_ON_GPU in form or traces.FLOAT32_ELSEWHERE in form


def _on_gpu(one: traces.Product, numbers: Seen, is_allowed: bool) -> str:  # noqa: FBT001
    others = set(numbers.on_gpu.get(one.kind, ()))
    if not is_allowed and others <= {"fp32"}:
        return "fp32"
    said = numbers.by_layer.get(one.layer or "", numbers.by_size.get(one.size or ()))
    if said is not None and said != "fp32":
        return said
    is_sampled = said is not None or one.layer in numbers.by_layer
    if not is_sampled and len(others) == 1 and others != {"fp32"}:
        return others.pop()
    return TF32_ALLOWED


def _on_cpu(one: traces.Product, numbers: Seen, is_allowed: bool) -> Optional[str]:  # noqa: FBT001
    others = set(numbers.on_cpu.get(one.kind, ()))
    if not is_allowed and others <= {"fp32"}:
        return "fp32"
    said = numbers.by_layer.get(one.layer or "")
    if said is not None:
        return said
    return others.pop() if len(others) == 1 else None
