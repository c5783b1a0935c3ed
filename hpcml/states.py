"""The states a run can be in: Slurm's words, plus one for a run whose supervisor vanished."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What is known of a run; `sacct` uses the same words (man sacct, JOB STATE CODES)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"  # not Slurm's: nothing supervises the run any more and no outcome was recorded

    @property
    def is_final(self) -> bool:
        """Whether the run has ended, one way or another."""
        return self not in (State.PENDING, State.RUNNING)
