"""The layers of a model in a trace: ranges around the forward pass of each module, while a window is open."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.nn.modules import module as modules

from hpcml_train.torch import nested, traces
from hpcml_train.torch.float32 import Leave
from hpcml_train.torch.uncompiled import never_compiled

_MOST_BYTES_EVALUATED = 1 << 22  # of a trace, after which no evaluation is traced any more: it is no part of a step
_SAID_BY_TORCH = re.compile(rb"execution_(?:trace|graph)_observer\.cpp")
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_forward_module.")


class LayerHooks:
    """Hooks of all modules, of one window whose trace is *path*; with autocast's state.

    Without layers nothing is hooked. `troubles` says what makes the window incomplete. A program may evaluate its model
    between two steps, in thousands of forward passes: what goes on without gradients is left out of a long trace.
    """

    def __init__(
        self, path: str, *, leave: Leave, give_up: Callable[[], None], with_layers: bool, most_bytes: int
    ) -> None:
        self.path = path
        self.leave = leave
        self.autocast: Dict[str, str] = {}
        self.troubles: List[str] = []
        self._give_up = give_up  # the window, at once
        self._with_layers, self._most_bytes = with_layers, most_bytes
        self._names: Dict[int, str] = {}
        self._thread = threading.local()
        self._handles: List[Any] = []
        self._undo: Callable[[], None] = lambda: None
        self._is_open = True
        self._paused_at: Optional[float] = None  # since when nothing is traced, in an evaluation
        self.untraced_s = 0.0  # which were the program's own time alone

    def install(self) -> None:
        """Hook all modules."""
        self._undo = nested.before_an_encoder_makes_one(self._give_up)
        if self._with_layers:
            never_compiled(self._before, self._after)
            self._handles.append(modules.register_module_forward_pre_hook(self._before))
            after = modules.register_module_forward_hook
            # torch 2.0 has no word for it: there a layer that raises leaves its range when one around it ends
            always = {"always_call": True} if "always_call" in inspect.signature(after).parameters else {}
            self._handles.append(after(self._after, **always))

    def remove(self) -> None:
        """Remove the hooks. What of the layers is still computed is no part of the window."""
        self._is_open = False
        self._undo()
        for handle in self._handles:
            handle.remove()
        self._note_autocast()
        self.leave.look()
        if self._paused_at is not None:
            self._go_on(self._paused_at)
            self.troubles.append("what was computed after an evaluation, outside of modules")

    @property
    def _stack(self) -> List[Tuple[int, Any]]:
        found: List[Tuple[int, Any]] = self._thread.__dict__.setdefault("stack", [])
        return found

    def _before(self, module: torch.nn.Module, inputs: Any) -> None:  # noqa: ANN401
        with contextlib.suppress(Exception):  # a hook's error would be the program's
            if self._is_open and nested.is_among(inputs):
                self._give_up()
            if not self._is_open:
                return
            stack = self._stack
            if not stack:
                self._begin_of(module)
            mark = traces.layer_mark(self._names.get(id(module)) or type(module).__name__)
            mark.__enter__()
            stack.append((id(module), mark))

    def _after(self, module: torch.nn.Module, _: Any, __: Any) -> None:  # noqa: ANN401
        with contextlib.suppress(Exception):
            stack = self._stack
            while any(at == id(module) for at, _ in stack):  # an exception may have passed by inner ones
                at, mark = stack.pop()
                mark.__exit__(None, None, None)
                if at == id(module):
                    break

    def _begin_of(self, module: torch.nn.Module) -> None:
        self._note_autocast()
        if torch.is_grad_enabled():
            self.leave.look()
        if id(module) not in self._names:
            for name, part in module.named_modules():
                plain = name
                for wrapper in _WRAPPERS:
                    plain = plain.replace(wrapper, "")
                self._names.setdefault(id(part), plain or type(part).__name__)
        if not self.troubles:
            self._keep_short()

    def _keep_short(self) -> None:
        """Stop a trace that would fill the disk; leave evaluations out of one that is long."""
        is_evaluated = not torch.is_grad_enabled()
        if self._paused_at is not None and not is_evaluated:
            with quiet():
                traces.tracing("enable")()
            self._go_on(self._paused_at)
        if self._paused_at is not None:
            return
        size_bytes = os.path.getsize(self.path)
        if size_bytes > self._most_bytes:
            self.troubles.append(f"a window whose trace has more than {self._most_bytes >> 20} MiB")
            with quiet():
                traces.tracing("disable")()
        elif is_evaluated and size_bytes > _MOST_BYTES_EVALUATED:
            with quiet():
                traces.tracing("disable")()
            self._paused_at = time.perf_counter()

    def _go_on(self, paused_at: float) -> None:
        self.untraced_s += time.perf_counter() - paused_at
        self._paused_at = None

    def _note_autocast(self) -> None:
        for device in ("cpu", "cuda"):
            if (dtype := traces.autocast_dtype(device)) is not None:
                self.autocast[device] = dtype


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch says of its trace from the program's standard error, and nothing else."""
    try:
        kept = os.dup(2)
    except OSError:  # closed
        yield
        return
    with tempfile.TemporaryFile() as said:
        sys.stderr.flush()
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        for line in said:
            if _SAID_BY_TORCH.search(line) is None:
                os.write(2, line)
