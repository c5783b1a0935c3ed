"""The states of a run: Slurm's names, and LOST for a run that ended unseen."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a run; the words are those of `sacct` (man sacct, JOB STATE CODES).

    PENDING and RUNNING are the only ones that change; the others are how a run ended.
    """

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
