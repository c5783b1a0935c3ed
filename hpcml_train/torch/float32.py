"""What float32 products were computed in: by their numbers, and by the switches that leave a library the choice.

On a GPU float32 is FP32 where TF32 is switched off. Where it is allowed, cuBLAS and cuDNN decide for each size: what by
its numbers is TF32 is called so, and the rest `TF32_ALLOWED`, since nobody sees numbers of gradients, nor of what is
neither sampled nor computed again (`hpcml_train.torch.replays`). On a CPU oneDNN's switches decide, and one sample.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from hpcml_train.precision.observed import TF32_ALLOWED
from hpcml_train.torch import replays, traces

_CLOSED = ("ieee", "none", False, "highest")  # values of switches; "none": neither it nor its parents say anything
# The switches of each kind of product on a GPU: of torch 2.9 and later, and of those before. Attention in float32 is
# kernels of torch's own, which keep to FP32 (docs/precision.md); in plain products it is as they are.
_ON_GPU: Mapping[str, Tuple[str, str]] = {
    "linear": ("cuda.matmul.fp32_precision", "cuda.matmul.allow_tf32"),
    "attention": ("cuda.matmul.fp32_precision", "cuda.matmul.allow_tf32"),
    "conv": ("cudnn.conv.fp32_precision", "cudnn.allow_tf32"),
    "rnn": ("cudnn.rnn.fp32_precision", "cudnn.allow_tf32"),
}
_ON_CPU = {"conv": "mkldnn.conv.fp32_precision"}  # and all others
_FIRST_WITH_TF32 = (8, 0)  # compute capability


class Seen(NamedTuple):
    """What the numbers of a window have shown: by layer, by size of a product, and by its kind on the CPU and on a GPU.

    A layer of whose numbers nothing can be said has None; one that is not there was not sampled.
    """

    by_layer: Mapping[str, Optional[str]]
    on_cpu: Mapping[str, Sequence[str]]
    on_gpu: Mapping[str, Sequence[str]]
    by_size: Mapping[Tuple[Any, ...], str] = {}


def seen(formats: Mapping[Tuple[Any, ...], Optional[str]], layers: Mapping[str, Tuple[Any, ...]]) -> Seen:
    """Return what *formats* show, which are by likeness (`samples.likeness`), as is the one of each of *layers*."""
    of_device: Dict[bool, Dict[str, List[str]]] = {True: {}, False: {}}
    for (kind, device, *_), form in formats.items():
        if form is not None:
            of_device[device == "cpu"].setdefault(kind, []).append(form)
    by_layer = {layer: formats[alike] for layer, alike in layers.items() if alike in formats}
    return Seen(by_layer, of_device[True], of_device[False])


def with_replays(numbers: Seen, products: Sequence[traces.Product], allowed: Sequence[str]) -> Seen:
    """Return *numbers* with those of products computed again, in the sizes of which a GPU was *allowed* TF32."""
    by_size = replays.formats(products, allowed, numbers.by_layer, torch.device("cuda"))
    on_gpu = {kind: [*formats] for kind, formats in numbers.on_gpu.items()}
    for size, form in by_size.items():
        on_gpu.setdefault("linear" if isinstance(size, traces.Matrices) else "conv", []).append(form)
    return numbers._replace(on_gpu=on_gpu, by_size=by_size)


def tf32_allowed(settings: Mapping[str, Any]) -> List[str]:
    """Return the kinds of product for which a GPU may compute float32 in TF32, with torch's switches set so.

    A switch that could not be read is open.
    """
    override = os.environ.get("NVIDIA_TF32_OVERRIDE")
    if override == "0" or not _has_tf32():
        return []
    return [
        kind for kind, names in _ON_GPU.items() if override == "1" or not any(settings.get(n) in _CLOSED for n in names)
    ]


def _has_tf32() -> bool:
    """Whether this process' GPU has TF32; one that nobody has asked for yet might."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability() >= _FIRST_WITH_TF32


def resolve(
    found: traces.Found, numbers: Seen, settings: Mapping[str, Any], allowed: Sequence[str]
) -> Tuple[List[traces.Product], Dict[str, Optional[float]]]:
    """Return the products of a window, none of them in a float32 that may be another format, and what stays unknown.

    *settings* are torch's switches; *allowed* the kinds for which a GPU may compute in TF32 (`tf32_allowed`).
    """
    products: List[traces.Product] = []
    unknown = dict(found.unknown)
    for one in found.products:
        if one.format == traces.FLOAT32_ON_GPU:
            products.append(one._replace(format=_on_gpu(one, numbers, one.kind in allowed)))
        elif one.format == "fp32" and not one.emulated and (form := _on_cpu(one, numbers, settings)) is not None:
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


def _on_cpu(one: traces.Product, numbers: Seen, settings: Mapping[str, Any]) -> Optional[str]:
    others = set(numbers.on_cpu.get(one.kind, ()))
    if len(others) == 1:
        return others.pop()
    switch = _ON_CPU.get(one.kind, "mkldnn.matmul.fp32_precision")  # which torch before 2.9 has not
    return "fp32" if settings.get(switch, "ieee") in _CLOSED else None
