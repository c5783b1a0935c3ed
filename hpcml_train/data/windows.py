"""Windows of a text as NumPy arrays, for TensorFlow and JAX: the same as torch's."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcml_train.data.texts import Text, place_windows

Array = Any  # numpy.ndarray, which old NumPys cannot say more of


class Windows:
    """The windows of *length* bytes of *text*; what is held out does not depend on the seed."""

    def __init__(self, text: Text, *, length: int, holdout: float, validation_windows: int) -> None:
        places = place_windows(text, length=length, holdout=holdout, validation_windows=validation_windows)
        self._bytes = np.frombuffer(text.content, dtype=np.uint8)
        self._offsets = np.arange(length)
        self.starts = np.concatenate([np.arange(span.start, span.stop, span.step) for span in places.training])
        self.validation_starts = np.array(places.validation)

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, starts: Array) -> Array:
        """Return the windows that begin at the bytes *starts*, one a row, as numbers of 32 bits."""
        return self._bytes[starts[:, None] + self._offsets].astype(np.int32)
