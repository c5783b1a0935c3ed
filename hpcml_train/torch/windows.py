"""Windows of a text on the device: those to train on begin anywhere, those to validate on lie side by side."""

from __future__ import annotations

import torch

from hpcml_train.data.texts import MOST_SAMPLES, Text, place_windows


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
        most_samples: int = MOST_SAMPLES,
    ) -> None:
        places = place_windows(
            text, length=length, holdout=holdout, validation_windows=validation_windows, most_samples=most_samples
        )
        self._bytes = torch.frombuffer(bytearray(text.content), dtype=torch.uint8).to(device)
        self._offsets = torch.arange(length, device=device)
        training = [torch.arange(span.start, span.stop, span.step) for span in places.training]
        self.starts = torch.cat(training).to(device)
        self.validation_starts = torch.tensor(places.validation, device=device)

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, starts: torch.Tensor) -> torch.Tensor:
        """Return the windows that begin at the bytes *starts*, one a row, as numbers of 64 bits."""
        return self._bytes[starts[:, None] + self._offsets].long()
