"""Hugging Face's Trainer reports to hpcml: ``Trainer(..., callbacks=[HpcmlCallback()])``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpcml_client.client import Client, connect
from hpcml_client.rows import report_row


class HpcmlCallback(TrainerCallback):
    """Reports what the Trainer logs, by its names (``loss``, ``eval_loss`` ...), at its steps; *run*: of `connect`."""

    def __init__(self, run: Client | None = None) -> None:
        self._run = run or connect()

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002 - the Trainer's signature
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        """Report how far the training goes; called by the Trainer."""
        if state.is_world_process_zero and state.max_steps > 0:
            self._run.last_step(state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002 - the Trainer's signature
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        logs: Mapping[str, Any] | None = None,
        **_: object,
    ) -> None:
        """Report *logs* at the Trainer's step; called by it."""
        if state.is_world_process_zero:
            report_row(self._run, logs or {}, state.global_step)
