"""Parts of real products, taken out of a layer's forward pass: a few rows and columns, and what came of them.

`hpcml_train.torch.fingerprint` tells by their numbers in which format they were computed. No layer is computed again
but recurrent ones, whose products nobody sees: their first layer runs once more, from zero states.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import nn
from torch.utils import _python_dispatch

from hpcml_train.torch import traces

_SAMPLE = 12  # rows, and columns
_LEAST_SUM = 16  # numbers in a sum: below, too few digits differ
_LONGEST_SUM = 1 << 18  # numbers: above, the errors of FP32 sums are as large as those of other formats
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
    """Whether what *module* computed are products of float32, and of plain tensors with numbers in them."""
    y = output[0] if isinstance(output, tuple) else output
    if not inputs or any(not _is_plain(one) for one in (inputs[0], y, _weight(module))):
        return False
    return y.numel() > 0 and traces.autocast_dtype(y.device.type) in (None, "float32")


def is_in_the_open() -> bool:
    """Whether this thread computes numbers, and is not just transforming or recording what others will."""
    functorch: Any = getattr(torch._C, "_functorch", None)  # noqa: SLF001 - as torch 2.0 and later have it
    is_transformed = functorch is not None and functorch.peek_interpreter_stack() is not None  # vmap, grad
    is_recorded = torch._C._get_tracing_state() is not None  # noqa: SLF001 - torch.jit.trace, torch.onnx
    return not is_transformed and not is_recorded and _python_dispatch._get_current_dispatch_mode() is None  # noqa: SLF001


def likeness(module: nn.Module, x: torch.Tensor, *, by_size_on_cpu: bool) -> Tuple[Any, ...]:
    """Return what products have in common for which a library chooses the same kernel: kind and device, then sizes.

    On a CPU whose switches are closed there is no choice, and the kind alone counts.
    """
    kind = kind_of(module)
    if x.device.type == "cpu" and not by_size_on_cpu:
        return kind, "cpu"
    weight = tuple(_weight(module).shape)
    geometry = [getattr(module, name, None) for name in ("stride", "padding", "dilation", "groups", "output_padding")]
    of_state = [getattr(module, name, None) for name in ("mode", "num_layers", "bidirectional", "batch_first")]
    has_bias = getattr(module, "bias", None) is not None
    of_input = (tuple(x.shape), x.stride())
    return kind, str(x.device), type(module).__name__, *of_input, weight, has_bias, *geometry, *of_state


def sample(module: Any, inputs: Any, output: Any) -> Optional[AnySample]:  # noqa: ANN401
    """Return a sample of what *module* computed of its *inputs* in float32, or None where numbers would tell nothing.

    Nothing of it is seen by autograd, and traces tell it from the program's own work.
    """
    kind, x = kind_of(module), inputs[0]
    if not _has_fit_sums(module):
        return None
    with torch.no_grad(), traces.own_mark():
        if kind == _RECURRENT:
            return _first_step(module, x.detach())
        return sample_of(module, x.detach(), output.detach(), take_linear if kind == _LINEAR else take_convolution)


def _is_plain(one: Any) -> bool:  # noqa: ANN401
    return type(one) in _PLAIN and one.dtype is torch.float32 and one.layout is torch.strided and not one.is_nested


def _weight(module: Any) -> Any:  # noqa: ANN401
    return module.weight_ih_l0 if kind_of(module) == _RECURRENT else module.weight


def sample_of(layer: Any, x: torch.Tensor, y: torch.Tensor, take: Taking) -> Optional[Sample]:  # noqa: ANN401
    """Return what *take* takes of the products *y* of *x* in *layer*, or None where numbers would tell nothing."""
    if not _has_fit_sums(layer):
        return None
    rows, columns, products = take(layer, x, y, layer.weight.detach())
    return Sample(rows.cpu(), columns.cpu(), products.cpu())


def _has_fit_sums(layer: Any) -> bool:  # noqa: ANN401
    """Whether the products of *layer* are sums of so many numbers that they tell a format."""
    if isinstance(layer, nn.RNNBase):
        return _LEAST_SUM <= int(layer.input_size) <= _LONGEST_SUM
    inputs, *kernel = layer.weight.shape[1:]
    if getattr(layer, "transposed", False):
        inputs = layer.weight.shape[0] // layer.groups
    return _LEAST_SUM <= int(inputs * math.prod(kernel)) <= _LONGEST_SUM


def take_linear(
    module: Any,  # noqa: ANN401
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, columns and products of the linear layer *module*, which has a bias or None."""
    if x.dim() == 1:
        x, y = x[None], y[None]
    columns, places = _spread(weight.shape[0], x.device), _places(y.shape[:-1], x.device)
    products = y[(*(one[:, None] for one in places), columns)]
    return x[tuple(places)], weight[columns], _without_bias(module, products, columns)


def take_convolution(
    module: Any,  # noqa: ANN401 - of one to three dimensions, transposed or not
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return patches, weights and products of the convolution *module*, which has a bias or None."""
    if x.dim() == weight.dim() - 1:
        x, y = x[None], y[None]
    columns = _spread(y.shape[1] // module.groups, x.device)  # all of the first group: they have the inputs in common
    inputs = x.shape[1] // module.groups
    weights = weight[:inputs, columns].transpose(0, 1) if module.transposed else weight[columns]
    images, *place = _places((y.shape[0], *y.shape[2:]), x.device)
    products = y[(images[:, None], columns, *(one[:, None] for one in place))]
    patches = _patches(module, x[:, :inputs], images, place)
    return patches.flatten(1), weights.flatten(1), _without_bias(module, products, columns)


def _patches(module: Any, x: torch.Tensor, images: torch.Tensor, place: Sequence[torch.Tensor]) -> torch.Tensor:  # noqa: ANN401
    """Return the inputs (places, channels, *kernel) of the results at *place* in *images*; 0: there is none."""
    others = [1] * len(place)
    is_there = torch.ones(1, dtype=torch.bool, device=x.device)
    indices = [images.reshape(-1, 1, *others), torch.arange(x.shape[1], device=x.device).reshape(1, -1, *others)]
    for axis, at in enumerate(place):
        shape = (len(at), 1, *others[:axis], -1, *others[axis + 1 :])
        inputs, size = _inputs_of(module, axis, at[:, None]).reshape(shape), x.shape[2 + axis]
        is_there = is_there & (inputs >= 0) & (inputs < size)
        indices.append(inputs.clamp(0, size - 1))
    found = x[tuple(indices)]
    return torch.where(is_there, found, torch.zeros_like(found))


def _inputs_of(module: Any, axis: int, at: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """Return which input along *axis* each tap of the kernel takes for the results *at*: (places, taps); -1: none."""
    stride, padding = int(module.stride[axis]), int(module.padding[axis])
    offsets = torch.arange(module.kernel_size[axis], device=at.device) * int(module.dilation[axis])
    if not module.transposed:
        return at * stride - padding + offsets
    reached = at + padding - offsets
    return torch.where(reached % stride == 0, reached.div(stride, rounding_mode="floor"), torch.full_like(reached, -1))


def _without_bias(module: Any, products: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    products = products.double()
    return products if module.bias is None else products - module.bias.detach()[columns].double()


def _first_step(module: Any, x: torch.Tensor) -> Optional[FirstStep]:  # noqa: ANN401
    """Run the first layer of a recurrent *module* once more, from zero states; on a CPU its first step is enough."""
    if x.dim() != 3 or module.proj_size:
        return None
    if not x.is_cuda:
        x = x.narrow(1 if module.batch_first else 0, 0, 1)
    if x.shape[:-1].numel() * module.hidden_size * x.element_size() > _MOST_BYTES:
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
    rows, columns = _spread(batch, x.device), _spread(module.hidden_size, x.device)
    of_gates = [
        one.reshape(-1, module.hidden_size, *one.shape[1:])[:, columns].cpu() for one in (weights[0], *weights[2:])
    ]
    biases = torch.stack(of_gates[1:]) if module.bias else of_gates[0].new_zeros(2, *of_gates[0].shape[:2])
    return FirstStep(inputs[rows].cpu(), of_gates[0], biases, first[rows][:, columns].cpu(), module.mode)


def _spread(count: int, device: torch.device) -> torch.Tensor:
    """Return up to as many indices below *count* as a sample has, spread evenly."""
    n = min(_SAMPLE, count)
    return (torch.arange(n, device=device) * count).div(n, rounding_mode="floor")


def _places(shape: Sequence[int], device: torch.device) -> List[torch.Tensor]:
    """Return the indices, by dimension, of up to as many places of a tensor of *shape*, spread evenly."""
    at = _spread(math.prod(shape), device)
    found: List[torch.Tensor] = []
    for size in reversed(shape):
        found.insert(0, at % size)
        at = at.div(size, rounding_mode="floor")
    return found
