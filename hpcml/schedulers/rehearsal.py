"""What a scheduler says of a job before it is submitted: whether it would take it, what looks wrong, when it starts."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE_S = 30.0  # for each question: whoever types waits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The scheduler's answer; nothing of it is a promise, since the queue goes on."""

    refused: str | None = None  # in its own words: it would not take the job, or never start it
    warnings: tuple[str, ...] = ()
    starts_at: float | None = None  # Unix time; None: not told
