"""Text that a trained network of bytes goes on with, one byte after the other."""

from __future__ import annotations

from typing import Callable, Dict

import torch

from hpcml_train.errors import RecipeError


def continue_text(
    next_byte: Callable[[torch.Tensor], torch.Tensor],
    prompt: str,
    count: int,
    *,
    context: int,
    temperature: float,
    seed: int,
) -> Dict[str, object]:
    """Return the details of an event ``generated``: *prompt* and the *count* bytes that follow it, as text.

    *next_byte* takes the last bytes, at most *context* of them (1 x n, int64), and returns a number for each byte that
    may be next (a log-likelihood, up to a constant). *temperature* 0 takes the likeliest, else one is drawn
    after dividing by it, with *seed*. What is no UTF-8 is shown as U+FFFD.
    """
    given = list(prompt.encode())
    if not given:
        raise RecipeError("model.options.generate needs something to continue: model.options.prompt='The '")
    generator = torch.Generator().manual_seed(seed)
    said = list(given)
    with torch.no_grad():
        for _ in range(count):
            likely = next_byte(torch.tensor([said[-context:]])).flatten().double()
            if temperature == 0:
                said.append(int(likely.argmax()))
            else:
                shares = torch.softmax(likely / temperature, dim=0)
                said.append(int(torch.multinomial(shares, 1, generator=generator)))
    text = bytes(said[len(given) :]).decode("utf-8", "replace")
    return {"prompt": prompt, "text": text, "temperature": temperature}
