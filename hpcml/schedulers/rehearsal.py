"""What a scheduler says of a job before it is submitted: whether it would take it, what looks wrong, when it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcml.schedulers.contract import Batch

PATIENCE_S = 30.0  # for each question: whoever types waits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The scheduler's answer; nothing of it is a promise, since the queue goes on."""

    refused: str | None = None  # in its own words: it would not take the job, or never start it
    warnings: tuple[str, ...] = ()
    starts_at: float | None = None  # Unix time; None: not told


# Asks about a batch with its rendered script; never raises for silence of the scheduler, which is a warning.
Rehearse = Callable[[Batch, str], Rehearsal]
