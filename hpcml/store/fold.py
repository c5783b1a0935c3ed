"""The events of a run, folded into what is known of it: pure, and the same in whatever order they were found."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcml.precision import effective_precision
from hpcml.states import DECISIVE, State, state_after
from hpcml.store.curves import Precedence

FOLDED = (*DECISIVE, "facts", "framework", "precision")  # all other events change nothing here


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStart:
    """Who wrote a journal and since when."""

    file: str
    writer: str
    attempt: int
    t0: float  # unix seconds

    @property
    def precedence(self) -> Precedence:
        """Its place among the journals of the run."""
        return Precedence.of(attempt=self.attempt, writer=self.writer, t0=self.t0, file=self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One event, with the journal that tells of it."""

    journal: JournalStart
    ordinal: int  # among the events of its journal
    at: float  # unix seconds
    name: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the journals say of a run; None where they do not."""

    state: State = State.PENDING
    reason: str | None = None
    exit_code: int | None = None
    attempt: int = 0
    scheduler: str | None = None
    job_id: str | None = None
    array_index: int | None = None
    t_start: float | None = None
    t_end: float | None = None
    wall_s: float | None = None
    clock_zero: float | None = None  # where the run's own clock begins, started or not
    precision_effective: str | None = None
    numerics: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def fold(journals: Sequence[JournalStart], happenings: Iterable[Happening]) -> RunFacts:
    """Return what is known. The latest attempt decides, and within it an outcome is never taken back."""
    known = [happening for happening in happenings if happening.name in FOLDED]
    t_start = _start(journals)
    outcome = _outcome(known)
    submitted = max((h for h in known if h.name == "submitted"), key=_by_time, default=None)
    ticket = submitted.details if submitted else {}
    job = _job(known) or ticket
    probed = max((h for h in known if h.name == "precision"), key=_by_precedence, default=None)
    ended = outcome.details if outcome and outcome.name == "attempt_ended" else {}
    return RunFacts(
        state=_state(outcome),
        reason=_reason(outcome),
        exit_code=_integer(ended.get("exit_code")),
        attempt=max((journal.attempt for journal in journals), default=0),
        scheduler=_text(ticket.get("scheduler")),
        job_id=_text(job.get("job_id")),
        array_index=_integer(job.get("array_index")),
        t_start=t_start,
        # an inferred end is known by its discovery only, which says nothing of when it was
        t_end=outcome.at if outcome and outcome.name in ("attempt_ended", "submission_failed") else None,
        wall_s=_number(ended.get("wall_s")),
        clock_zero=t_start if t_start is not None else min((journal.t0 for journal in journals), default=None),
        precision_effective=_effective(probed),
        numerics=_text(probed.details.get("numerics")) if probed else None,
        facts=_facts(known),
    )


def _start(journals: Sequence[JournalStart]) -> float | None:
    for writer in ("agent", "rank"):
        started = [(journal.attempt, journal.t0) for journal in journals if journal.writer.startswith(writer)]
        if started:
            return min(started)[1]
    return None


def _job(known: Iterable[Happening]) -> Mapping[str, Any] | None:
    """Return the job that the last attempt says it ran in: another than was submitted, if that was done by hand."""
    named = [h for h in known if h.name == "attempt_started" and h.details.get("job_id") is not None]
    last = max(named, key=lambda happening: happening.journal.attempt, default=None)
    return None if last is None else last.details


def _outcome(known: Iterable[Happening]) -> Happening | None:
    """Return the event that decides the state: of several agents' outcomes the first that is no success."""

    def weight(happening: Happening) -> tuple[int, int, bool, float, str, int]:
        failed = _state(happening) is not State.COMPLETED
        order = (-happening.at, happening.journal.file, -happening.ordinal)
        return (happening.journal.attempt, DECISIVE[happening.name], failed, *order)

    decisive = (happening for happening in known if happening.name in DECISIVE and not _is_a_helpers(happening))
    return max(decisive, key=weight, default=None)


def _is_a_helpers(happening: Happening) -> bool:
    """Whether the agent of another node than the first says that all is well, which is the first one's to say."""
    is_helper = re.fullmatch(r"agent\d+", happening.journal.writer) is not None
    return is_helper and _state(happening) in (State.RUNNING, State.COMPLETED)


def _state(outcome: Happening | None) -> State:
    return State.PENDING if outcome is None else state_after(outcome.name, outcome.details)


def _reason(outcome: Happening | None) -> str | None:
    if outcome is None or outcome.name in ("submitted", "attempt_started"):
        return None
    reason, signal = _text(outcome.details.get("reason")), _integer(outcome.details.get("signal"))
    return reason if reason or signal is None else f"signal {signal}"


def _effective(probed: Happening | None) -> str | None:
    if probed is None:
        return None
    products, parameters = probed.details.get("products"), probed.details.get("parameters")
    if not isinstance(products, dict) or not products or not isinstance(parameters, str):
        return None
    return effective_precision({str(product): str(form) for product, form in products.items()}, parameters)


def _facts(known: Iterable[Happening]) -> dict[str, Any]:
    """Merge scalars: later attempts over earlier ones, the framework's words over the agent's, rank 0's over all."""
    facts: dict[str, Any] = {}
    for happening in sorted((h for h in known if h.name in ("facts", "framework")), key=_by_precedence):
        for key, value in happening.details.items():
            if isinstance(value, str | int | float) or (value is None and key not in facts):
                facts[key] = value  # "no such thing here" does not take back what somebody else saw
    return facts


def _by_time(happening: Happening) -> tuple[int, float, str, int]:
    return (happening.journal.attempt, happening.at, happening.journal.file, happening.ordinal)


def _by_precedence(happening: Happening) -> tuple[Precedence, int]:
    return (happening.journal.precedence, happening.ordinal)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


def _number(value: object) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) else _integer(value)
