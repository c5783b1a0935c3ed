"""One step of a training, observed: which products of matrices it computes, in which format, phase and layer.

A dispatch mode sees each operation of the thread that opens it, and of the backward passes that begin there. It changes
nothing that the program computes.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode

from hpcml_client.observed import JUDGED
from hpcml_train.torch import operations
from hpcml_train.torch.multiplication import Call
from hpcml_train.torch.observed_float32 import Float32
from hpcml_train.torch.operations import Kind, Operation

UNSEEN_FORWARD = "the forward pass, by kernels that are none of torch's operations"
_MOST_ROWS = 64  # of a window: the others are summed up without their layers
_FORMATS = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    getattr(torch, "float8_e4m3fn", None): "fp8_e4m3",
    getattr(torch, "float8_e5m2", None): "fp8_e5m2",
}
_ATTENTION = re.compile(r"_(scaled_dot_product_)?(flash|efficient|cudnn|fused)_attention")
_RECURRENT = re.compile(r"(mkldnn_rnn_layer|_cudnn_rnn|miopen_rnn)(_backward)?$")
_SCALED = ("_scaled_mm", "_scaled_mm_v2")
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_forward_module.")


class Row(NamedTuple):
    """Where and how something was multiplied."""

    format: str
    phase: str  # forward, backward, optimizer, evaluation
    layer: str | None  # None: outside of modules, or in a backward pass
    emulated: bool = False


class Window(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Counts the FLOPs of products while it is the active mode, and not `is_closed`.

    What it has is worth nothing where it `is_given_up`.

    `flops` is by row. `unknown` names operations that may hide products, with their FLOPs or None.
    """

    current: ClassVar[Window | None] = None  # a process observes one step at a time
    supports_higher_order_operators = True

    def __init__(self, float32: Float32) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.flops: dict[Row, float] = {}
        self.unknown: dict[str, float | None] = {}
        self.autocast: dict[str, str] = {}
        self.is_closed = self.is_given_up = False
        self.is_in_optimizer = False
        self._float32 = float32
        self._has_solver = False
        self._thread = threading.local()
        self._names: dict[int, str] = {}
        self._hooks: list[Any] = []
        self._undo: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Become the active mode of this thread."""
        Window.current = self
        self._hooks = [
            modules.register_module_forward_pre_hook(self._enter_layer),
            modules.register_module_forward_hook(self._leave_layer, always_call=True),
        ]
        self._undo = _watch_triton(lambda name: self._add_unknown(f"{name}: a kernel of Triton that multiplies", None))
        self.__enter__()  # type: ignore[no-untyped-call, unused-ignore]

    def close(self) -> bool:
        """Count no more, and leave the stack of modes; False where another mode lies above this one."""
        self.is_closed = True
        Window.current = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._undo()
        return self.leave()

    def leave(self) -> bool:
        """Leave the stack of modes; False, and nothing is done, where another mode lies above this one."""
        if active_mode() is not self:
            return False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call, unused-ignore]
        return True

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of an event ``precision_observed``, largest first."""
        found = dict(self.flops)
        of_layers = [row for row in found if row.layer is not None]
        for row in sorted(of_layers, key=lambda one: (-found[one], str(one)))[_MOST_ROWS:]:
            rest = row._replace(layer=None)
            found[rest] = found.get(rest, 0.0) + found.pop(row)
        return [
            {**row._asdict(), "flops": flops}
            for row, flops in sorted(found.items(), key=lambda item: (-item[1], str(item[0])))
        ]

    def unknown_rows(self) -> list[dict[str, Any]]:
        """Return what is unknown, for the event: a forward pass too that must have been there and was not seen."""
        unknown = dict(self.unknown)
        if self.flops and all(row.phase == "backward" for row in self.flops) and not self._has_solver:
            unknown[UNSEEN_FORWARD] = None
        return [{"what": what, "flops": flops} for what, flops in unknown.items()]

    def __torch_dispatch__(self, func: Operation, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if any(kind.__name__ == "FakeTensor" for kind in types):
            return func(*args, **kwargs)  # shapes alone, as FSDP's tensors ask for them: nothing is computed
        if any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # a subclass computes by operations of plain tensors, which are seen then
        if self.is_closed or self._is_paused:
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.HigherOrderOperator):  # noqa: SLF001
            self._add_unknown(str(func), None)
            return func(*args, **kwargs)
        kind = operations.kind_of(func)
        if kind is Kind.COMPOSITE and torch.is_inference_mode_enabled():  # which hands it over whole
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if kind is not Kind.OTHER:
            try:
                self._count(func, kind, args, kwargs)
            except (
                AttributeError,
                IndexError,
                RuntimeError,
                TypeError,
                ValueError,
            ):  # factors that are no plain tensors
                self._add_unknown(str(func.overloadpacket), None)
        return result

    def add(self, form: str, flops: float, *, is_emulated: bool = False) -> None:
        """Count *flops* of products in the format *form*, where the program is now."""
        phase = self._phase()
        stack = self._stack
        layer = stack[-1][1] if stack and phase != "optimizer" else None
        row = Row(form, phase, layer, is_emulated)
        self.flops[row] = self.flops.get(row, 0.0) + flops

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing that this thread computes in the block."""
        self._thread.is_paused = True
        try:
            yield
        finally:
            self._thread.is_paused = False

    @property
    def _is_paused(self) -> bool:
        return getattr(self._thread, "is_paused", False)

    def _count(self, func: Operation, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        name = operations.name_of(func).rstrip("_")
        if kind is Kind.SOLVER:
            self._has_solver = True
            return
        found = _multiplied(func, kind, name, args, kwargs)
        if found is None:
            has_two_factors = sum(x.is_floating_point() for x in _tensors(args)) > 1
            if kind is not Kind.UNKNOWN or has_two_factors:
                self._add_unknown(str(func.overloadpacket).replace(".", "::", 1), None)
            return
        of, factors, flops = found
        device = factors[0].device.type
        if device == "meta":
            return
        form: str | None = "x".join(sorted({_FORMATS.get(x.dtype) or str(x.dtype).rpartition(".")[2] for x in factors}))
        if form == "fp32":
            form = self._float32.format_of(of, device)
        if form is not None:
            self.add(form, flops)
            return
        what = f"float32 with oneDNN's {of} switch open" if device == "cpu" else f"float32 on {device}"
        self._add_unknown(what, flops)

    def _add_unknown(self, what: str, flops: float | None) -> None:
        if self._phase() in JUDGED:
            before = self.unknown.get(what, 0.0)
            self.unknown[what] = None if flops is None or before is None else before + flops

    def _phase(self) -> str:
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001 - there is no other way
            return "backward"
        if torch.is_grad_enabled():  # the closure of an optimizer, too
            return "forward"
        return "optimizer" if self.is_in_optimizer else "evaluation"

    @property
    def _stack(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = self._thread.__dict__.setdefault("stack", [])
        return found

    def _enter_layer(self, module: torch.nn.Module, _: object) -> None:
        if torch._C._get_tracing_state() is not None:  # noqa: SLF001 - a script is made, which must not hold this mode
            self.is_given_up = True
            self.close()
        stack = self._stack
        if not stack:
            for device in ("cpu", "cuda"):
                if (dtype := autocast_dtype(device)) is not None:
                    self.autocast[device] = dtype
        if id(module) not in self._names:
            for name, part in module.named_modules():
                plain = name
                for wrapper in _WRAPPERS:
                    plain = plain.replace(wrapper, "")
                self._names.setdefault(id(part), plain or type(part).__name__)
        stack.append((id(module), self._names[id(module)]))

    def _leave_layer(self, module: torch.nn.Module, _: object, __: object) -> None:
        stack = self._stack
        while stack and stack.pop()[0] != id(module):
            pass  # an exception has passed by inner ones


@contextlib.contextmanager
def counted_as(name: str, flops: Callable[[], float], *, is_emulated: bool) -> Iterator[None]:
    """Let what the block computes count as one product of *flops* in the arithmetic *name*, whatever it is made of."""
    window = Window.current
    if window is None:
        yield
        return
    window.add(name, flops(), is_emulated=is_emulated)
    with window.paused():
        yield


def active_mode() -> TorchDispatchMode | None:
    """Return the innermost dispatch mode of this thread, if there is one."""
    from torch.utils import _python_dispatch

    mode: TorchDispatchMode | None = _python_dispatch._get_current_dispatch_mode()  # noqa: SLF001
    return mode


def autocast_dtype(device: str) -> str | None:
    """Return the dtype of the autocast that this thread is in on *device* (``cpu`` or ``cuda``), or None."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4 and later
        return str(torch.get_autocast_dtype(device)).rpartition(".")[2] if torch.is_autocast_enabled(device) else None
    is_on = torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()
    dtype = torch.get_autocast_cpu_dtype() if device == "cpu" else torch.get_autocast_gpu_dtype()
    return str(dtype).rpartition(".")[2] if is_on else None


def _watch_triton(tell: Callable[[str], None]) -> Callable[[], None]:
    """Have *tell* called with the name of each kernel with products that a program launches; return what ends this.

    Triton computes float32 in TF32 unless it is told otherwise, whatever torch's switches say
    (`triton.language.dot`, ``input_precision``), and no mode of torch's sees it.
    """
    kind: Any = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    run = getattr(kind, "run", None)
    if run is None:
        return lambda: None

    def run_and_tell(function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton calls it
        kernel = run(function, *args, **kwargs)
        with contextlib.suppress(Exception):  # never the program's trouble
            if "tt.dot" in str(kernel.asm["ttir"]):
                tell(str(getattr(function, "__name__", function)))
        return kernel

    kind.run = run_and_tell

    def undo() -> None:
        if kind.run is run_and_tell:  # else somebody has built upon it
            kind.run = run

    return undo


_Multiplied = tuple[str, Sequence[torch.Tensor], float]  # the kind of layer, the factors, the FLOPs


def _multiplied(
    func: Operation,
    kind: Kind,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> _Multiplied | None:
    """Return what an operation has multiplied, or None where nobody can tell."""
    if kind is Kind.PRODUCT:
        call = Call.of(func, args, kwargs)
        return "conv" if "conv" in name else "linear", call.factors, call.flops()
    if _ATTENTION.match(name):
        # Two products forward, five backward, each of all queries and keys; a backward one begins with the gradient.
        is_backward = "backward" in name
        query, key, value = args[1:4] if is_backward else args[:3]
        if query.dim() != 4:
            return None
        return "attention", (query, key, value), 2.0 * (5 if is_backward else 2) * query.numel() * key.shape[-2]
    if _RECURRENT.match(name):
        # Each weight times the input of each step, and twice that backward.
        steps, weights = args[0], args[1] if isinstance(args[1], (list, tuple)) else args[1:3]
        of_one = sum(weight.numel() for weight in weights if weight.dim() > 1)
        times = 2.0 if name.endswith("_backward") else 1.0
        return "rnn", (steps,), 2.0 * math.prod(steps.shape[:-1]) * of_one * times
    if name in _SCALED:
        first, second = args[:2]
        return "linear", (first, second), 2.0 * first.numel() * second.shape[-1]
    return None


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
