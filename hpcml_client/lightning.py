"""Lightning reports to hpcml: ``Trainer(logger=HpcmlLogger())``; other loggers may stand beside it in a list."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

try:
    from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
    from lightning.pytorch.utilities.rank_zero import rank_zero_only
except ModuleNotFoundError:  # the same under its other name
    from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment
    from pytorch_lightning.utilities.rank_zero import rank_zero_only

from hpcml_client.client import Client, connect
from hpcml_client.rows import report_row


class HpcmlLogger(Logger):
    """Reports what ``self.log`` logs, at Lightning's steps, from rank 0; *run*: of `connect`."""

    def __init__(self, run: Client | None = None) -> None:
        super().__init__()
        self._run = run or connect()

    @property
    def name(self) -> str:
        """The name of the folder that Lightning would make for checkpoints."""
        return "hpcml"

    @property
    def version(self) -> str:
        """The folder below that."""
        return f"attempt-{self._run.attempt}"

    @property
    @rank_zero_experiment
    def experiment(self) -> Client:
        """The client of the run, for ``self.logger.experiment.note(...)``."""
        return self._run

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Report *metrics* at *step*; called by Lightning."""
        report_row(self._run, metrics, step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: object, **__: object) -> None:
        """Report the hyperparameters as an event; called by Lightning."""
        values = vars(params) if isinstance(params, Namespace) else params
        self._run.event("config", **{str(key): value for key, value in values.items()})

    @rank_zero_only
    def finalize(self, status: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Write everything to the disk; called by Lightning at the end."""
        self._run.sync()
