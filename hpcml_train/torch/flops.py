"""The floating point operations of one optimiser step, counted once on shapes alone.

The model is copied to torch's meta device, where tensors have shapes and no numbers: a step costs no memory there, and
the kernels are those that torch's counter can see. On a CPU it counts 0 for fused attention and LSTMs.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hpcml_train.loop import StepCount
from hpcml_train.torch.operations import Kind, Operation, kind_of

Batch = TypeVar("Batch")
_Formula = Callable[..., int]

_NAMED_AT_MOST = 5
_UNSEEN = (Kind.PRODUCT, Kind.FUSED, Kind.UNKNOWN)  # where torch's counter has no formula for it


def count_step(model: nn.Module, batch: Batch, loss: Callable[[nn.Module, Batch], torch.Tensor]) -> StepCount:
    """Count ``loss(model, batch)`` and its backward pass; *model* itself, *batch* and random numbers stay as they are.

    *batch* is a tensor or tuples, lists and dictionaries of them. What activation checkpointing computes twice counts
    once, causal attention in full; autocast would change nothing and is left out. A model that cannot run on shapes
    alone has no count, and the doubt says why. Call it outside of the timed loop, before ``torch.compile`` and DDP.
    """
    if _get_current_dispatch_mode() is not None:
        raise RuntimeError("count_step was called inside an emulation, whose own operations it would count")
    tally = _Tally()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            _run_on_meta(model, batch, loss, tally)
    except Exception as error:  # noqa: BLE001 - whatever a model does where there are no numbers is its own affair
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return StepCount(None, f"not counted: the model cannot run on the meta device: {reason}")
    return StepCount(float(tally.flops), tally.doubt())


def _run_on_meta(
    model: nn.Module, batch: Batch, loss: Callable[[nn.Module, Batch], torch.Tensor], tally: _Tally
) -> None:
    copied, shapes = _copy_to_meta(model), cast("Batch", _to_meta(batch))
    copied.train()
    formulas = {operation: tally.counted(formula) for operation, formula in flop_registry.items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(_Witness(tally.unseen))
        stack.enter_context(FlopCounterMode(display=False, custom_mapping=formulas))
        warnings.simplefilter("ignore")  # what torch remarks about the copy, it remarks again about the model
        result = loss(copied, shapes)
        tally.is_backward = True
        result.backward()  # type: ignore[no-untyped-call]


class _Tally:
    """What has been counted so far, and what could not be."""

    def __init__(self) -> None:
        self.flops = 0
        self.unseen: set[str] = set()  # operations with products that torch's counter has no formula for
        self.is_backward = False

    def counted(self, formula: _Formula) -> _Formula:
        """Return *formula* that also adds to this tally; 0 for what is computed again in the backward pass."""

        def count(*args: object, **kwargs: object) -> int:
            # Gradients are computed with autograd off; only a checkpointed forward pass that is repeated has it on.
            if self.is_backward and torch.is_grad_enabled():
                return 0
            flops = formula(*args, **kwargs)
            self.flops += flops
            return flops

        # torch's word for: hand over tensors as they are, *formula* knows what to do with them
        count._get_raw = True  # type: ignore[attr-defined] # noqa: SLF001
        return count

    def doubt(self) -> str | None:
        """Return what escapes the count, or None."""
        names = sorted(self.unseen)
        if not names:
            return None
        more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
        return f"operations that torch's counter does not know: {', '.join(names[:_NAMED_AT_MOST])}{more}"


class _Witness(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Notes operations that may multiply, and that the counter passes over in silence."""

    supports_higher_order_operators = True  # they are the counter's business

    def __init__(self, unseen: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._unseen = unseen

    def __torch_dispatch__(self, func: Operation, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if isinstance(func, torch._ops.HigherOrderOperator):  # noqa: SLF001 - exported nowhere else
            return NotImplemented
        if func.overloadpacket not in flop_registry and kind_of(func) in _UNSEEN:
            self._unseen.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def _copy_to_meta(model: nn.Module) -> nn.Module:
    """Return a copy without numbers; none are copied on the way, so that it fits where the model just does."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        # The third: tensors kept as plain attributes, which `Module.to` leaves where they are.
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                memo[id(tensor)] = _without_numbers(tensor)
    return copy.deepcopy(model, memo)


def _without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty.requires_grad_(tensor.requires_grad)


def _to_meta(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return _without_numbers(value)
    if isinstance(value, dict):
        return {key: _to_meta(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_to_meta(part) for part in value]
        make: Callable[..., object] = type(value)
        return make(*parts) if hasattr(value, "_fields") else make(parts)  # the first: a NamedTuple
    return value
