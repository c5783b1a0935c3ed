"""What a scheduler must be able to do for hpcml: the contract that every backend keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hpcml.manifest import Manifest
from hpcml.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What the scheduler calls a submitted run."""

    scheduler: str
    job_id: str
    array_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run ready to be queued: its directory is complete."""

    run_dir: RunDir
    manifest: Manifest


class Submitter(Protocol):
    """A scheduler, or this machine in its place."""

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Queue *jobs* in this order and return their tickets in this order.

        What is executed is the ``job.sh`` of each run directory. Raises
        `SubmissionError` with the scheduler's own words if nothing was queued.
        """
        ...
