"""The attempts of a run, put together from its events: when each began and ended, where, how, and what it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcml.journal import USER
from hpcml.records import StoredEvent
from hpcml.states import DECISIVE, State, state_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt; times are on the run's own clock, None where nobody saw them."""

    number: int
    queued: str | None  # why it was queued: None for the first
    began_s: float | None
    ended_s: float | None
    hosts: Sequence[str]
    job: str | None
    state: State
    why: str | None
    checkpoints: Sequence[int]  # the steps of those it left


def attempts_of(events: Sequence[StoredEvent]) -> list[Attempt]:
    """Return the attempts of the run that told *events*, in their order."""
    numbers = sorted({event.attempt for event in events if event.writer != USER})
    return [_attempt(number, [event for event in events if event.attempt == number]) for number in numbers]


def _attempt(number: int, events: Sequence[StoredEvent]) -> Attempt:
    starts = [event for event in events if event.name == "attempt_started"]
    ends = [event for event in events if event.name in ("attempt_ended", "attempt_interrupted")]
    # the first node's agent speaks for all where they agree, and the first bad news counts: as in the store's own fold
    decisive = [event for event in events if event.name in DECISIVE and not _is_a_helpers(event)]
    outcome = max(decisive, key=lambda event: (DECISIVE[event.name], -event.t_s), default=None)
    queued = [event for event in events if event.name == "submitted"]
    jobs = [event.details.get("job_id") for event in [*queued, *starts] if event.details.get("job_id")]
    steps = [event.details.get("step") for event in events if event.name == "checkpoint"]
    return Attempt(
        number=number,
        queued=next((str(event.details["why"]) for event in queued if event.details.get("why")), None),
        began_s=min((event.t_s for event in starts), default=None),
        ended_s=max((event.t_s for event in ends), default=None),
        hosts=tuple(dict.fromkeys(str(event.details.get("hostname") or "?") for event in starts)),
        job=str(jobs[-1]) if jobs else None,
        state=State.PENDING if outcome is None else state_after(outcome.name, outcome.details),
        why=None if outcome is None else _text(outcome.details.get("reason")),
        checkpoints=tuple(step for step in steps if isinstance(step, int)),
    )


def _is_a_helpers(event: StoredEvent) -> bool:
    """Whether the agent of another node than the first says that all is well, which is the first one's to say."""
    is_helper = event.writer.startswith("agent") and event.writer != "agent"
    return is_helper and state_after(event.name, event.details) in (State.RUNNING, State.COMPLETED)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
