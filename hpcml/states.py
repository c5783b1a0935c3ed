"""The states a run can be in, and which event of its journals decides: Slurm's words, plus one for a lost run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


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


# Weight of an event within one attempt: an outcome that the agent saw to the end, one inferred from outside, an end
# whose cause the agent cannot know, a beginning, a wish.
DECISIVE: Mapping[str, int] = {
    "attempt_ended": 6,
    "ended_by_scheduler": 5,  # what the scheduler says of a job whose agent could not say it
    "cancelled": 5,
    "lost": 4,
    "attempt_interrupted": 3,  # ended by a signal from outside: why, and whether it runs again, the scheduler knows
    "attempt_started": 2,
    "submission_failed": 1,  # and yet its job.sh may be submitted by hand
    "submitted": 0,  # in an attempt after the first: it waits to be run again
}
UNSETTLED = "attempt_interrupted"
_SAID_BY_NAME = {
    "lost": State.LOST,
    "cancelled": State.CANCELLED,
    "attempt_started": State.RUNNING,
    "submitted": State.PENDING,
}


def state_after(event: str, details: Mapping[str, Any]) -> State:
    """Return the state that a decisive *event* puts its run into; an outcome in unknown words is a failure."""
    if event in _SAID_BY_NAME:
        return _SAID_BY_NAME[event]
    word = str(details.get("state"))
    return State(word) if word in State.__members__ else State.FAILED
