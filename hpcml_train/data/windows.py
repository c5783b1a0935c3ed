"""Windows of a text: those to train on begin anywhere, those to validate on lie side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcml_train.data.texts import MOST_SAMPLES, Text, place_windows

Array = Any  # numpy.ndarray, or a tensor of torch
Place = Callable[[Array], Array]


def in_numpy(array: Array) -> Array:
    """Return *array*."""
    return array


class Windows:
    """The windows of *length* bytes of *text*; what is held out does not depend on the seed.

    *place* makes of NumPy's arrays what a framework computes with: tensors of torch on a device, say.
    """

    def __init__(
        self,
        text: Text,
        *,
        length: int,
        holdout: float,
        validation_windows: int,
        place: Place = in_numpy,
        most_samples: int = MOST_SAMPLES,
    ) -> None:
        places = place_windows(
            text, length=length, holdout=holdout, validation_windows=validation_windows, most_samples=most_samples
        )
        starts = [np.arange(span.start, span.stop, span.step) for span in places.training]
        self._bytes = place(np.frombuffer(text.content, dtype=np.uint8))
        self._offsets = place(np.arange(length))
        self.starts = place(np.concatenate(starts))
        self.validation_starts = place(np.array(places.validation))

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, starts: Array) -> Array:
        """Return the windows that begin at the bytes *starts*, one a row: numbers of 32 bits, in torch of 64."""
        found = self._bytes[starts[:, None] + self._offsets]
        return found.astype(np.int32) if isinstance(found, np.ndarray) else found.long()
