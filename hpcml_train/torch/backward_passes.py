"""Steps of a training that no optimizer of torch's makes, by its backward passes: ``w -= rate * w.grad``.

So train programs that update by hand, fastai, whose optimizer is its own, and Keras on torch. A pass whose gradients
are differentiated again is a part of a forward pass, and one inside of another (a checkpoint) a part of that.

Must not import torch: torch is in the middle of being imported.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple

from hpcml_train.torch.uncompiled import never_compiled

_RUN = "_engine_run_backward"  # what `backward` and `grad` of torch.autograd call, from torch 2.2 on
_NOT_COUNTED = 8  # passes: a program that accumulates gradients makes its optimizer's step after some
_CREATE_GRAPH = 2  # the place of that argument behind the outputs


class _Alike(NamedTuple):
    """All parameters of one type, as one: they themselves may be gone after the step."""

    dtype: Any
    elements: int

    def numel(self) -> int:
        """Return how many elements they have, as a tensor does."""
        return self.elements


class BackwardPasses:
    """The passes of this process from `watch` until `end`; *passed* is called after each but the first few.

    To an observer it is the optimizer: `param_groups` has the parameters of the last pass at which *is_looked_at* said
    that somebody wants to know them.
    """

    def __init__(self, passed: Callable[[], None], is_looked_at: Callable[[], bool]) -> None:
        self.param_groups: List[Dict[str, List[_Alike]]] = []
        self._passed, self._is_looked_at = passed, is_looked_at
        self._lock = threading.Lock()
        self._depth = self._count = 0
        self._undo: Callable[[], None] = lambda: None
        self._is_on = False

    def watch(self, autograd: Any) -> None:  # noqa: ANN401 - the module torch.autograd
        """Know of all passes from now on; of none in a torch that runs them otherwise."""
        run = getattr(autograd, _RUN, None)
        if run is None:
            return

        def run_and_tell(outputs: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch calls it
            if not self._is_on:
                return run(outputs, *args, **kwargs)
            with self._lock:
                self._depth += 1
                is_outer = self._depth == 1
            try:
                if is_outer and self._is_looked_at():
                    with contextlib.suppress(Exception):  # never the program's trouble
                        self.param_groups = _groups(outputs)
                gradients = run(outputs, *args, **kwargs)
            finally:
                with self._lock:
                    self._depth -= 1
            is_within = len(args) > _CREATE_GRAPH and args[_CREATE_GRAPH]
            if is_outer and not is_within:
                self._count += 1
                if self._count > _NOT_COUNTED:
                    self._passed()
            return gradients

        def leave() -> None:
            if getattr(autograd, _RUN) is run_and_tell:  # else somebody has built upon it
                setattr(autograd, _RUN, run)

        never_compiled(run_and_tell, with_what_they_call=False)  # a program's own functions are called
        never_compiled(_groups)
        self._is_on = True
        self._undo = leave
        setattr(autograd, _RUN, run_and_tell)

    def end(self) -> None:
        """Watch no more: an optimizer makes steps."""
        self._is_on = False
        self._undo()


def _groups(outputs: Iterable[Any]) -> List[Dict[str, List[_Alike]]]:
    """Return what the pass of *outputs* will give gradients to, a group for each type."""
    elements: Dict[Any, int] = {}
    for leaf in _leaves(outputs):
        elements[leaf.dtype] = elements.get(leaf.dtype, 0) + leaf.numel()
    return [
        {"params": [_Alike(dtype, count)]} for dtype, count in sorted(elements.items(), key=lambda one: str(one[0]))
    ]


def _leaves(outputs: Iterable[Any]) -> Iterator[Any]:
    waiting: List[Any] = [getattr(one, "grad_fn", None) or getattr(one, "node", None) for one in outputs]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):  # what adds to a gradient
            yield node.variable
        for following, _ in getattr(node, "next_functions", ()):
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
