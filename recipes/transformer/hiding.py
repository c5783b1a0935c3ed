"""How many tokens of a window an encoder has to guess, the same for every framework."""

from __future__ import annotations

from typing import NamedTuple

# BERT guesses 15 % of the tokens; of these 80 % are hidden, 10 % are others than they were, and 10 % stay.
_GUESSED, _HIDDEN, _CHANGED = 0.15, 0.8, 0.1
LOTS = 1 << 20  # drawn once: which tokens are hidden depends on where a window begins, and on nothing else
LOTS_STRIDE = 7919


class Counts(NamedTuple):
    """How many tokens of every window: the same, so that a mean over parts of a batch is that of the whole."""

    guessed: int
    hidden: int
    changed: int


def counts(tokens: int) -> Counts:
    """Return them for windows of *tokens*."""
    guessed = max(1, round(_GUESSED * tokens))
    return Counts(guessed, max(1, round(_HIDDEN * guessed)), round(_CHANGED * guessed))
