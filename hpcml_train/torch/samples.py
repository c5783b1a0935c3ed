"""Parts of real products, taken out of a layer's forward pass: a few rows and columns, and what came of them.

`hpcml_train.torch.fingerprint` tells by their numbers in which format they were computed. No layer is computed again
but recurrent ones, whose products nobody sees: their first layer runs once more, from zero states.
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from hpcml_train.torch import traces

_SAMPLE = 12  # rows, and columns
_LEAST_SUM = 16  # numbers in a sum: below, too few digits differ
_MOST_BYTES = 1 << 28  # of what a recurrent layer's second run gives
_LINEAR, _CONVOLUTION, _RECURRENT = "linear", "conv", "rnn"
_KINDS: Dict[type, str] = {
    nn.Linear: _LINEAR,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONVOLUTION),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _CONVOLUTION),
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), _RECURRENT),
}
_PLAIN = (torch.Tensor, nn.Parameter)


class Sample(NamedTuple):
    """A part of a product that a program computed, on the CPU: rows (m, K), columns (n, K), their products (m, n)."""

    rows: torch.Tensor
    columns: torch.Tensor
    products: torch.Tensor


class FirstStep(NamedTuple):
    """A part of a recurrent layer's first step from zero states, on the CPU.

    Inputs (m, K), weights (gates, n, K), biases of input and state (2, gates, n), the new states (m, n); the gates are
    in torch's order. *mode* is torch's name of it: ``LSTM``, ``GRU``, ``RNN_TANH``, ``RNN_RELU``.
    """

    rows: torch.Tensor
    weights: torch.Tensor
    biases: torch.Tensor
    states: torch.Tensor
    mode: str


AnySample = Union[Sample, FirstStep]
Taking = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def kind_of(module: nn.Module) -> Optional[str]:
    """Return ``linear``, ``conv`` or ``rnn`` for a layer whose products can be sampled, else None."""
    kind = _KINDS.get(type(module))
    layer: Any = module
    if kind == _CONVOLUTION and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return None
    return kind


def is_float32(module: Any, inputs: Any, output: Any) -> bool:  # noqa: ANN401 - any module, what it got and gave
    """Whether what *module* computed are products of float32, and of plain tensors."""
    y = output[0] if isinstance(output, tuple) else output
    weight = module.weight_ih_l0 if kind_of(module) == _RECURRENT else module.weight
    if any(type(one) not in _PLAIN or one.dtype is not torch.float32 for one in (inputs[0], y, weight)):
        return False
    return y.numel() > 0 and traces.autocast_dtype(y.device.type) in (None, "float32")


def likeness(module: nn.Module, x: torch.Tensor) -> Tuple[Any, ...]:
    """Return what products have in common for which a library chooses the same kernel: kind and device, then sizes.

    On a CPU the format depends on the kind alone.
    """
    kind = kind_of(module)
    if x.device.type == "cpu":
        return kind, "cpu"
    sizes = tuple(tuple(parameter.shape) for parameter in module.parameters(recurse=False))
    geometry = [getattr(module, name, None) for name in ("stride", "padding", "dilation", "groups", "output_padding")]
    return kind, x.device.type, type(module).__name__, tuple(x.shape), x.stride(), sizes, *geometry


def sample(module: Any, inputs: Any, output: Any) -> Optional[AnySample]:  # noqa: ANN401
    """Return a sample of what *module* computed of its *inputs* in float32, or None where there is too little of it.

    Nothing of it is seen by autograd, and traces tell it from the program's own work.
    """
    kind, x = kind_of(module), inputs[0]
    with torch.no_grad(), traces.own_mark():
        if kind == _RECURRENT:
            return _first_step(module, x.detach())
        return sample_of(module, x.detach(), output.detach(), take_linear if kind == _LINEAR else take_convolution)


def sample_of(layer: Any, x: torch.Tensor, y: torch.Tensor, take: Taking) -> Optional[Sample]:  # noqa: ANN401
    """Return what *take* takes of the products *y* of *x* in *layer*, or None where its sums are too short."""
    rows, columns, products = take(layer, x, y, layer.weight.detach())
    return None if rows.shape[1] < _LEAST_SUM else Sample(rows.cpu(), columns.cpu(), products.cpu())


def _spread(count: int) -> List[int]:
    """Return up to as many indices below *count* as a sample has, spread evenly."""
    n = min(_SAMPLE, count)
    return [at * count // n for at in range(n)]


def take_linear(
    module: Any,  # noqa: ANN401
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, columns and products of the linear layer *module*, which has a bias or None."""
    columns = _spread(weight.shape[0])
    rows = _unravelled(_spread(math.prod(y.shape[:-1])), y.shape[:-1])
    return x[rows], weight[columns], _without_bias(module, y[rows][:, columns].double(), columns)


def take_convolution(
    module: Any,  # noqa: ANN401 - of one to three dimensions, transposed or not
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return patches, weights and products of the convolution *module*, which has a bias or None."""
    if x.dim() == weight.dim() - 1:
        x, y = x[None], y[None]
    columns = _spread(y.shape[1] // module.groups)  # all of the first group: they have the inputs in common
    inputs = x.shape[1] // module.groups
    weights = weight[:inputs, columns].transpose(0, 1) if module.transposed else weight[columns]
    images, *places = _unravelled(_spread(y.numel() // y.shape[1]), (y.shape[0], *y.shape[2:]))
    at: Any = (images, slice(None), *places)
    products = y[at][:, columns].double()
    return _patches(module, x, inputs, images, places), weights.flatten(1), _without_bias(module, products, columns)


def _patches(
    module: Any,  # noqa: ANN401
    x: torch.Tensor,
    channels: int,
    images: torch.Tensor,
    places: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Return the inputs (m, channels x kernel) of the results at *places* of *images*, on the CPU.

    Zeros are where there is no input. Of *x* the first *channels* count.
    """
    taps = list(itertools.product(*map(range, module.kernel_size)))
    inside = torch.ones(len(images), len(taps), dtype=torch.bool)
    found = []
    for axis, place in enumerate(places):
        ks = torch.tensor([tap[axis] for tap in taps])
        at = _inputs_of(module, axis, place[:, None], ks)  # (m, taps)
        size = x.shape[2 + axis]
        inside &= (at >= 0) & (at < size)
        found.append(at.clamp(0, size - 1)[:, None])
    patches = x[(images[:, None, None], torch.arange(channels)[:, None], *found)].cpu()
    return torch.where(inside[:, None], patches, torch.zeros(())).flatten(1)


def _inputs_of(module: Any, axis: int, at: torch.Tensor, k: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """Return which inputs along *axis* the taps *k* of the kernel take for the results *at*; -1: none."""
    stride: int = module.stride[axis]
    padding: int = module.padding[axis]
    offset: torch.Tensor = k * module.dilation[axis]
    if not module.transposed:
        return at * stride - padding + offset
    before = at + padding - offset
    return torch.where(before % stride == 0, before // stride, torch.tensor(-1))


def _without_bias(module: Any, products: torch.Tensor, columns: List[int]) -> torch.Tensor:  # noqa: ANN401
    return products if module.bias is None else products - module.bias.detach()[columns].double()


def _first_step(module: Any, x: torch.Tensor) -> Optional[FirstStep]:  # noqa: ANN401
    """Run the first layer of a recurrent *module* once more, from zero states."""
    size_bytes = x.numel() // x.shape[-1] * module.hidden_size * x.element_size()
    if x.dim() != 3 or module.proj_size or module.input_size < _LEAST_SUM or size_bytes > _MOST_BYTES:
        return None
    names = ("weight_ih_l0", "weight_hh_l0", *(("bias_ih_l0", "bias_hh_l0") if module.bias else ()))
    weights = [getattr(module, name).detach() for name in names]
    batch = x.shape[0] if module.batch_first else x.shape[1]
    zeros = x.new_zeros(1, batch, module.hidden_size)
    run: Any = getattr(torch._VF, module.mode.lower())  # noqa: SLF001
    state = (zeros, zeros) if module.mode == "LSTM" else zeros
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that do not lie side by side
        y = run(x, state, weights, module.bias, 1, 0.0, module.training, False, module.batch_first)[0]  # noqa: FBT003
    first, inputs = (y[:, 0], x[:, 0]) if module.batch_first else (y[0], x[0])
    rows, columns = _spread(batch), _spread(module.hidden_size)
    of_gates = [
        one.reshape(-1, module.hidden_size, *one.shape[1:])[:, columns].cpu() for one in (weights[0], *weights[2:])
    ]
    biases = torch.stack(of_gates[1:]) if module.bias else torch.zeros(2, *of_gates[0].shape[:2])
    return FirstStep(inputs[rows].cpu(), of_gates[0], biases, first[rows][:, columns].cpu(), module.mode)


def _unravelled(places: Sequence[int], shape: Sequence[int]) -> Tuple[torch.Tensor, ...]:
    """Return the index along each dimension of *shape* of the flat *places*."""
    found: List[torch.Tensor] = []
    rest = torch.tensor(places)
    for size in reversed(shape):
        found.insert(0, rest % size)
        rest = rest // size
    return tuple(found)
