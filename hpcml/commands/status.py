"""The state of runs as their schedulers tell it, all asked by one call and not too often, for ``hpcml status``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.commands import repairs
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.commands.submit.backends import Backends
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.record_keys import begun_at
from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.report.status import Standing
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.local.waiting import known_as_waiting, why_waiting
from hpcml.schedulers.names import THIS_MACHINE
from hpcml.store import scheduler_polls as polls
from hpcml.store.database import Database

POLL_INTERVAL_S = 60.0
_HURRY_S = 10.0  # instead, while only a scheduler can say why a run ended, or why a new one waits
_HURRIES_FOR_S = 300.0  # after that end, or that submission


def poll_interval_s(environ: Mapping[str, str]) -> float:
    """Return the least time between two questions to a scheduler, in seconds: HPCML_POLL_INTERVAL_S, or 60.

    It keeps loops of ``hpcml status`` from loading the scheduler. Raises `ConfigError` for what is no number of 0 or
    more.
    """
    text = environ.get("HPCML_POLL_INTERVAL_S", "").strip()
    if not text:
        return POLL_INTERVAL_S
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = -1.0
    if not 0 <= interval_s < float("inf"):
        raise ConfigError(f"HPCML_POLL_INTERVAL_S={text}: give seconds, 0 or more (60 unless it is set)")
    return interval_s


@dataclass(slots=True)
class SchedulersAsked:
    """The `Ask` of `collect` that queries the schedulers, each at most once in `interval_s` seconds.

    When each was asked last is kept in the store, so that all processes on it share the interval; answers are kept
    there too. A scheduler that does not answer is asked more rarely.
    """

    backends: Backends
    interval_s: float
    now: Callable[[], float] = time.time
    problems: list[str] = field(default_factory=list)  # of the last question: who did not answer, in one line each
    stuck: dict[str, str] = field(default_factory=dict)  # by uid, why runs wait whose jobs do not start by themselves

    def __call__(self, records: Sequence[RunRecord]) -> Mapping[str, Known | None]:
        """Return, by uid, what was said just now of the jobs on clusters; None for one that is forgotten.

        A run whose scheduler was not asked, because it was a moment ago, or did not answer is left out; `problems` has
        a line for each scheduler that did not answer. Nothing is raised for that.
        """
        tickets: defaultdict[str, dict[str, Ticket]] = defaultdict(dict)
        for record in records:
            if record.scheduler != THIS_MACHINE and record.job_id is not None:
                tickets[record.scheduler][record.uid] = ticket_of(record)
        self.problems = []
        if not tickets:
            return {}
        fresh: dict[str, Known | None] = {}
        for scheduler, asked in tickets.items():
            interval_s = self._interval_s([record for record in records if record.uid in asked])
            if polls.claim_poll(self.backends.places.home, scheduler, now=self.now(), interval_s=interval_s):
                fresh |= self._ask(scheduler, asked, interval_s)
            poll = polls.last_poll(self.backends.places.home, scheduler)
            if poll is not None and poll.problem is not None:
                next_at = max(poll.next_at, poll.asked_at + polls.wait_s(1, poll.failures, interval_s))
                left_s = max(0.0, next_at - self.now())
                self.problems.append(f"{poll.problem}; asked again in {left_s:.0f} s at the earliest")
        return fresh

    def _interval_s(self, records: Sequence[RunRecord]) -> float:
        """Return the least time between two questions about *records*.

        It is shorter after a signal from outside has ended one of them: that is mostly `scancel`, and whoever waits for
        the run would wait for minutes for two answers. And for one that was submitted a moment ago and never asked
        about: the last question was about others, and why it waits nobody else can say.
        """
        if self.interval_s <= _HURRY_S:
            return self.interval_s
        if any(self._is_recent(record.t_end) for record in records if not record.is_settled):
            return _HURRY_S
        new = [record.uid for record in records if self._is_recent(begun_at(record.submitted_at, record.t_start))]
        return _HURRY_S if new and len(polls.read_words(self.backends.places.home, new)) < len(new) else self.interval_s

    def _is_recent(self, at: float | None) -> bool:
        return at is not None and abs(self.now() - at) < _HURRIES_FOR_S

    def _ask(self, scheduler: str, asked: Mapping[str, Ticket], interval_s: float) -> dict[str, Known | None]:
        problem: str | None = f"{scheduler}: the last question was interrupted"
        calls, answered = 1, False
        try:
            answers = self.backends.by_name(scheduler).query(list(dict.fromkeys(asked.values())))
            problem = answers.trouble or None
            calls, answered = answers.calls, bool(answers.known) or not answers.unanswered
        except HpcmlError as error:  # no such program here: said in one line, and what is known stays
            problem = str(error)
            return {}
        finally:
            polls.record_poll(
                self.backends.places.home,
                scheduler,
                now=self.now(),
                calls=calls,
                answered=answered,
                interval_s=interval_s,
                problem=problem,
            )
        fresh = {uid: answers.known.get(ticket) for uid, ticket in asked.items() if ticket not in answers.unanswered}
        said = {uid: known for uid, known in fresh.items() if known is not None}
        self.stuck = {uid: why for uid, why in self.stuck.items() if uid not in fresh}
        self.stuck |= {uid: known.reason or known.raw for uid, known in said.items() if known.is_stuck}
        polls.keep_words(self.backends.places.home, said, at=self.now())
        return fresh


def ticket_of(record: RunRecord) -> Ticket:
    """Return the ticket that *record* was submitted under; it must have one."""
    assert record.job_id is not None
    return Ticket(
        scheduler=record.scheduler,
        job_id=record.job_id,
        array_index=record.array_index,
        job_name=record.job_name,
        job_cluster=record.job_cluster,
        is_shared=record.is_shared,
    )


def standings(
    places: Places, selection: Selection, backends: Backends, interval_s: float
) -> tuple[list[Standing], list[str]]:
    """Return the selected runs, or where nothing is all that had not ended before, and a line for each missing answer.

    A line says what `hpcml sync` would repair, too.
    Schedulers are asked if *interval_s* seconds have passed since the last question. Raises `StoreError` for a
    reference that means no run or several, and where the store is read-only.
    """
    with opened(places) as store:
        asked = SchedulersAsked(backends=backends, interval_s=interval_s)
        found = look(store, places, selection, asked)
        lines = [f"{line}; what is shown is what was known before" for line in asked.problems]
        lines += [*repairs.of_queues(places), *repairs.of_cancelled(store, places)]
        return found, [*lines, *repairs.of_failed(places, repairs.to_retry(store, places))]


def look(store: Database, places: Places, selection: Selection, asked: SchedulersAsked) -> list[Standing]:
    """Return the same from a store that is open, after one question to *asked*; for commands that look repeatedly."""
    runs = collect(store, places, asked).runs
    if not selection.is_empty:
        return with_waits(standing_of(places.home, select(store, selection)), places)
    return with_waits(standing_of(places.home, runs), places)


def with_waits(standings: Sequence[Standing], places: Places) -> list[Standing]:
    """Return *standings*, with what those lack that wait on this machine."""
    tickets = {
        one.record.uid: ticket_of(one.record)
        for one in standings
        if one.record.scheduler == "local" and one.record.state is State.PENDING and one.record.job_id is not None
    }
    if not tickets:
        return list(standings)
    lacking = why_waiting(places.submissions, list(tickets.values()))
    waits = {uid: known_as_waiting(lacking[ticket]) for uid, ticket in tickets.items() if ticket in lacking}
    return [replace(one, known=waits.get(one.record.uid, one.known)) for one in standings]


def standing_of(home: Path, records: Sequence[RunRecord]) -> list[Standing]:
    """Return *records*, in order, each with its scheduler's last answer as *home* has it; nobody is asked."""
    words = polls.read_words(
        home, [record.uid for record in records if not (record.state.is_final and record.is_settled)]
    )
    answers = [words.get(record.uid, (None, None)) for record in records]
    return [
        Standing(record=record, known=known, said_at=at) for record, (known, at) in zip(records, answers, strict=True)
    ]
