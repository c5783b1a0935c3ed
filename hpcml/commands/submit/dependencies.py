"""What runs wait for: runs and experiments that `resources.dependency` names, turned into what their scheduler knows.

A reference to a run is a whole id, an end of one, a name, or ``@1`` for the newest; ``@-1`` stands for all runs of the
last submission, an experiment for all of its runs that have not ended, and for those that did and were not made good by
a later one. What looks like a job's id
is the scheduler's. Where what is waited for can never happen, nothing is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import not_done_since
from hpcml.commands.submit.planned import Planned
from hpcml.errors import ConfigError, StoreError
from hpcml.model.cluster import SchedulerName
from hpcml.model.records import RunRecord, spell_job
from hpcml.model.run import Run
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.dependency import WORDS, Clause, Outlook, clauses_of, never, outlook
from hpcml.schedulers.registry import backend_of
from hpcml.store.database import Database
from hpcml.store.query import find_runs, runs_meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a run waits for: *runs* with the whole ids of runs, and *jobs* with the jobs of those that are left."""

    runs: str
    jobs: str
    notes: Sequence[str] = field(default_factory=tuple)  # what its scheduler makes of it, where that is more


def resolve_all(planned: Sequence[Planned], places: Places) -> tuple[list[Planned], list[str]]:
    """Return *planned* with their dependencies resolved, and each line there is to tell of them once.

    The store is opened only where a run names one. Raises `ConfigError` for a reference that means no run, and for a
    dependency that cannot come true.
    """
    if all(item.run.resources.dependency is None or _names_no_run(item.run) for item in planned):
        return [_waiting(item, item.run.resources.dependency, item.run.resources.dependency) for item in planned], []
    known: dict[tuple[str, SchedulerName], Wait] = {}
    found: list[Planned] = []
    with opened(places) as store:
        collect(store, places)
        for item in planned:
            text = item.run.resources.dependency
            if text is None:
                found.append(item)
                continue
            key = (text, item.run.cluster.scheduler)
            if key not in known:
                known[key] = resolve(store, item.run)
            found.append(_waiting(item, known[key].runs, known[key].jobs))
    return found, list(dict.fromkeys(note for wait in known.values() for note in wait.notes))


def _waiting(item: Planned, runs: str | None, jobs: str | None) -> Planned:
    if (item.run.resources.dependency, item.plan.dependency) == (runs, jobs):
        return item  # as it is: its hash is known by now
    resources = replace(item.run.resources, dependency=runs)
    return replace(item, run=replace(item.run, resources=resources), plan=replace(item.plan, dependency=jobs))


def _names_no_run(run: Run) -> bool:
    """Tell whether the dependency of *run* is all in its scheduler's own words, with which it may name alternatives."""
    text, scheduler = run.resources.dependency or "", run.cluster.scheduler
    alternatives = backend_of(scheduler.name).alternatives
    is_or = alternatives is not None and alternatives in text
    return is_or or all(_is_the_schedulers(clause, scheduler) for clause in clauses_of(text))


def resolve(store: Database, run: Run) -> Wait:
    """Return what *run*, which has a dependency, waits for by what *store* knows now; raise `ConfigError` as above."""
    text, scheduler = run.resources.dependency or "", run.cluster.scheduler
    if _names_no_run(run):
        return Wait(runs=text, jobs=text)
    runs: list[str] = []
    jobs: list[str] = []
    notes: list[str] = []
    for clause in clauses_of(text):
        if _is_the_schedulers(clause, scheduler):
            runs.append(str(clause))
            jobs.append(str(clause))
            continue
        _require_known_word(clause, text)
        names: list[str] = []
        left: list[str] = []
        for name in clause.names:
            if _is_job(name, scheduler):
                names.append(name)
                left.append(name)
                continue
            records = _meant(store, name, text)
            names += [record.uid for record in records]
            waiting = [record for record in records if _is_open(clause.word, record, text)]
            for record in waiting:
                left.append(_job_of(record, scheduler, text))
                notes += _what_else(record, scheduler, clause.word)
        runs.append(str(Clause(word=clause.word, names=list(dict.fromkeys(names)))))
        if left:
            jobs.append(str(Clause(word=clause.word, names=list(dict.fromkeys(left)))))
    return Wait(runs=",".join(runs), jobs=",".join(jobs), notes=notes)


def _is_the_schedulers(clause: Clause, scheduler: SchedulerName) -> bool:
    is_known = backend_of(scheduler.name).job is not None
    return is_known and all(_is_job(name, scheduler) for name in clause.names)


def _is_job(name: str, scheduler: SchedulerName) -> bool:
    pattern = backend_of(scheduler.name).job
    return pattern is not None and pattern.fullmatch(name) is not None


def _require_known_word(clause: Clause, text: str) -> None:
    if clause.word not in WORDS or not all(clause.names) or not clause.names:
        raise ConfigError(
            f"resources.dependency={text}: write WORD:RUN[:RUN], where WORD is {', '.join(WORDS)} "
            "and RUN an id, a name, an experiment, @1 or @-1"
        )


def _meant(store: Database, name: str, text: str) -> list[RunRecord]:
    """Return the runs that *name* means, as an experiment or as a run."""
    if members := find_runs(store, experiment=name):
        ended = not_done_since(store, [record for record in members if record.state is not State.COMPLETED])
        counted = {record.uid for record in ended}
        return [record for record in members if record.state is State.COMPLETED or record.uid in counted]
    try:
        return runs_meant(store, name)
    except StoreError as error:
        raise ConfigError(f"resources.dependency={text}: no experiment is called {name!r}, and {error}") from error


def _is_open(word: str, record: RunRecord, text: str) -> bool:
    is_over = record.state.is_final and record.is_settled
    found = outlook(word, record.state, is_over=is_over)
    if found is Outlook.NEVER:
        raise ConfigError(
            f"resources.dependency={text}: {never(word, record.uid, record.state)}: this can never come true "
            "(hpcml retry it first, or name another run)"
        )
    return found is Outlook.OPEN


def _job_of(record: RunRecord, scheduler: SchedulerName, text: str) -> str:
    """Return what the run is called by the scheduler of those that wait for it."""
    if scheduler is SchedulerName.local:
        return record.uid  # our own queue reads journals, of whatever scheduler
    if record.scheduler != scheduler.name or record.job_id is None:
        where = "was not submitted yet" if record.job_id is None else f"is with {record.scheduler}"
        raise ConfigError(
            f"resources.dependency={text}: run {record.uid} {where}, and {scheduler.name} can wait for its own jobs "
            "only"
        )
    is_whole = not backend_of(scheduler.name).waits_for_elements
    return record.job_id if is_whole else spell_job(record.job_id, record.array_index)


def _what_else(record: RunRecord, scheduler: SchedulerName, word: str) -> Iterator[str]:
    backend = backend_of(scheduler.name)
    if record.array_index is not None and not backend.waits_for_elements and scheduler is not SchedulerName.local:
        yield f"{word}: {backend.title} cannot wait for one job of an array, so it waits for all of {record.job_id}"
    elif record.is_shared and scheduler is not SchedulerName.local:
        yield f"{word}: run {record.uid} shares a job with others, so all of job {record.job_id} is waited for"
