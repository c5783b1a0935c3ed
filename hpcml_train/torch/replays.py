"""Products of float32 that a GPU computes once more beside a program, in the sizes of those that were not sampled.

Compiled code and functions have no layers to take a sample of. What a library chooses for a size, under the same
switches and in the same process, stands for what it has chosen for the program, though order and alignment in memory
may be others there; `hpcml_train.torch.fingerprint` tells the format.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Collection, Dict, Iterable, List, Optional, Tuple

import torch

from hpcml_train.torch import fingerprint, samples, traces

_MOST = 6  # sizes of each kind: those with the most FLOPs
_MOST_NUMBERS = 1 << 24  # of a factor: 64 MiB
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_FREE = 8  # times what is needed: so much memory must be free

Size = Tuple[Any, ...]


def formats(
    products: Iterable[traces.Product], kinds: Collection[str], sampled: Collection[str], device: torch.device
) -> Dict[Size, str]:
    """Return the formats that *device* computes float32 *products* of these *kinds* in, by size, if the numbers say it.

    What lies in layers that were *sampled* is left out. Numbers are drawn from a generator of their own.
    """
    flops: Dict[str, Dict[Size, float]] = {kind: {} for kind in kinds}
    for one in products:
        is_due = one.format == traces.FLOAT32_ON_GPU and one.kind in flops and one.layer not in sampled
        if is_due and one.size is not None and one.flops > 0:
            flops[one.kind][one.size] = flops[one.kind].get(one.size, 0.0) + one.flops
    found: Dict[Size, str] = {}
    for of_kind in flops.values():
        for size in sorted(of_kind, key=lambda size: -of_kind[size])[:_MOST]:
            form = _format_of(size, device)
            if form is not None:
                found[size] = form
    return found


def _format_of(size: Size, device: torch.device) -> Optional[str]:
    try:
        with torch.no_grad():
            if isinstance(size, traces.Matrices):
                return _of_matrices(size, device)
            if isinstance(size, traces.Convolution) and not torch.backends.cudnn.benchmark:  # which tries all kernels
                return _of_convolution(size, device)
    except RuntimeError:  # no memory is left, or the library has no such convolution
        return None
    return None


def _numbers(device: torch.device, *shapes: Tuple[int, ...], results: int = 0) -> List[torch.Tensor]:
    generator = torch.Generator(device=device)
    generator.manual_seed(0)
    needed_bytes = 4 * (results + sum(math.prod(shape) for shape in shapes))
    if device.type == "cuda" and needed_bytes * _FREE > torch.cuda.mem_get_info()[0]:
        raise RuntimeError("too little memory is free")
    return [torch.randn(shape, generator=generator, device=device, dtype=torch.float32) for shape in shapes]


def _of_matrices(size: traces.Matrices, device: torch.device) -> Optional[str]:
    m, n = (max(1, min(one, _MOST_NUMBERS // size.k)) for one in (size.m, size.n))
    a, b = _numbers(device, (m, size.k), (size.k, n), results=m * n)
    return _told(SimpleNamespace(weight=b.T, bias=None), a, a @ b, samples.take_linear)


def _of_convolution(size: traces.Convolution, device: torch.device) -> Optional[str]:
    batch = max(1, min(size.x[0], _MOST_NUMBERS // max(1, math.prod(size.x[1:]))))
    x, weight = _numbers(device, (batch, *size.x[1:]), size.weight)
    if size.is_channels_last and x.dim() in _CHANNELS_LAST:
        x, weight = (one.to(memory_format=_CHANNELS_LAST[x.dim()]) for one in (x, weight))
    y = torch.convolution(
        x, weight, None, size.stride, size.padding, size.dilation, size.transposed, size.output_padding, size.groups
    )
    layer = SimpleNamespace(**{**size._asdict(), "weight": weight}, bias=None, kernel_size=size.weight[2:])
    return _told(layer, x, y, samples.take_convolution)


def _told(layer: Any, x: torch.Tensor, y: torch.Tensor, take: samples.Taking) -> Optional[str]:  # noqa: ANN401
    sample = samples.sample_of(layer, x, y, take)
    return None if sample is None else fingerprint.format_of(sample)
