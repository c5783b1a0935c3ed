"""What is known of a run, folded from the events of its journals: state, times, facts, tags and notes. Pure.

The result depends on the events alone, not on the order in which they were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcml.model.choices import Numerics
from hpcml.model.failure_causes import Cause
from hpcml.model.own_program import CHANGED_OUTSIDE
from hpcml.model.precision import EVIDENCE, OBSERVED_TO, PROBED_AS, STEPS, PrecisionName
from hpcml.model.records import Note
from hpcml.model.state import State
from hpcml.runs.event_words import paths_in
from hpcml.runs.journal import USER
from hpcml.runs.state import DECISIVE, UNSETTLED, EventName, RunEvent, RunFold
from hpcml.store.curves import Precedence
from hpcml_client.formats import name_precision
from hpcml_client.observed import Window, effective, read_window

_LIFE = (*map(str, DECISIVE), EventName.CHECKPOINT.value)
_OBSERVED = ("precision_observer", "precision_observed", "precision_observer_closed")
FOLDED = (
    *_LIFE,
    "facts",
    "framework",
    "precision",
    *_OBSERVED,
    EventName.SHARED_CHANGED.value,
)  # all other events change nothing here
_CAUSE_OF_EVENT: Mapping[str, Cause] = {
    EventName.CANCELLED: Cause.CANCELLED,
    EventName.SUBMISSION_FAILED: Cause.SUBMISSION,
}
_CAUSE_OF_STATE = {
    State.CANCELLED: Cause.CANCELLED,
    State.TIMEOUT: Cause.TIME_LIMIT,
    State.NODE_FAIL: Cause.NODE_FAILURE,
    State.PREEMPTED: Cause.PREEMPTION,
}  # the only one that it can have had


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStart:
    """The header of a journal: who wrote it and since when.

    `writer` is ``rank0``, ``rank1`` ... for the processes of the program, begins with ``agent`` for the agents of its
    nodes, and is ``user`` for people's tags and notes. `attempt` counts from 0.
    """

    file: str
    writer: str
    attempt: int
    t0: float  # unix seconds

    @property
    def precedence(self) -> Precedence:
        """The rank of the journal among those of the run: where two report the same, the higher one counts."""
        return Precedence.of(attempt=self.attempt, writer=self.writer, t0=self.t0, file=self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One event, and the journal that it is from.

    `details` is the decoded JSON of the event. Which names there are, and what their details hold, docs/journal.md
    lists.
    """

    journal: JournalStart
    ordinal: int  # among the events of its journal
    at: float  # unix seconds
    name: str
    details: Mapping[str, Any]

    @property
    def told(self) -> RunEvent:
        """The event as `RunFold` takes it, for the state of the run."""
        attempt, writer = self.journal.attempt, self.journal.writer
        return RunEvent(
            attempt=attempt, writer=writer, at_ms=round(self.at * 1000), name=self.name, details=self.details
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the journals say of a run; None where they do not. Times are unix seconds, durations seconds.

    `hpcml.store.rows.refold` writes it into the run's row. `is_settled` is False while a signal from outside has ended
    the run and the scheduler has not told why. `exit_code` is that of the program in the deciding attempt; `cause` says
    why a run did not complete, and is None for one that did or still goes on.
    """

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
    job_cluster: str | None = None
    is_shared: bool = False
    t_start: float | None = None  # of the first attempt whose work counts (`RunFold.counting`)
    t_end: float | None = None
    wall_s: float | None = None  # of all attempts whose work counts
    counted: Sequence[int] = ()  # these attempts
    clock_zero: float | None = None  # where the run's own clock begins: its very first start, or before any
    precision_effective: str | None = None
    numerics: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def fold(
    journals: Sequence[JournalStart],
    happenings: Iterable[Happening],
    *,
    requested: str | None = None,
    is_observed: bool = False,
) -> RunFacts:
    """Return what is known of the run from its journals and events.

    *requested* is the precision that the run asks for, where nobody says otherwise that of its probe; *is_observed*
    says whether its program was to be observed although it does not ask for that.

    The latest attempt decides, and within it a final state is never taken back. Events whose names are not in `FOLDED`
    are passed over, and so are the journals of people's tags and notes. Without any event the run is PENDING.
    """
    journals = [journal for journal in journals if journal.writer != USER]
    known = [happening for happening in happenings if happening.name in FOLDED]
    told = RunFold.of(happening.told for happening in known)
    for journal in journals:
        told.begin(journal.attempt, journal.writer)
    starts = _starts(journals, known)
    deciding = told.deciding
    seen = deciding.end_seen if deciding is not None and told.state.is_final else None
    working = told.counting(starts)
    probed = max((h for h in known if h.name == "precision"), key=_by_precedence, default=None)
    job = told.job
    precision = _Precision.of(known, probed, working, requested=requested, is_expected=is_observed)
    return RunFacts(
        state=told.state,
        is_settled=told.is_settled,
        cause=_cause(told.decision),
        reason=told.reason,
        exit_code=seen.exit_code if seen else None,
        attempt=told.attempt,
        scheduler=told.scheduler,
        job_id=job.job_id if job else None,
        array_index=job.array_index if job else None,
        job_name=job.job_name if job else None,
        job_cluster=job.job_cluster if job else None,
        is_shared=job is not None and job.is_shared,
        t_start=starts[working[0]] if working else None,
        t_end=_end_known(told),
        wall_s=_wall_s(told, working) if told.state.is_final else None,
        counted=tuple(working),
        clock_zero=starts[min(starts)] if starts else min((journal.t0 for journal in journals), default=None),
        precision_effective=precision.effective,
        numerics=_text(probed.details.get("numerics")) if probed else precision.numerics,
        facts={**_facts(known), **_changed_outside(known), **precision.facts},
    )


def _starts(journals: Iterable[JournalStart], known: Sequence[Happening]) -> dict[int, float]:
    """Return, by attempt, when it started, in unix seconds: from its agents' journals, else its ranks'.

    An attempt that still waits is absent.
    """
    # an agent that has its run queued again opens the journal of an attempt that has not started yet
    waiting = {h.journal.file for h in known if h.name in (EventName.SUBMITTED, EventName.SUBMISSION_FAILED)}
    waiting -= {h.journal.file for h in known if h.name == EventName.ATTEMPT_STARTED}
    starts: dict[int, float] = {}
    for writer in ("rank", "agent"):
        of_writer: dict[int, float] = {}
        for journal in journals:
            if journal.writer.startswith(writer) and journal.file not in waiting:
                of_writer[journal.attempt] = min(journal.t0, of_writer.get(journal.attempt, math.inf))
        starts |= of_writer
    return starts


def _wall_s(told: RunFold, working: Sequence[int]) -> float | None:
    """Return the wall time of the *working* attempts together, in seconds.

    None unless each of them reported its own.
    """
    walls = [one.wall_s for one in told if one.number in working and one.wall_s is not None]
    return math.fsum(walls) if walls and len(walls) == len(working) else None


def _end_known(told: RunFold) -> float | None:
    """Return when the run ended, in unix seconds, if that was seen; a later discovery tells no time of the end."""
    deciding, decision = told.deciding, told.decision
    if deciding is None or decision is None:
        return None
    if decision.name == EventName.SUBMISSION_FAILED:
        return decision.at_ms / 1000
    return deciding.ended_ms / 1000 if told.state.is_final and deciding.ended_ms is not None else None


def _cause(decision: RunEvent | None) -> Cause | None:
    if decision is None or decision.name in UNSETTLED:
        return None
    if not decision.state.is_final or decision.state is State.COMPLETED:
        return None
    word = _text(decision.details.get("cause"))
    if word is not None:
        return Cause(word) if word in set(Cause) else Cause.UNKNOWN
    return _CAUSE_OF_EVENT.get(decision.name) or _CAUSE_OF_STATE.get(decision.state, Cause.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Precision:
    """What a run computed in: as observed, else as a probe beside it shows what the device does when asked."""

    effective: str | None
    evidence: str | None  # observed, probed
    probed: str | None
    numerics: str | None = None  # as observed
    reach: tuple[int, int] | None = None  # the step to which it was observed, and how many there were; None: not told

    @classmethod
    def of(
        cls,
        known: Sequence[Happening],
        probe: Happening | None,
        working: Sequence[int],
        *,
        requested: str | None,
        is_expected: bool,
    ) -> _Precision:
        counted = [h for h in known if h.name in _OBSERVED and (not working or h.journal.attempt in working)]
        windows = _windows(counted)
        probed, parameters = _probed(probe)
        word, evidence = effective(
            windows,
            requested=requested or (probe and _text(probe.details.get("requested"))) or PrecisionName.own.name,
            probed=probed,
            parameters=parameters,
            has_observer=any(h.name == "precision_observer" and "off" not in h.details for h in counted),
            is_expected=is_expected and bool(working),
        )
        is_emulated = any(row.emulated for window in windows for row in window.judged)
        numerics = (Numerics.emulated if is_emulated else Numerics.native).name if windows else None
        return cls(effective=word, evidence=evidence, probed=probed, numerics=numerics, reach=_reach(counted))

    @property
    def facts(self) -> dict[str, str | int]:
        seen_to, steps = self.reach or (None, None)
        told = {EVIDENCE: self.evidence, PROBED_AS: self.probed, OBSERVED_TO: seen_to, STEPS: steps}
        return {key: value for key, value in told.items() if value is not None}


def _windows(happenings: Iterable[Happening]) -> list[Window]:
    """Return the windows in which the program was observed, in an order that does not depend on that of reading."""
    told = sorted((h for h in happenings if h.name == "precision_observed"), key=_by_precedence)
    return [window for window in (read_window(h.details) for h in told) if window is not None]


def _reach(happenings: Iterable[Happening]) -> tuple[int, int] | None:
    """Return the last step in a window and how many the program made, of the attempt that was observed least far."""
    windows: dict[int, int] = {}
    steps: dict[int, int] = {}
    for h in happenings:
        of, key = (steps, "steps") if h.name == "precision_observer_closed" else (windows, "step")
        if isinstance(at := h.details.get(key), int):
            of[h.journal.attempt] = max(at, of.get(h.journal.attempt, 0))
    known = [(windows[attempt], most) for attempt, most in steps.items() if windows.get(attempt) and most > 0]
    return min(known, key=lambda one: (one[0] / one[1], one), default=None)


def _probed(probe: Happening | None) -> tuple[str | None, str | None]:
    """Return the precision that a probe shows, and the type of the parameters."""
    if probe is None:
        return None, None
    products, parameters = probe.details.get("products"), probe.details.get("parameters")
    if not isinstance(products, dict) or not products or not isinstance(parameters, str):
        named = probe.details.get("effective")  # a writer that has measured it in its own way
        return (named if isinstance(named, str) and named else None), None
    return name_precision({str(product): str(form) for product, form in products.items()}, parameters), parameters


def _facts(known: Iterable[Happening]) -> dict[str, Any]:
    """Return the merged facts: later attempts win over earlier, frameworks over agents, rank 0 over all.

    A value that is neither text nor number is left out, and None never replaces what another writer reported.
    """
    facts: dict[str, Any] = {}
    for happening in sorted((h for h in known if h.name in ("facts", "framework")), key=_by_precedence):
        for key, value in happening.details.items():
            if isinstance(value, str | int | float) or (value is None and key not in facts):
                facts[key] = value  # "no such thing here" does not take back what somebody else saw
    return facts


def _changed_outside(known: Iterable[Happening]) -> dict[str, str]:
    """Return the places that runs share, and that changed while an attempt of this one went on, as one fact."""
    places = {place for h in known if h.name == EventName.SHARED_CHANGED for place in paths_in(h.details)}
    return {CHANGED_OUTSIDE: ", ".join(sorted(places))} if places else {}


def _by_precedence(happening: Happening) -> tuple[Precedence, int]:
    return (happening.journal.precedence, happening.ordinal)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


ANNOTATING = ("tagged", "untagged", "noted")


def fold_tags(first: Sequence[str], happenings: Iterable[Happening]) -> list[str]:
    """Return the run's tags: *first*, which run.json names, then those added and removed since, by time.

    A tag that is added twice stands once, at its first place; a tag that is removed and added again stands last.

    >>> fold_tags(["paper"], [])
    ['paper']
    """
    tags = list(first)
    for happening in sorted(happenings, key=_notes_by_time):
        tag = happening.details.get("tag")
        if not isinstance(tag, str) or happening.name not in ("tagged", "untagged"):
            continue
        if happening.name == "untagged":
            tags = [other for other in tags if other != tag]
        elif tag not in tags:
            tags.append(tag)
    return tags


def fold_notes(happenings: Iterable[Happening]) -> list[Note]:
    """Return the run's notes by time; without a named author it is the writer of the journal.

    Events of other names, and notes whose text is no text, are passed over.
    """
    notes: list[Note] = []
    for happening in sorted(happenings, key=_notes_by_time):
        text, author = happening.details.get("text"), happening.details.get("author")
        if happening.name == "noted" and isinstance(text, str):
            named = author if isinstance(author, str) and author else happening.journal.writer
            notes.append(Note(at=happening.at, author=named, text=text))
    return notes


def _notes_by_time(happening: Happening) -> tuple[float, str, int]:
    return (happening.at, happening.journal.file, happening.ordinal)
