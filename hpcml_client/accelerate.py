"""accelerate reports to hpcml: ``Accelerator(log_with=HpcmlTracker())``, then ``init_trackers`` and ``log``."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker, on_main_process

from hpcml_client.client import Client, connect
from hpcml_client.rows import report_row


class HpcmlTracker(GeneralTracker):
    """Reports what ``accelerator.log(values, step)`` is given, on the main process; *run*: of `connect`."""

    name = "hpcml"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, run: Client | None = None) -> None:
        super().__init__()
        self._run = run or connect()

    @property
    def tracker(self) -> Client:
        """The client of the run; ``accelerator.get_tracker("hpcml", unwrap=True)`` returns it."""
        return self._run

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Report the *config* of ``init_trackers`` as an event."""
        self._run.event("config", **{str(key): value for key, value in values.items()})

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **_: object) -> None:
        """Report *values* at *step*; called by the Accelerator."""
        report_row(self._run, values, step)

    @on_main_process
    def finish(self) -> None:
        """Write everything to the disk; called by ``end_training``."""
        self._run.sync()
