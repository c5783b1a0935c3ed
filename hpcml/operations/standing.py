"""Where runs stand with their schedulers, asked once for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcml.operations.backends import Backends
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.records import RunRecord
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.submitter import Known, Ticket
from hpcml.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A run, and what its scheduler says of it; None for a run that it was not asked about, or does not know."""

    record: RunRecord
    known: Known | None


@dataclass(slots=True)
class SchedulersAsked:
    """Asks the schedulers of the runs given to it, remembers what they said and who did not answer."""

    backends: Backends
    said: dict[str, Known] = field(default_factory=dict)  # by uid
    unanswered: list[str] = field(default_factory=list)

    def __call__(self, records: Sequence[RunRecord]) -> Mapping[str, Known | None]:
        """Return, by uid, what is known of the jobs on Slurm and PBS; None for one that is forgotten."""
        tickets: defaultdict[str, dict[Ticket, str]] = defaultdict(dict)
        for record in records:
            if record.scheduler in ("slurm", "pbs") and record.job_id is not None:
                tickets[record.scheduler][ticket_of(record)] = record.uid
        answers: dict[str, Known | None] = {}
        for scheduler, asked in tickets.items():
            try:
                known = self.backends.by_name(scheduler).query(list(asked))
            except NoAnswerError as error:
                self.unanswered.append(str(error))
                continue
            for ticket, uid in asked.items():
                answers[uid] = known.get(ticket)
        self.said |= {uid: known for uid, known in answers.items() if known is not None}
        return answers


def ticket_of(record: RunRecord) -> Ticket:
    """Return the ticket that *record* was submitted under; it must have one."""
    assert record.job_id is not None
    return Ticket(scheduler=record.scheduler, job_id=record.job_id, array_index=record.array_index)


def standings(places: Places, references: Sequence[str], backends: Backends) -> tuple[list[Standing], list[str]]:
    """Return the runs named, or all that had not ended before this question, and who gave no answer."""
    asked = SchedulersAsked(backends)
    with opened(places) as store:
        collect(store, places)
        open_states = (State.PENDING.value, State.RUNNING.value)
        selection = Selection(references=references) if references else Selection(states=open_states)
        before = [record.uid for record in select(store, selection)]
        collect(store, places, asked)
        records = select(store, Selection(references=before)) if before else []
    return [Standing(record=record, known=asked.said.get(record.uid)) for record in records], asked.unanswered
