"""Where runs stand with their schedulers: asked once for all of them, politely, and remembered."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.errors import ConfigError, HpcmlError
from hpcml.operations.backends import Backends
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.records import Known, RunRecord
from hpcml.rundir import RunDir
from hpcml.schedulers.submitter import Answers, Ticket
from hpcml.states import State
from hpcml.store import homes
from hpcml.store.engine import Store
from hpcml.store.polls import claim_poll, keep_words, last_poll, read_words, record_poll, wait_s

POLL_INTERVAL_S = 60.0
_WISH_AGE_S = 30.0  # what was cancelled so recently is on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A run, what its scheduler said of it last, and when (unix seconds); None where it was never asked."""

    record: RunRecord
    known: Known | None
    said_at: float | None


def poll_interval_s(environ: Mapping[str, str]) -> float:
    """Return how long one call of a scheduler's program keeps from the next: HPCML_POLL_INTERVAL_S, or a minute."""
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
    """Asks the schedulers of the runs given to it, each if it is time to; what they say is kept in the store."""

    store: Store
    backends: Backends
    interval_s: float
    now: Callable[[], float] = time.time
    problems: list[str] = field(default_factory=list)  # of the last question: who did not answer, in one line each

    def __call__(self, records: Sequence[RunRecord]) -> Mapping[str, Known | None]:
        """Return, by uid, what was said just now of the jobs on Slurm and PBS; None for one that is forgotten.

        A run whose scheduler was not asked, because it was a moment ago, or did not answer is left out.
        """
        tickets: defaultdict[str, dict[str, Ticket]] = defaultdict(dict)
        for record in records:
            if record.scheduler in ("slurm", "pbs") and record.job_id is not None:
                tickets[record.scheduler][record.uid] = ticket_of(record)
        self.problems = []
        fresh: dict[str, Known | None] = {}
        for scheduler, asked in tickets.items():
            desk = self._desk(scheduler)
            if claim_poll(self.store, desk, now=self.now(), interval_s=self.interval_s):
                fresh |= self._ask(scheduler, asked, [record for record in records if record.uid in asked])
            poll = last_poll(self.store, desk)
            if poll is not None and poll.problem is not None:
                next_at = max(poll.next_at, poll.asked_at + wait_s(1, poll.failures, self.interval_s))
                left_s = max(0.0, next_at - self.now())
                self.problems.append(f"{poll.problem}; asked again in {left_s:.0f} s at the earliest")
        return fresh

    def _ask(
        self, scheduler: str, asked: Mapping[str, Ticket], records: Sequence[RunRecord]
    ) -> dict[str, Known | None]:
        problem: str | None = f"{scheduler}: the last question was interrupted"
        calls, answered = 1, False
        try:
            answers = self.backends.by_name(scheduler).query(list(dict.fromkeys(asked.values())))
            told_again, trouble = self._cancel_again(scheduler, asked, answers, records)
            problem = "; ".join(dict.fromkeys(answers.unanswered.values())) or trouble
            calls, answered = answers.calls + told_again, bool(answers.known) or not answers.unanswered
        except HpcmlError as error:  # no such program here: said in one line, and what is known stays
            problem = str(error)
            return {}
        finally:
            record_poll(
                self.store,
                self._desk(scheduler),
                now=self.now(),
                calls=calls,
                answered=answered,
                interval_s=self.interval_s,
                problem=problem,
            )
        fresh = {uid: answers.known.get(ticket) for uid, ticket in asked.items() if ticket not in answers.unanswered}
        said = {uid: known for uid, known in fresh.items() if known is not None}
        keep_words(self.store, said, at=self.now())
        return fresh

    def _desk(self, scheduler: str) -> str:
        """Return what polls of *scheduler* go by: where several users fill the store, each asks for his own runs."""
        home = homes.mark_of(self.backends.places.runs) if self.store.is_shared else None
        return scheduler if home is None else f"{scheduler} for {home}"

    def _cancel_again(
        self, scheduler: str, asked: Mapping[str, Ticket], answers: Answers, records: Sequence[RunRecord]
    ) -> tuple[int, str | None]:
        """Repeat the wish for jobs that go on although they were cancelled; return the calls made, and what went wrong.

        A scheduler may accept a cancellation and lose it, or have been away when it was wanted.
        """
        wanted: list[Ticket] = []
        for record in records:
            known = answers.known.get(asked[record.uid])
            if known is not None and not known.state.is_final and not record.is_shared and self._was_cancelled(record):
                wanted.append(asked[record.uid])
        if not wanted:
            return 0, None
        wanted = list(dict.fromkeys(wanted))
        try:
            self.backends.by_name(scheduler).cancel(wanted)
        except HpcmlError as error:
            return len(wanted), f"{len(wanted)} cancelled jobs go on: {error}"
        return len(wanted), None

    def _was_cancelled(self, record: RunRecord) -> bool:
        try:
            marked_at = RunDir(Path(record.path)).cancel_mark.stat().st_mtime
        except OSError:
            return False
        return self.now() - marked_at > _WISH_AGE_S


def ticket_of(record: RunRecord) -> Ticket:
    """Return the ticket that *record* was submitted under; it must have one."""
    assert record.job_id is not None
    return Ticket(
        scheduler=record.scheduler,
        job_id=record.job_id,
        array_index=record.array_index,
        job_name=record.job_name,
        is_shared=record.is_shared,
    )


def standings(
    places: Places, references: Sequence[str], backends: Backends, interval_s: float
) -> tuple[list[Standing], list[str]]:
    """Return the runs named, or all that had not ended before this question, and who gave no answer."""
    with opened(places) as store:
        asked = SchedulersAsked(store=store, backends=backends, interval_s=interval_s)
        return look(store, places, references, asked), asked.problems


def look(store: Store, places: Places, references: Sequence[str], asked: SchedulersAsked) -> list[Standing]:
    """Return the standing of the runs named, or of all that had not ended before, after one question."""
    runs = collect(store, places, asked).runs
    return standing_of(store, select(store, Selection(references=references)) if references else runs)


def standing_of(store: Store, records: Sequence[RunRecord]) -> list[Standing]:
    """Return *records* with what was said of each last; of an end that is settled nothing more need be said."""
    words = read_words(store, [record.uid for record in records])
    standings: list[Standing] = []
    for record in records:
        known, said_at = words.get(record.uid, (None, None))
        is_open = record.state in (State.PENDING, State.RUNNING) or not record.is_settled
        standings.append(
            Standing(record=record, known=known if is_open else None, said_at=said_at if is_open else None)
        )
    return standings
