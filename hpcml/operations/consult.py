"""Questions to the store, asked after it has caught up with the run directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.answers import Timeline
from hpcml.errors import StoreError
from hpcml.operations.collect import collect, opened
from hpcml.places import Places
from hpcml.records import Known, RunRecord, StoredEvent
from hpcml.rundir import RunDir
from hpcml.states import State
from hpcml.store import queries
from hpcml.store.conditions import Condition, Either, parse_condition
from hpcml.store.engine import Store
from hpcml.store.filters import Filter
from hpcml.store.polls import read_words
from hpcml.store.timelines import timelines


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which runs, in words: every condition must hold; empty means all."""

    references: Sequence[str] = ()  # ids, ends of ids, names
    experiment: str | None = None
    states: Sequence[str] = ()
    where: Sequence[str] = ()  # precision=tf32, val_accuracy>0.9
    submission: str | None = None  # the runs that were submitted together
    sort: str | None = None
    descending: bool = False
    limit: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no condition is given."""
        return not (self.references or self.experiment or self.states or self.where or self.submission)


def list_runs(places: Places, selection: Selection, *, columns: Sequence[str] = ()) -> list[RunRecord]:
    """Return the selected runs, oldest first unless sorted otherwise; a column that no run ever had is refused."""
    with opened(places) as store:
        collect(store, places)
        queries.check_keys(store, columns)
        return select(store, selection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One run with its events and timelines, what its scheduler said last and when, and the folder of its code."""

    record: RunRecord
    events: Sequence[StoredEvent]
    timelines: Sequence[Timeline]
    word: tuple[Known, float] | None
    code: str | None


def show_run(places: Places, reference: str) -> Shown:
    """Return everything that is known of one run."""
    with opened(places) as store:
        collect(store, places)
        record = queries.get_run(store, reference)
        code = RunDir(Path(record.path)).code
        return Shown(
            record=record,
            events=queries.events(store, record.uid),
            timelines=timelines(store, record.uid),
            word=read_words(store, [record.uid]).get(record.uid),
            code=str(code.resolve()) if code.exists() else None,
        )


def find(places: Places, references: Sequence[str]) -> list[tuple[RunRecord, RunDir]]:
    """Return the named runs with their directories; one that is not there refuses all."""
    return [(record, RunDir(Path(record.path))) for record in list_runs(places, Selection(references=references))]


def select(store: Store, selection: Selection) -> list[RunRecord]:
    """Return the selected runs as the store has them now: the named ones, less those that miss a condition."""
    named = {record.uid: record for record in (queries.get_run(store, word) for word in selection.references)}
    if named and selection == Selection(references=selection.references):
        return list(named.values())
    filters: list[Condition] = [parse_condition(text) for text in selection.where]
    if selection.submission is not None:
        filters.append(Filter(key="submission", op="=", value=selection.submission))
    if named:
        filters.append(Either(of=tuple(Filter(key="uid", op="=", value=uid) for uid in named)))
    return queries.find_runs(
        store,
        experiment=selection.experiment,
        states=[_state(word) for word in selection.states],
        filters=filters,
        sort=selection.sort,
        descending=selection.descending,
        limit=selection.limit,
    )


def _state(word: str) -> State:
    try:
        return State[word.upper()]
    except KeyError:
        raise StoreError(f"{word!r} is no state: choose {', '.join(State.__members__)}") from None
