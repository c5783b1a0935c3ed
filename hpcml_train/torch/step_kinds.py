"""What an optimizer's step was made of, as far as it can be told at every step for almost nothing.

That is the autocasts that were entered with gradients, the types of the parameters, and the switches of TF32 once a GPU
is used. Where it is of a new kind, what an earlier step multiplied says nothing of it.
"""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, Set, Tuple

import torch

from hpcml_train.torch.traces import autocast_dtype

_DEVICES = ("cuda", "cpu")
Kind = Tuple[FrozenSet[Tuple[str, str]], FrozenSet[str], Tuple[str, ...]]
_TF32 = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))


class Kinds:
    """The autocasts of this process since the last step, from `watch` on."""

    def __init__(self) -> None:
        self._entered: Set[Tuple[str, str]] = set()
        self._undo: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """Note what autocasts are entered; what compiled code enters inside of itself is not seen.

        Each calls this function of torch's as it is entered. Its class stays as it is: TorchScript reads its source.
        """
        count = getattr(torch, "autocast_increment_nesting", None)
        if count is None:
            return
        entered = self._entered

        def count_and_note() -> int:
            if torch.is_grad_enabled():
                told = ((device, autocast_dtype(device)) for device in _DEVICES)
                entered.update((device, dtype) for device, dtype in told if dtype is not None)
            depth: int = count()
            return depth

        def leave() -> None:
            if torch.autocast_increment_nesting is count_and_note:  # else somebody has built upon it
                torch.autocast_increment_nesting = count

        torch.autocast_increment_nesting = count_and_note
        self._undo = leave

    def end(self) -> None:
        """Watch no more."""
        self._undo()

    def of_step(self, optimizer: Any) -> Kind:  # noqa: ANN401
        """Return of which kind the step of *optimizer* was that has just ended, and begin with the next one."""
        entered = frozenset(self._entered)
        self._entered.clear()
        groups = getattr(optimizer, "param_groups", ())
        dtypes = frozenset([str(group["params"][0].dtype) for group in groups if group["params"]])
        return entered, dtypes, _tf32() if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call, unused-ignore]


def _tf32() -> Tuple[str, ...]:
    """Return the words of torch's switches of float32 on a GPU: of 2.9 and later, where reading them takes 0.3 us."""
    read = getattr(torch._C, "_get_fp32_precision_getter", None)  # noqa: SLF001 - its public form takes forty times as long
    return () if read is None else tuple(read(*one) for one in _TF32)
