"""Tensor-core numerics on any device: the inputs of every product rounded, the sums kept in FP32. Numbers, never speed.

Works below autograd, so that the products of the backward pass are rounded too, as the hardware does. Exact: the
rounding of inputs, the exponent range, which operations are rounded. Not modelled: the order and the width of the
hardware's accumulator. Fused products, and operations of other libraries, are refused by
name (`hpcml_train.torch.operations`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from hpcml_train.torch import multiplication, operations
from hpcml_train.torch.gradients import ForwardTensors, is_backward, is_differentiable
from hpcml_train.torch.multiplication import Call
from hpcml_train.torch.operations import Kind, Operation
from hpcml_train.torch.schemes import Scheme, names, scheme
from hpcml_train.torch.window import counted_as

HALF = "half"  # no rounding of our own: 16-bit tensors in, FP32 arithmetic, 16-bit tensors out
_SIXTEEN_BITS = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_HALF_DTYPES = tuple(_SIXTEEN_BITS)


class Pass(NamedTuple):
    """The part of a step that a block computes, and what the blocks before it have found out."""

    forward: ForwardTensors
    is_backward: bool  # autograd's pass alone, and nothing that is differentiated later


class Emulation(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Rounds what feeds the multipliers while it is active.

    ``calls`` counts the products that were rounded, ``unrounded`` those that passed as they are: of other types than
    the emulated one, and inside of solvers and transforms.
    """

    is_emulated = True

    def __init__(self, name: str, *, rounding: str | None = None, of: Pass | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        if name != HALF and name not in names():
            raise ValueError(f"format={name!r}: choose one of {', '.join([*names(), HALF])}")
        self.calls: dict[str, int] = {}
        self.unrounded: dict[str, int] = {}
        self._name = name
        of = of or Pass(ForwardTensors(), is_backward=False)
        self._scheme: Scheme | None = None if name == HALF else scheme(name, rounding)
        self._tells_gradients = self._scheme is not None and self._scheme.tells_gradients
        self._forward, self._only_backward = of.forward, of.is_backward

    def __torch_dispatch__(self, func: Operation, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs, kind = kwargs or {}, operations.kind_of(func)
        if kind is Kind.PRODUCT:
            return self._multiply(Call.of(func, args, kwargs))
        if kind is Kind.COMPOSITE:
            with self:  # inference mode hands over operations whole (aten.linear), with their products inside
                return func.decompose(*args, **kwargs)
        if kind in (Kind.FUSED, Kind.UNKNOWN):
            raise NotImplementedError(self._refusal(func, kind))
        if kind is Kind.SOLVER:
            _count(self.unrounded, str(func.overloadpacket))
        return self._pass_on(func, args, kwargs)

    def _pass_on(self, func: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        result = func(*args, **kwargs)
        if self._tells_gradients and is_backward():
            self._forward.follow((args, kwargs), result)
        return result

    def _multiply(self, call: Call) -> Any:  # noqa: ANN401
        packet = str(call.func.overloadpacket)
        wanted = _HALF_DTYPES if self._scheme is None else (torch.float32,)
        if other := next((x.dtype for x in call.factors if x.dtype not in wanted), None):
            _count(self.unrounded, f"{packet} of {str(other).rpartition('.')[2]}")
            return self._pass_on(call.func, call.args, call.kwargs)
        _count(self.calls, packet)
        name = self._name if self._scheme is not None else _SIXTEEN_BITS[call.factors[0].dtype]
        with counted_as(name, call.flops, is_emulated=self.is_emulated):
            if self._scheme is None:
                return multiplication.multiply_in_fp32(call)
            multiplication.refuse_layouts(call)
            return self._compute(call, self._scheme)

    def _compute(self, call: Call, rounding: Scheme) -> Any:  # noqa: ANN401
        if multiplication.is_convolution_backward(call):
            return multiplication.differentiate_convolution(call, rounding)
        return multiplication.multiply(call, rounding, self._which_are_gradients(call))

    def _which_are_gradients(self, call: Call) -> list[bool]:
        if not self._tells_gradients:
            return [False, False]
        if not is_backward():
            if is_differentiable() and not self._only_backward:
                raise NotImplementedError(
                    f"aten.{call.name}: gradients are differentiated, or a checkpoint is computed again, inside of the "
                    f"forward pass: {self._name} cannot tell which factors are gradients"
                )
            self._forward.add(call.factors)
            return [False, False]
        found = [not self._forward.has(x) for x in call.factors]
        if all(found):
            raise NotImplementedError(
                f"aten.{call.name}: neither factor was one of the forward pass: {self._name} cannot tell which is a "
                "gradient"
            )
        return found

    def _refusal(self, func: Operation, kind: Kind) -> str:
        if kind is Kind.FUSED:
            return f"{func.overloadpacket} is a fused product: its inputs cannot be rounded here"
        return f"{func.overloadpacket} is not known to the emulation of {self._name}: it is another library's"


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


@contextlib.contextmanager
def emulate(
    name: str,
    *,
    rounding: str | None = None,
    has_rnn: bool = False,
    must_see: bool = True,
    of: Pass | None = None,
) -> Iterator[Emulation]:
    """Emulate the arithmetic *name* in the block; raise at its end where nothing was rounded, unless not *must_see*.

    Attention is computed by plain products meanwhile, and with *has_rnn* recurrent layers too, at the price of every
    other kernel of oneDNN and cuDNN.
    """
    mode = Emulation(name, rounding=rounding, of=of)
    with plain_kernels(has_rnn=has_rnn), mode:
        yield mode
    if must_see and not mode.calls:
        passed = f", but for {', '.join(mode.unrounded)}, which it passes on" if mode.unrounded else ""
        raise RuntimeError(f"no matrix product was rounded: the emulation did not see the model{passed}")


@contextlib.contextmanager
def plain_kernels(*, has_rnn: bool) -> Iterator[None]:
    """Let attention be computed by plain products in the block, and with *has_rnn* recurrent layers too."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_without_fused_layers())
        if has_rnn:
            stack.enter_context(without_mkldnn())
            stack.enter_context(_without_cudnn())
        yield


@contextlib.contextmanager
def _without_fused_layers() -> Iterator[None]:
    """Let attention and encoders that are evaluated be computed in parts in the block, as while they are trained."""
    mha: Any = getattr(torch.backends, "mha", None)  # its switch came with torch 2.2
    before = mha is not None and hasattr(mha, "set_fastpath_enabled") and mha.get_fastpath_enabled()
    if before:
        mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        if before:
            mha.set_fastpath_enabled(True)


@contextlib.contextmanager
def _without_cudnn() -> Iterator[None]:
    """Let torch compute by kernels of its own in the block, and none by cuDNN's."""
    # not torch.backends.cudnn.flags: it sets other switches too
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """Let torch compute by kernels of its own in the block, and none by oneDNN's."""
    # not torch.backends.mkldnn.flags: in torch 2.13 it also resets the FP32 switches of oneDNN
    mkldnn: Any = torch.backends.mkldnn
    before = mkldnn.enabled
    mkldnn.enabled = False
    try:
        yield
    finally:
        mkldnn.enabled = before
