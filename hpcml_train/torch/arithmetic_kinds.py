"""What an optimizer's step was made of, as far as it can be told at every step for almost nothing.

That is the autocasts that were entered with gradients, and the types of the parameters. Where it is of a new kind, what
an earlier step multiplied says nothing of it.
"""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, Set, Tuple

import torch

Kind = Tuple[FrozenSet[Tuple[str, str]], FrozenSet[str]]


class Kinds:
    """The autocasts of this process since the last step, from `watch` on."""

    def __init__(self) -> None:
        self._entered: Set[Tuple[str, str]] = set()
        self._undo: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """Note what autocasts are entered; what compiled code enters inside of itself is not seen."""
        autocast = torch.autocast
        enter = getattr(autocast, "__enter__", None)
        if enter is None:
            return
        entered = self._entered

        def enter_and_note(self: Any) -> Any:  # noqa: ANN401 - as torch has it
            if torch.is_grad_enabled() and getattr(self, "_enabled", False):
                entered.add((str(getattr(self, "device", "")), str(getattr(self, "fast_dtype", ""))))
            return enter(self)

        def leave() -> None:
            if autocast.__enter__ is enter_and_note:  # else somebody has built upon it
                autocast.__enter__ = enter  # type: ignore[method-assign]

        autocast.__enter__ = enter_and_note  # type: ignore[method-assign]
        self._undo = leave

    def end(self) -> None:
        """Watch no more."""
        self._undo()

    def of_step(self, optimizer: Any) -> Kind:  # noqa: ANN401
        """Return of which kind the step of *optimizer* was that has just ended, and begin with the next one."""
        entered = frozenset(self._entered)
        self._entered.clear()
        groups = getattr(optimizer, "param_groups", ())
        return entered, frozenset(str(group["params"][0].dtype) for group in groups if group["params"])
