"""Keras reports to hpcml: ``model.fit(..., callbacks=[HpcmlCallback()])``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras.callbacks import Callback

from hpcml_client.client import Client, connect
from hpcml_client.rows import report_row


class HpcmlCallback(Callback):
    """Reports the logs of each epoch (``loss``, ``val_loss`` ...) at its number from 0; *run*: of `connect`."""

    def __init__(self, run: Client | None = None) -> None:
        super().__init__()
        self._run = run or connect()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        """Report which epoch will be the last; called by Keras."""
        epochs = (self.params or {}).get("epochs")
        if isinstance(epochs, int) and epochs > 0:
            self._run.last_step(epochs - 1)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report *logs*; called by Keras."""
        report_row(self._run, logs or {}, epoch)
