"""Where the windows of a text begin: those to train on anywhere, those to validate on side by side."""

from __future__ import annotations

from typing import List, NamedTuple

from hpcml_client.recipe_task import RecipeError
from hpcml_client.texts import Span, Text, split_spans

MOST_SAMPLES = 1_000_000  # each epoch shuffles them: in longer texts windows begin at every n-th byte
_PIECE = 4096  # bytes that are held out together; less in short texts
_FEWEST_PIECES = 20


class Places(NamedTuple):
    """The bytes at which windows begin; neither list is empty."""

    training: List[range]
    validation: List[int]


def place_windows(
    text: Text, *, length: int, holdout: float, validation_windows: int, most_samples: int = MOST_SAMPLES
) -> Places:
    """Return where the windows of *length* bytes of *text* begin; it depends on no seed.

    Raises `RecipeError` where the text is too short.
    """
    piece = max(length, min(_PIECE, len(text) // _FEWEST_PIECES))
    kept, held_out = split_spans(len(text), piece, holdout)
    room = sum(max(0, end - begin - length + 1) for begin, end in kept)
    training = _starts(kept, length, stride=-(-room // most_samples) or 1)
    examined = [start for span in _starts(held_out, length, stride=length) for start in span]
    if not training or not examined:
        raise RecipeError(
            f"{text.where} has {len(text)} bytes: too few to hold out windows of {length} with "
            f"data.holdout={holdout:g}: take a longer text or a smaller model.options.context"
        )
    if len(examined) > validation_windows:  # evenly spread
        examined = [examined[index * len(examined) // validation_windows] for index in range(validation_windows)]
    return Places(training, examined)


def _starts(spans: List[Span], length: int, *, stride: int) -> List[range]:
    return [range(begin, end - length + 1, stride) for begin, end in spans if end - begin >= length]
