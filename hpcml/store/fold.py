"""The events of a run, folded into what is known of it: pure, and the same in whatever order they were found."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcml.causes import Cause
from hpcml.journal import USER
from hpcml.precision import effective_precision
from hpcml.states import DECISIVE, UNSETTLED, State, state_after
from hpcml.store.curves import Precedence

FOLDED = (*DECISIVE, "checkpoint", "facts", "framework", "precision")  # all other events change nothing here
_SEEN_ENDS = ("attempt_ended", UNSETTLED)  # an end that an agent lived to see: when it was, and after how long
_CAUSE_OF_EVENT = {"cancelled": Cause.CANCELLED, "submission_failed": Cause.SUBMISSION}
_CAUSE_OF_STATE = {
    State.CANCELLED: Cause.CANCELLED,
    State.TIMEOUT: Cause.TIME_LIMIT,
    State.NODE_FAIL: Cause.NODE_FAILURE,
    State.PREEMPTED: Cause.PREEMPTION,
}  # the only one that it can have had


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
    is_settled: bool = True
    cause: Cause | None = None
    reason: str | None = None
    exit_code: int | None = None
    attempt: int = 0
    scheduler: str | None = None
    job_id: str | None = None
    array_index: int | None = None
    job_name: str | None = None
    is_shared: bool = False
    t_start: float | None = None  # of the first attempt whose work counts (`_working`)
    t_end: float | None = None
    wall_s: float | None = None  # of all attempts whose work counts
    counted: Sequence[int] = ()  # these attempts
    clock_zero: float | None = None  # where the run's own clock begins: its very first start, or before any
    precision_effective: str | None = None
    numerics: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def fold(journals: Sequence[JournalStart], happenings: Iterable[Happening]) -> RunFacts:
    """Return what is known. The latest attempt decides, and within it an outcome is never taken back."""
    journals = [journal for journal in journals if journal.writer != USER]
    known = [happening for happening in happenings if happening.name in FOLDED]
    starts = _starts(journals, known)
    outcome = _outcome(known)
    state = _state(outcome)
    seen = _end_seen(known, outcome.journal.attempt) if outcome and state.is_final else None
    working = _working(starts, known, outcome.journal.attempt if outcome else None)
    probed = max((h for h in known if h.name == "precision"), key=_by_precedence, default=None)
    return RunFacts(
        state=state,
        is_settled=outcome is None or outcome.name != UNSETTLED,
        cause=_cause(outcome),
        reason=_reason(outcome),
        exit_code=_integer(seen.details.get("exit_code")) if seen else None,
        attempt=max((journal.attempt for journal in journals), default=0),
        scheduler=_scheduler(known),
        **_job(known),
        t_start=starts[working[0]] if working else None,
        t_end=_end_known(outcome, seen),
        wall_s=_wall_s(known, working) if state.is_final else None,
        counted=tuple(working),
        clock_zero=starts[min(starts)] if starts else min((journal.t0 for journal in journals), default=None),
        precision_effective=_effective(probed),
        numerics=_text(probed.details.get("numerics")) if probed else None,
        facts=_facts(known),
    )


def _starts(journals: Iterable[JournalStart], known: Sequence[Happening]) -> dict[int, float]:
    """Return, by attempt, when it started: as its agents say, else its ranks; one that only waits is absent."""
    # an agent that has its run queued again opens the journal of an attempt that has not started yet
    waiting = {h.journal.file for h in known if h.name in ("submitted", "submission_failed")}
    waiting -= {h.journal.file for h in known if h.name == "attempt_started"}
    starts: dict[int, float] = {}
    for writer in ("rank", "agent"):
        of_writer: dict[int, float] = {}
        for journal in journals:
            if journal.writer.startswith(writer) and journal.file not in waiting:
                of_writer[journal.attempt] = min(journal.t0, of_writer.get(journal.attempt, math.inf))
        starts |= of_writer
    return starts


def _working(starts: Iterable[int], known: Iterable[Happening], decided: int | None) -> list[int]:
    """Return the attempts whose work counts, in order: the one that was *decided*, and those it goes on from.

    It goes on from the attempt before if that one left a checkpoint, and so does that one in turn. An attempt that
    never started did no work and is passed over; of attempts after the decided one nothing is known.
    """
    left_checkpoint = {
        h.journal.attempt
        for h in known
        if h.name == "checkpoint" or (h.name in _SEEN_ENDS and h.details.get("checkpointed") is True)
    }
    working: list[int] = []
    for attempt in sorted((at for at in starts if decided is None or at <= decided), reverse=True):
        is_last = attempt == decided or (decided is None and not working)
        if not is_last and attempt not in left_checkpoint:
            break
        working.insert(0, attempt)
    return working


def _wall_s(known: Sequence[Happening], working: Sequence[int]) -> float | None:
    """Return the time that the program ran in the *working* attempts together; None unless each of them says it."""
    ends = [_end_seen(known, attempt) for attempt in working]
    walls = [_number(end.details.get("wall_s")) if end else None for end in ends]
    told = [wall for wall in walls if wall is not None]
    return math.fsum(told) if told and len(told) == len(walls) else None


def _end_known(outcome: Happening | None, seen: Happening | None) -> float | None:
    """Return when the run ended, where somebody saw it: of a verdict only the discovery has a time."""
    if seen is not None:
        return seen.at
    return outcome.at if outcome is not None and outcome.name == "submission_failed" else None


def _scheduler(known: Iterable[Happening]) -> str | None:
    named = (h for h in known if h.name == "submitted" and h.details.get("scheduler") is not None)
    submitted = max(named, key=_by_time, default=None)
    return None if submitted is None else _text(submitted.details["scheduler"])


def _job(known: Iterable[Happening]) -> dict[str, Any]:
    """Return the job that the last attempt names: another than was submitted, if that was done by hand.

    Within an attempt the agent's word counts more than the submitter's. What several say of one job adds up: whoever
    submitted it knows its name, too.
    """

    def order(happening: Happening) -> tuple[int, bool, float, str, int]:
        attempt, at, file, ordinal = _by_time(happening)
        return (attempt, happening.name == "attempt_started", at, file, ordinal)

    named = [h for h in known if h.name in ("submitted", "attempt_started") and h.details.get("job_id") is not None]
    if not named:
        return {}
    named.sort(key=order, reverse=True)
    job = _identity(named[0])
    of_job = [happening.details for happening in named if _identity(happening) == job]
    names = (name for details in of_job if (name := _text(details.get("job_name"))) is not None)
    is_shared = any(details.get("pack") is not None for details in of_job)
    return {"job_id": job[0], "array_index": job[1], "job_name": next(names, None), "is_shared": is_shared}


def _identity(happening: Happening) -> tuple[str | None, int | None]:
    return (_text(happening.details.get("job_id")), _integer(happening.details.get("array_index")))


def _outcome(known: Iterable[Happening]) -> Happening | None:
    """Return the event that decides the state: of several agents' outcomes the first that is no success."""
    decisive = (happening for happening in known if happening.name in DECISIVE and not _is_a_helpers(happening))
    return max(decisive, key=_by_weight, default=None)


def _end_seen(known: Iterable[Happening], attempt: int) -> Happening | None:
    """Return the end of *attempt* as its agents saw it, whoever says why: None where none of them lived to see it."""
    ends = (h for h in known if h.name in _SEEN_ENDS and h.journal.attempt == attempt and not _is_a_helpers(h))
    return max(ends, key=_by_weight, default=None)


def _by_weight(happening: Happening) -> tuple[int, int, bool, float, str, int]:
    failed = _state(happening) is not State.COMPLETED
    order = (-happening.at, happening.journal.file, -happening.ordinal)
    return (happening.journal.attempt, DECISIVE[happening.name], failed, *order)


def _is_a_helpers(happening: Happening) -> bool:
    """Whether the agent of another node than the first says that all is well, which is the first one's to say."""
    is_helper = re.fullmatch(r"agent\d+", happening.journal.writer) is not None
    return is_helper and _state(happening) in (State.RUNNING, State.COMPLETED)


def _state(outcome: Happening | None) -> State:
    return State.PENDING if outcome is None else state_after(outcome.name, outcome.details)


def _reason(outcome: Happening | None) -> str | None:
    if outcome is None or outcome.name == "attempt_started":
        return None
    if outcome.name == "submitted":
        return _text(outcome.details.get("why"))  # it waits again
    reason, signal = _text(outcome.details.get("reason")), _integer(outcome.details.get("signal"))
    return reason if reason or signal is None else f"signal {signal}"


def _cause(outcome: Happening | None) -> Cause | None:
    state = _state(outcome)
    if outcome is None or not state.is_final or state is State.COMPLETED or outcome.name == UNSETTLED:
        return None
    word = _text(outcome.details.get("cause"))
    if word is not None:
        return Cause(word) if word in set(Cause) else Cause.UNKNOWN
    return _CAUSE_OF_EVENT.get(outcome.name) or _CAUSE_OF_STATE.get(state, Cause.UNKNOWN)


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
