"""Windows of a text on the device: those to train on begin anywhere, those to validate on lie side by side."""

from __future__ import annotations

from typing import List

import torch

from hpcml_client.recipe_task import RecipeError
from hpcml_client.texts import Span, Text, split_spans

BYTES = 256  # the tokens of a text are its bytes: none is unknown, and every text has the same number of them
_PIECE = 4096  # bytes that are held out together; less in short texts
_FEWEST_PIECES = 20
_MOST_SAMPLES = 1_000_000  # each epoch shuffles them: in longer texts windows begin at every n-th byte


class Windows:
    """The windows of *length* bytes of *text*; what is held out does not depend on the seed."""

    def __init__(
        self,
        text: Text,
        *,
        length: int,
        holdout: float,
        validation_windows: int,
        device: torch.device,
        most_samples: int = _MOST_SAMPLES,
    ) -> None:
        piece = max(length, min(_PIECE, len(text) // _FEWEST_PIECES))
        kept, held_out = split_spans(len(text), piece, holdout)
        room = sum(max(0, end - begin - length + 1) for begin, end in kept)
        starts = _starts(kept, length, stride=-(-room // most_samples) or 1)
        examined = _starts(held_out, length, stride=length)
        if not len(starts) or not len(examined):
            raise RecipeError(
                f"{text.where} has {len(text)} bytes: too few to hold out windows of {length} with "
                f"data.holdout={holdout:g}: take a longer text or a smaller model.options.context"
            )
        if len(examined) > validation_windows:  # evenly spread
            chosen = torch.arange(validation_windows) * len(examined) // validation_windows
            examined = examined[chosen]
        self._bytes = torch.frombuffer(bytearray(text.content), dtype=torch.uint8).to(device)
        self._offsets = torch.arange(length, device=device)
        self.starts = starts.to(device)
        self.validation_starts = examined.to(device)

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, starts: torch.Tensor) -> torch.Tensor:
        """Return the windows that begin at the bytes *starts*, one a row, as numbers of 64 bits."""
        return self._bytes[starts[:, None] + self._offsets].long()


def _starts(spans: List[Span], length: int, *, stride: int) -> torch.Tensor:
    found = [torch.arange(begin, end - length + 1, stride) for begin, end in spans if end - begin >= length]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.long)
