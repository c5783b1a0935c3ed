"""Text that a trained network of bytes goes on with, one byte after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hpcml_train.data.texts import BYTES
from hpcml_train.errors import RecipeError

Array = Any  # numpy.ndarray, which old NumPys cannot say more of


def check_prompt(prompt: str, count: int, *, reads_text: bool) -> None:
    """Raise `RecipeError` where *count* bytes are to be said, and there is no text or nothing to continue."""
    if count and not (reads_text and prompt):
        raise RecipeError(
            f"model.options.generate={count} continues a text: choose data=pydoc or data=text, and give "
            "model.options.prompt"
        )


class Asked(Protocol):
    """Which text is to be continued, and how: options of a model."""

    @property
    def prompt(self) -> str:
        """The text."""

    @property
    def generate(self) -> int:
        """The number of bytes that are to follow; 0: none."""

    @property
    def context(self) -> int:
        """The number of bytes that the network looks at."""

    @property
    def temperature(self) -> float:
        """By what log-likelihoods are divided before a byte is drawn; 0: the likeliest is taken."""


def continue_text(next_byte: Callable[[Array], Array], asked: Asked, *, seed: int) -> dict[str, dict[str, object]]:
    """Return the event ``generated`` with its details: the prompt and the bytes that follow it, as text.

    *next_byte* takes the last bytes, at most as many as the context has (1 x n, int64), and returns a number for each
    byte that may be next (a log-likelihood, up to a constant); what it returns beyond the 256 bytes is left out. *seed*
    is that of the draws. What is no UTF-8 is shown as U+FFFD.
    Where the numbers are nan or infinite, as from weights that overflowed in the last step, the text ends, and a
    ``reason`` says so: the run has trained, and its results are not lost for that.
    """
    prompt, context, temperature = asked.prompt, asked.context, asked.temperature
    given = list(prompt.encode())
    draws = np.random.RandomState(seed)  # whose numbers NumPy has promised not to change
    said = list(given)
    for _ in range(asked.generate):
        likely = np.asarray(next_byte(np.array([said[-context:]], np.int64)), np.float64).reshape(-1)[:BYTES]
        if not np.isfinite(likely.max()):
            break
        if temperature == 0:
            said.append(int(likely.argmax()))
        else:
            with np.errstate(over="ignore"):  # of a temperature near 0: what is not the likeliest has no share
                shares = np.exp((likely - likely.max()) / temperature)
            said.append(int(draws.choice(BYTES, p=shares / shares.sum())))
    follow = said[len(given) :]
    text = bytes(follow).decode("utf-8", "replace")
    told: dict[str, object] = {"prompt": prompt, "text": text, "temperature": temperature}
    if len(follow) < asked.generate:
        told["reason"] = f"the network's answer was nan or infinite after {len(follow)} of {asked.generate} bytes"
    return {"generated": told}
