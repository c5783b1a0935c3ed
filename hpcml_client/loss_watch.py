"""Ends a training whose loss has stopped being a number, in one line."""

from __future__ import annotations

import math

from hpcml_client.recipe_task import TrainingFailed

# A loss that is no number has spoilt the weights, and stays none; three, so that one freak value is not the end. Where
# the loss is scaled the weights are spared, and the scale is halved instead: after 16 times torch's first one is 1, and
# what still overflows is not the scale's fault.
_NON_FINITE_LIMIT = 3
_NON_FINITE_LIMIT_SCALED = 20


class LossWatch:
    """Ends a training whose loss has stopped being a number."""

    def __init__(self, *, is_scaled: bool) -> None:
        self._limit = _NON_FINITE_LIMIT_SCALED if is_scaled else _NON_FINITE_LIMIT
        self._in_a_row = 0

    def see(self, loss: float, step: int) -> None:
        """Raise `TrainingFailed` where this is one non-finite loss in a row too many."""
        self._in_a_row = 0 if math.isfinite(loss) else self._in_a_row + 1
        if self._in_a_row == self._limit:
            first = step - self._limit + 1
            raise TrainingFailed(
                f"loss is {loss} at step {first} and the {self._limit - 1} after it: "
                "choose a smaller training.learning_rate or a precision of greater range"
            )
