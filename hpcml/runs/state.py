"""The state of a run, derived from the events in its journals: the one place where that is decided.

A `RunFold` takes events one by one as they are read, in any order and from any number of files; its result depends only
on the set of events. It keeps one `AttemptFold` per attempt. The store, `hpcml status` and the agent use it.
docs/journal.md, section "Attempts", states the rule in words.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hpcml.model.records import StoredEvent
from hpcml.model.state import State
from hpcml.runs.journal import USER, Chunk, Event, Header, read_on
from hpcml.runs.layout import RunDir, attempt_of, is_by_rank, journal_names

_LARGEST = 2**31  # of exit codes and array indices, and what every database can keep


PRINTED = "what was printed"  # the place of metrics that rules pick, in METRICS_TROUBLE


class EventName(StrEnum):
    """The events that tell the progress of a run; docs/journal.md lists their details."""

    SUBMITTED = "submitted"
    SUBMISSION_FAILED = "submission_failed"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_INTERRUPTED = "attempt_interrupted"
    ATTEMPT_ENDING = "attempt_ending"  # written first, since the agent may be killed before its program has ended
    LOST = "lost"
    CANCELLED = "cancelled"
    ENDED_BY_SCHEDULER = "ended_by_scheduler"
    ATTEMPT_ENDED = "attempt_ended"
    CHECKPOINT = "checkpoint"  # decides nothing; whether the next attempt goes on from this one
    SHARED_CHANGED = "shared_changed"  # decides nothing; what runs share looks otherwise than before this one
    LEFT_BEHIND = "left_behind"  # decides nothing; what was still at work when the program had ended, and was killed
    FILES_WRITTEN = "files_written"  # decides nothing; what the program left in its working directory
    METRICS_TROUBLE = (
        "metrics_trouble"  # decides nothing; what was not read of metrics that the program wrote or printed
    )
    LEFT = "attempt_left"  # decides nothing: a job did not start the program, for another does, or has done it


# Weight of an event within one attempt, from high to low: an outcome that the agent saw, one inferred from outside, an
# end whose cause the agent cannot know, a start, a submission.
DECISIVE: Mapping[str, int] = {
    EventName.ATTEMPT_ENDED: 7,
    EventName.ENDED_BY_SCHEDULER: 6,  # what the scheduler says of a job whose agent could not say it
    EventName.CANCELLED: 6,
    EventName.LOST: 5,
    EventName.ATTEMPT_INTERRUPTED: 4,  # by a signal from outside: why, and whether it runs again, the scheduler knows
    EventName.ATTEMPT_ENDING: 3,  # the same, before the end: nothing else is known where the agent was killed then
    EventName.ATTEMPT_STARTED: 2,
    EventName.SUBMISSION_FAILED: 1,  # and yet its job.sh may be submitted by hand
    EventName.SUBMITTED: 0,  # in an attempt after the first: it waits to be run again
}
# Schedulers that start a job once more of whose end they did not hear: such a job leaves a run that it has ended alone
RESTARTS_UNHEARD = frozenset({"pbs", "lsf"})
_ALSO_KEPT = frozenset({EventName.CHECKPOINT, EventName.LEFT})
UNSETTLED = frozenset({EventName.ATTEMPT_INTERRUPTED, EventName.ATTEMPT_ENDING})  # only the scheduler knows why
SEEN_ENDS = frozenset({EventName.ATTEMPT_ENDED, *UNSETTLED})  # that an agent lived to see: when, and after how long
FROM_OUTSIDE = frozenset(
    {EventName.LOST, EventName.CANCELLED, EventName.ENDED_BY_SCHEDULER, EventName.SUBMISSION_FAILED}
)  # said of an attempt by somebody else than its agents
_SAID_BY_NAME: Mapping[str, State] = {
    EventName.LOST: State.LOST,
    EventName.CANCELLED: State.CANCELLED,
    EventName.ATTEMPT_STARTED: State.RUNNING,
    EventName.SUBMITTED: State.PENDING,
}


def state_after(event: str, details: Mapping[str, Any]) -> State:
    """Return the state of a run after the decisive *event*; an outcome with an unknown state counts as FAILED."""
    if event in _SAID_BY_NAME:
        return _SAID_BY_NAME[event]
    word = str(details.get("state"))
    return State(word) if word in State.__members__ else State.FAILED


def moment_ms(t0: float, t_s: float) -> int:
    """Return the time of a record in whole milliseconds of Unix time; *t0* and *t_s* are in seconds.

    Rounded here for all callers: of two failures the earlier counts, and the store keeps milliseconds.
    """
    return round(t0 * 1000 + t_s * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One event of a run, with the attempt and the writer whose journal it is in."""

    attempt: int
    writer: str  # as the journal's header has it: launch | agent | agent<n> | rank<r> | collect | ...
    at_ms: int  # from any moment, the same for all events of the run
    name: str
    details: Mapping[str, Any]

    @classmethod
    def of(cls, event: Event, header: Header) -> RunEvent:
        """Return *event* of the journal that begins with *header*; the time is Unix time."""
        at_ms = moment_ms(header.t0, event.t_s)
        return cls(attempt=header.attempt, writer=header.writer, at_ms=at_ms, name=event.name, details=event.details)

    @property
    def state(self) -> State:
        """The state of the run if this event is the deciding one."""
        return state_after(self.name, self.details)

    @property
    def reason(self) -> str | None:
        """The reason for that state in one line, or why a waiting run was queued again; None where none was given."""
        if self.name == EventName.ATTEMPT_STARTED:
            return None
        if self.name == EventName.SUBMITTED:
            return _text(self.details.get("why"))
        reason, signal = _text(self.details.get("reason")), _integer(self.details.get("signal"))
        return reason if reason or signal is None else f"signal {signal}"

    @property
    def exit_code(self) -> int | None:
        """The exit code of the program; None where no agent saw one."""
        return _integer(self.details.get("exit_code"))

    @property
    def wall_s(self) -> float | None:
        """The duration of the program in seconds, as the agent or the scheduler measured it; None where neither did."""
        wall_s = self.details.get("wall_s")
        return wall_s if isinstance(wall_s, float) and math.isfinite(wall_s) else _integer(wall_s)

    @property
    def is_checkpointed(self) -> bool:
        """Whether the program stopped at a checkpoint, to be continued later."""
        return self.details.get("checkpointed") is True

    @property
    def is_by_agent_again(self) -> bool:
        """Whether this is the event of an agent that puts its run back into the queue."""
        return self.name == EventName.SUBMITTED and self.details.get("by") == "agent"

    @property
    def is_a_helpers(self) -> bool:
        """Whether a node other than the first reports start or success, which only the first node's report decides."""
        is_helper = re.fullmatch(r"agent\d+", self.writer) is not None
        return is_helper and self.state in (State.RUNNING, State.COMPLETED)

    def outweighs(self, other: RunEvent) -> bool:
        """Whether this event rather than *other* decides an attempt.

        First the kind of event (`DECISIVE`) counts; of several agents' outcomes, the earliest that is no success. Ties
        are broken by the content of the events, never by the order in which they were read.
        """
        mine, others = self._weight, other._weight
        return mine > others if mine != others else self._words > other._words

    @property
    def _weight(self) -> tuple[int, bool, int]:
        return (DECISIVE[self.name], self.state is not State.COMPLETED, -self.at_ms)

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key for events of one kind: by attempt, then by time."""
        return (self.attempt, self.at_ms, *self._words)

    @property
    def _words(self) -> tuple[str, ...]:
        return (self.writer, self.name, json.dumps(self.details, sort_keys=True, default=repr))


def told_by(event: StoredEvent) -> RunEvent:
    """Return the `RunEvent` for an event from the store, for use in a `RunFold`."""
    at_ms = round(event.t_s * 1000)
    return RunEvent(attempt=event.attempt, writer=event.writer, at_ms=at_ms, name=event.name, details=event.details)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJob:
    """The scheduler's job that a run belongs to, as far as its events name it."""

    job_id: str
    array_index: int | None
    job_name: str | None
    job_cluster: str | None  # Slurm: which of the site's clusters has it; empty: that of this machine's configuration
    is_shared: bool  # the job runs others too


@dataclass(slots=True)
class AttemptFold:
    """The events of one attempt and what follows from them."""

    number: int
    decision: RunEvent | None = None  # the event that says how the attempt stands; None: it waits
    end_seen: RunEvent | None = None  # the end as its agents saw it, whoever says why; None where none lived to see it
    _submissions: list[RunEvent] = field(default_factory=list)
    _starts: list[RunEvent] = field(default_factory=list)
    _checkpoints: list[RunEvent] = field(default_factory=list)
    _ends: list[RunEvent] = field(default_factory=list)
    leaves: list[RunEvent] = field(default_factory=list)  # jobs that came for it and left it alone
    is_judged: bool = False  # somebody else than its agents said how it ended

    @property
    def state(self) -> State:
        """The state of the attempt; PENDING while there is no decisive event."""
        return State.PENDING if self.decision is None else self.decision.state

    @property
    def submissions(self) -> list[RunEvent]:
        """The events by which the attempt was queued, by time."""
        return _ordered(self._submissions)

    @property
    def starts(self) -> list[RunEvent]:
        """The events by which the agents of its nodes started, by time."""
        return _ordered(self._starts)

    @property
    def unended(self) -> list[RunEvent]:
        """The starts of those agents that told no end: they are at work, or were killed."""
        ended = {end.writer for end in self.told_ends}
        return [start for start in self.starts if start.writer not in ended]

    @property
    def unheard(self) -> list[RunEvent]:
        """The starts of those agents that told neither an end nor that they were asked to end: killed, or at work."""
        heard = {end.writer for end in self._ends}
        return [start for start in self.starts if start.writer not in heard]

    @property
    def told_ends(self) -> list[RunEvent]:
        """The ends that its agents told, by time: of each the weightiest."""
        found: dict[str, RunEvent] = {}
        for end in self._ends:
            if end.name != EventName.ATTEMPT_ENDING:
                found[end.writer] = _weightier(found.get(end.writer), end)
        return _ordered(list(found.values()))

    @property
    def is_void(self) -> bool:
        """Whether its job left the run alone and no other took it up: what was submitted for it counts for nothing."""
        return bool(self.leaves) and not self._starts

    @property
    def has_ended(self) -> bool:
        """Whether the agent of any node reported a final end."""
        return any(end.name == EventName.ATTEMPT_ENDED for end in self._ends)

    @property
    def may_go_on(self) -> bool:
        """Whether it stopped at a checkpoint, so that its agent may be requeueing the run at this moment."""
        return any(end.name == EventName.ATTEMPT_ENDED and end.is_checkpointed for end in self._ends)

    @property
    def began_ms(self) -> int | None:
        """The time when the first of its agents started; None where none did."""
        return min((start.at_ms for start in self._starts), default=None)

    @property
    def has_begun(self) -> bool:
        """Whether an agent of it started, or saw it end."""
        return self.began_ms is not None or self.end_seen is not None

    @property
    def ended_ms(self) -> int | None:
        """The time of its end, by its agent or its scheduler; None where only the time of its discovery is known."""
        if self.end_seen is not None:
            return self.end_seen.at_ms
        return None if self.began_ms is None or self.wall_s is None else self.began_ms + round(self.wall_s * 1000)

    @property
    def wall_s(self) -> float | None:
        """How long its program ran, in seconds, by its agent, or else its job, by the scheduler; None: nobody knows."""
        if self.end_seen is not None:
            return self.end_seen.wall_s
        is_told = self.decision is not None and self.decision.name == EventName.ENDED_BY_SCHEDULER
        return self.decision.wall_s if self.decision is not None and is_told else None

    @property
    def hosts(self) -> list[str]:
        """The host names of its nodes, without repetition, in the order of the node numbers."""
        numbered = sorted(self._starts, key=lambda start: (_integer(start.details.get("node")) or 0, start.order))
        return list(dict.fromkeys(str(start.details.get("hostname") or "?") for start in numbered))

    @property
    def checkpoint_steps(self) -> list[int]:
        """The steps of its checkpoints, in the order in which they were reported."""
        steps = (told.details.get("step") for told in _ordered(self._checkpoints))
        return [step for step in steps if isinstance(step, int)]

    @property
    def left_checkpoint(self) -> bool:
        """Whether the next attempt can continue from a checkpoint of this one."""
        return bool(self._checkpoints) or any(end.is_checkpointed for end in self._ends)

    @property
    def is_requeue(self) -> bool:
        """Whether an agent requeued the run for this attempt; it may report that twice, then with the job id."""
        return any(told.is_by_agent_again for told in self._submissions)

    @property
    def jobs(self) -> list[RunEvent]:
        """The events that name a job, the most reliable last: an agent's own job counts more than the submitter's."""
        named = [told for told in (*self._submissions, *self._starts) if told.details.get("job_id") is not None]
        return _ordered(named, last=EventName.ATTEMPT_STARTED)

    def take(self, told: RunEvent) -> None:
        """Add an event of this attempt."""
        if told.name == EventName.CHECKPOINT:
            self._checkpoints.append(told)
            return
        if told.name == EventName.LEFT:
            self.leaves.append(told)
            return
        if told.name == EventName.SUBMITTED:
            self._submissions.append(told)
        elif told.name == EventName.ATTEMPT_STARTED:
            self._starts.append(told)
        elif told.name in SEEN_ENDS:
            self._ends.append(told)
        self.is_judged |= told.name in FROM_OUTSIDE
        if told.is_a_helpers:
            return
        self.decision = _weightier(self.decision, told)
        if told.name in SEEN_ENDS:
            self.end_seen = _weightier(self.end_seen, told)


@dataclass(slots=True)
class RunFold:
    """The state of one run, from the events so far: add events as they are read, ask at any time.

        >>> from dataclasses import replace
        >>> fold = RunFold()
        >>> end = RunEvent(attempt=0, writer="agent", at_ms=0, name="attempt_ended", details={"state": "COMPLETED"})
        >>> fold.take(end)
        >>> fold.take(replace(end, writer="agent1", at_ms=9, details={"state": "FAILED"}))
        >>> fold.state  # the same in whatever order they came
        <State.FAILED: 'FAILED'>

    The latest attempt with a decisive event determines the state, and within it the event of the largest weight; an
    attempt that its job left alone does not count. An outcome is never taken back. Events of users (tags, notes; the
    writer "user") change nothing.
    """

    _attempts: dict[int, AttemptFold] = field(default_factory=dict)
    _deciding: AttemptFold | None = None
    _is_known: bool = True  # whether `_deciding` is up to date

    @classmethod
    def of(cls, events: Iterable[RunEvent]) -> RunFold:
        """Return the fold of all *events*."""
        fold = cls()
        for told in events:
            fold.take(told)
        return fold

    def begin(self, attempt: int, writer: str) -> None:
        """Record that *writer* has a journal of *attempt*, which may hold no events yet."""
        if writer != USER and attempt not in self._attempts:
            self._attempts[attempt] = AttemptFold(attempt)

    def take(self, told: RunEvent) -> None:
        """Add an event; one that says nothing about the run's progress only counts as a sign of its attempt."""
        if told.writer == USER:
            return
        self.begin(told.attempt, told.writer)
        if told.name in DECISIVE or told.name in _ALSO_KEPT:
            self._attempts[told.attempt].take(told)
            self._is_known = False

    def __iter__(self) -> Iterator[AttemptFold]:
        """Yield the attempts by number."""
        return (self._attempts[number] for number in sorted(self._attempts))

    def state_of(self, attempt: AttemptFold) -> State:
        """The state of one of the attempts: LOST where another has begun since and nobody told how it ended."""
        is_over = self.deciding is not None and attempt.number < self.deciding.number
        return State.LOST if is_over and not attempt.state.is_final else attempt.state

    @property
    def attempt(self) -> int:
        """The number of the latest attempt that has a journal and is not void; 0 without any."""
        return max((one.number for one in self._attempts.values() if not one.is_void), default=0)

    @property
    def deciding(self) -> AttemptFold | None:
        """The attempt that determines the state; None while no attempt has a decisive event."""
        if not self._is_known:
            decided = (one for one in self._attempts.values() if one.decision is not None and not one.is_void)
            self._deciding = max(decided, key=operator.attrgetter("number"), default=None)
            self._is_known = True
        return self._deciding

    @property
    def decision(self) -> RunEvent | None:
        """The event that determines the state; None where there is none, so that the run is PENDING."""
        return None if self.deciding is None else self.deciding.decision

    @property
    def state(self) -> State:
        """The state of the run."""
        return State.PENDING if self.decision is None else self.decision.state

    def counting(self, starts: Iterable[int] | None = None) -> list[int]:
        """Return the attempts whose work counts, in order: the one that decided, and those that it continues.

        An attempt continues the one before if that left a checkpoint, and so on. *starts* are those that did any work,
        by default those that are told to have begun; attempts after the one that decided are left out.
        """
        begun = [one.number for one in self if one.has_begun] if starts is None else starts
        decided = None if self.deciding is None else self.deciding.number
        left_checkpoint = {one.number for one in self if one.left_checkpoint}
        working: list[int] = []
        for attempt in sorted((at for at in begun if decided is None or at <= decided), reverse=True):
            is_last = attempt == decided or (decided is None and not working)
            if not is_last and attempt not in left_checkpoint:
                break
            working.insert(0, attempt)
        return working

    @property
    def is_settled(self) -> bool:
        """Whether the cause of the end is known.

        False while a signal from outside has ended the run and the scheduler has not been asked for the reason.
        """
        return self.decision is None or self.decision.name not in UNSETTLED

    @property
    def may_go_on(self) -> bool:
        """Whether the run stopped at a checkpoint, so that its agent may be requeueing it at this moment."""
        is_seen = self.decision is not None and self.decision.name == EventName.ATTEMPT_ENDED
        return is_seen and self.deciding is not None and self.deciding.may_go_on

    @property
    def reason(self) -> str | None:
        """The reason for the state in one line; None where none was given."""
        return None if self.decision is None else self.decision.reason

    @property
    def requeues(self) -> int:
        """How often agents have put the run back into the queue."""
        return sum(attempt.is_requeue for attempt in self)

    @property
    def scheduler(self) -> str | None:
        """The name of the scheduler of the latest submission; None where no submission names one."""
        named = [told for one in self for told in one.submissions if told.details.get("scheduler") is not None]
        return _text(named[-1].details["scheduler"]) if named else None

    @property
    def job(self) -> NamedJob | None:
        """The latest job that an attempt names, which may have been submitted by hand; None without any.

        All events about that job contribute: the submitter knows the job's name, the agent its id.
        """
        named = [told for one in self if not one.is_void for told in one.jobs][::-1]
        if not named:
            return None
        job_id, array_index = identity = _identity(named[0])
        of_job = [told.details for told in named if _identity(told) == identity]
        return NamedJob(
            job_id=job_id,
            array_index=array_index,
            job_name=next((name for details in of_job if (name := _text(details.get("job_name"))) is not None), None),
            job_cluster=next((where for details in of_job if (where := details.get("job_cluster")) is not None), None),
            is_shared=any(details.get("pack") is not None for details in of_job),
        )


def read_fold(run_dir: RunDir) -> RunFold:
    """Return the fold of all that the journals of *run_dir* say, but for those of ranks, which may be large.

    A journal without a readable header says nothing, but its attempt counts as begun, by its name: whoever looks for
    the number of the next attempt must not take that one.
    """
    return fold_of(read_journals(run_dir))


def read_journals(run_dir: RunDir, before: Mapping[str, Chunk] | None = None) -> dict[str, Chunk]:
    """Return what the journals of *run_dir* say, by the files' names and in their order, but for those of ranks.

    Of what was read *before* only that is read again which has grown since.
    """
    before, folder = before or {}, str(run_dir.journals)
    return {
        name: read_on(f"{folder}/{name}", before.get(name)) for name in journal_names(folder) if not is_by_rank(name)
    }


def fold_of(journals: Mapping[str, Chunk]) -> RunFold:
    """Return the fold of *journals* (`read_journals`); what `read_fold` gives where they were read just now."""
    told = RunFold()
    for name, chunk in journals.items():
        if (header := chunk.header) is None:
            if (named := attempt_of(name)) is not None:
                told.begin(named, "")
            continue
        told.begin(header.attempt, header.writer)
        for record in chunk.records:
            if isinstance(record, Event):
                told.take(RunEvent.of(record, header))
    return told


def _weightier(known: RunEvent | None, told: RunEvent) -> RunEvent:
    return told if known is None or told.outweighs(known) else known


def _ordered(found: list[RunEvent], *, last: str | None = None) -> list[RunEvent]:
    """Return events sorted by their `order`; behind the others those of the name *last*."""
    if len(found) < 2:
        return list(found)
    times = [(told.name == last, told.attempt, told.at_ms) for told in found]
    if len(set(times)) < len(times):  # else their words decide nothing, and are not spelt out
        return sorted(found, key=lambda told: (told.name == last, told.order))
    return [told for _, told in sorted(zip(times, found, strict=True), key=operator.itemgetter(0))]


def _identity(told: RunEvent) -> tuple[str, int | None]:
    return (str(told.details["job_id"]), _integer(told.details.get("array_index")))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST else None
