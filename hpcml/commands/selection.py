"""The selection of recorded runs that most commands begin with: its conditions, and the runs that meet them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands.collect import collect, opened
from hpcml.errors import ConfigError, StoreError
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.spelling import did_you_mean
from hpcml.store import query
from hpcml.store.database import Database
from hpcml.store.keys import unmet_words
from hpcml.store.where import Condition, Either, Filter, parse_condition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which runs are meant: every condition must hold; without any, all runs.

    `references` are ids, ends of ids or names, as `query.runs_meant` takes them; `where` are conditions such as
    ``val_accuracy>0.9``; `limit` is applied after sorting, and keeps the newest where nothing is sorted by.
    """

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


def find(places: Places, references: Sequence[str]) -> list[tuple[RunRecord, RunDir]]:
    """Return the named runs with their directories, in the order of *references*; each run once.

    Raises `StoreError` for a reference that means no run or several. The directories need not exist.
    """
    with opened(places) as store:
        collect(store, places)
        records = select(store, Selection(references=references))
    return [(record, RunDir(Path(record.path))) for record in records]


def select(
    store: Database, selection: Selection, *, settings: Collection[str] | None = None, refusal: str | None = None
) -> list[RunRecord]:
    """Return the selected runs as the store has them now; nothing is read in before.

    Named runs stand in the order of their names, unless there are other conditions. Raises `StoreError` for names that
    mean no run or several, unknown states, and conditions that cannot be understood. Where nothing is found for a value
    that no run has, a warning says so; with a *refusal* `ConfigError` is raised, which says both. With *settings* the
    records are those of a list, as `query.find_runs` says, unless runs are named.
    """
    named = {record.uid: record for word in selection.references for record in query.runs_meant(store, word)}
    if named and selection == Selection(references=selection.references):
        return list(named.values())
    filters: list[Condition] = [parse_condition(text) for text in selection.where]
    if selection.submission is not None:
        filters.append(Filter(key="submission", op="=", value=selection.submission))
    if named:
        filters.append(Either(of=tuple(Filter(key="uid", op="=", value=uid) for uid in named)))
    found = query.find_runs(
        store,
        experiment=selection.experiment,
        states=[_state(word) for word in selection.states],
        filters=filters,
        sort=selection.sort,
        descending=selection.descending,
        limit=selection.limit,
        settings=settings,
    )
    if not found:
        told = unmet_words(store, experiment=selection.experiment, conditions=filters)
        if refusal is not None:
            raise ConfigError("; ".join([refusal, *told]))
        for line in told:
            log.warning("%s", line)
    return found


def not_done_since(store: Database, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return those whose configuration no later run has completed, or is about to."""
    done = done_since(store, records)
    return [record for record in records if record.uid not in done]


def done_since(store: Database, records: Sequence[RunRecord]) -> dict[str, tuple[str, State]]:
    """Return, by uid, the later run of the same configuration that has completed, waits or runs, with its state."""
    good = (State.COMPLETED, State.PENDING, State.RUNNING)
    known = query.runs_by_spec(store, {record.spec_hash for record in records})
    found = {
        record.uid: [(uid, state) for uid, state in known.get(record.spec_hash, []) if uid > record.uid]
        for record in records
    }
    later = {uid: [(other, state) for other, state in runs if state in good] for uid, runs in found.items()}
    return {uid: runs[-1] for uid, runs in later.items() if runs}


def _state(word: str) -> State:
    try:
        return State[word.upper()]
    except KeyError:
        guess = did_you_mean(word, State.__members__) or f"choose {', '.join(State.__members__)}"
        raise StoreError(f"{word!r} is no state: {guess}") from None
