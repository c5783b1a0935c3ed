"""The floating point operations of one optimiser step, counted once on shapes alone.

The model is copied to torch's meta device, where tensors have shapes and no numbers: a step costs no memory there, and
the kernels are those that torch's counter can see. On a CPU it counts 0 for fused attention and LSTMs.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any, Callable, Dict, List, Optional, Set, TypeVar, cast

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hpcml_train.loop import StepCount

Batch = TypeVar("Batch")
_Operation = Any  # torch._ops.OpOverload, which torch does not export
_Formula = Callable[..., int]

_NAMED_AT_MOST = 5
# Layers whose parameters scale, shift or are looked up: no products of matrices, so that nothing is missing.
_WITHOUT_PRODUCTS = (
    nn.modules.batchnorm._BatchNorm,  # noqa: SLF001 - BatchNorm, SyncBatchNorm and InstanceNorm of all dimensions
    nn.LayerNorm,
    nn.GroupNorm,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.PReLU,
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),  # torch 2.4
)
_TORCHS_OWN = ("aten", "prim", "prims", "profiler", "_c10d_functional", "c10d", "c10d_functional")


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
    handles = tally.watch(copied)
    formulas = {operation: tally.counted(formula) for operation, formula in flop_registry.items()}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            stack.enter_context(_Witness(tally.foreign))
            stack.enter_context(FlopCounterMode(display=False, custom_mapping=formulas))
            warnings.simplefilter("ignore")  # what torch remarks about the copy, it remarks again about the model
            result = loss(copied, shapes)
            tally.is_backward = True
            result.backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()


class _Tally:
    """What has been counted so far, and where."""

    def __init__(self) -> None:
        self.flops = 0
        self.foreign: Set[str] = set()  # operations that are not torch's own
        self.is_backward = False
        self._running: List[str] = []  # the modules whose forward pass this is
        self._flops_of: Dict[str, int] = {}  # of the forward pass, by module
        self._suspects: Dict[str, str] = {}  # modules whose parameters ought to be multiplied -> their class

    def counted(self, formula: _Formula) -> _Formula:
        """Return *formula* that also adds to this tally; 0 for what is computed again in the backward pass."""

        def count(*args: object, **kwargs: object) -> int:
            # Gradients are computed with autograd off; only a checkpointed forward pass that is repeated has it on.
            if self.is_backward and torch.is_grad_enabled():
                return 0
            flops = formula(*args, **kwargs)
            self.flops += flops
            for name in () if self.is_backward else self._running:
                self._flops_of[name] = self._flops_of.get(name, 0) + flops
            return flops

        # torch's word for: hand over tensors as they are, *formula* knows what to do with them
        count._get_raw = True  # type: ignore[attr-defined] # noqa: SLF001
        return count

    def watch(self, model: nn.Module) -> List[Any]:
        """Follow which modules run; return the handles that end it."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._begin(name, module)))
            handles.append(module.register_forward_hook(self._end, always_call=True))
        return handles

    def doubt(self) -> Optional[str]:
        """Return what escapes the count, or None."""
        named = ((name or "the model", kind, self._flops_of.get(name)) for name, kind in self._suspects.items())
        silent = [f"{name} ({kind})" for name, kind, flops in named if not flops]
        parts = []
        if self.foreign:
            parts.append(f"operations that torch's counter does not know: {_some(sorted(self.foreign))}")
        if silent:
            parts.append(f"modules with parameters in which no product was seen: {_some(silent)}")
        return "; ".join(parts) or None

    def _begin(self, name: str, module: nn.Module) -> Callable[..., None]:
        own = any(True for _ in module.parameters(recurse=False))

        def begin(*_: object) -> None:
            self._running.append(name)
            if own and not isinstance(module, _WITHOUT_PRODUCTS):
                self._suspects[name] = type(module).__name__

        return begin

    def _end(self, *_: object) -> None:
        self._running.pop()


class _Witness(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Notes operations that are not torch's own: the counter passes over them in silence."""

    supports_higher_order_operators = True  # they are the counter's business

    def __init__(self, foreign: Set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._foreign = foreign

    def __torch_dispatch__(self, func: _Operation, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if isinstance(func, torch._ops.HigherOrderOperator):  # noqa: SLF001 - exported nowhere else
            return NotImplemented
        if func.namespace not in _TORCHS_OWN and func.overloadpacket not in flop_registry:
            self._foreign.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def _copy_to_meta(model: nn.Module) -> nn.Module:
    """Return a copy without numbers; none are copied on the way, so that it fits where the model just does."""
    memo: Dict[int, Any] = {}
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


def _some(names: List[str]) -> str:
    rest = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")
