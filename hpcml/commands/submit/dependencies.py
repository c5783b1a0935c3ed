"""What runs wait for: `resources.dependency` names runs, experiments or jobs; a scheduler knows jobs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import not_done_since
from hpcml.commands.submit.plan import Planned
from hpcml.errors import ConfigError, StoreError
from hpcml.model.cluster import SchedulerName
from hpcml.model.records import RunRecord, spell_job
from hpcml.model.run import Run
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.dependency import WORDS, Clause, Outlook, clauses_of, outlook
from hpcml.schedulers.registry import backend_of
from hpcml.store.database import Database
from hpcml.store.query import find_runs, runs_meant


def with_jobs(planned: Sequence[Planned], places: Places) -> list[Planned]:
    """Return *planned* with the runs and the jobs that each waits for.

    The store is opened only where a dependency names a run. Raises `ConfigError` for a reference that means no run.
    """
    waits = {(text, run.cluster.scheduler): run for run in (item.run for item in planned) if (text := _text(run))}
    found = {key: (key[0], key[0]) for key, run in waits.items() if _names_no_run(run)}
    if len(found) < len(waits):
        with opened(places) as store:
            collect(store, places)
            found |= {key: resolve(store, run) for key, run in waits.items() if key not in found}
    ready = []
    for item in planned:
        runs, jobs = found.get((_text(item.run), item.run.cluster.scheduler), (None, None))
        if (item.run.resources.dependency, item.plan.dependency) != (runs, jobs):  # else its hash is known by now
            resources = replace(item.run.resources, dependency=runs)
            item = replace(  # noqa: PLW2901
                item, run=replace(item.run, resources=resources), plan=replace(item.plan, dependency=jobs)
            )
        ready.append(item)
    return ready


def resolve(store: Database, run: Run) -> tuple[str, str]:
    """Return what *run* waits for by what *store* knows now: the whole ids of runs, and those of jobs.

    A reference is a whole id, an end of one, a name, or ``@1`` for the newest run; ``@-1`` stands for all runs of the
    last submission, an experiment for all of its runs but those that failed and were made good by a later one. What
    looks like a job's id is the scheduler's. What has come true already is no job that is waited for: schedulers forget
    theirs. Whether the rest can still come true is the scheduler's to say.
    """
    text, scheduler = _text(run), run.cluster.scheduler
    if _names_no_run(run):
        return text, text
    runs: list[str] = []
    jobs: list[str] = []
    for clause in clauses_of(text):
        if _is_the_schedulers(clause, scheduler):
            runs.append(str(clause))
            jobs.append(str(clause))
            continue
        if clause.word not in WORDS or not all(clause.names) or not clause.names:
            raise ConfigError(
                f"resources.dependency={text}: write WORD:RUN[:RUN], where WORD is {', '.join(WORDS)} "
                "and RUN an id, a name, an experiment, @1 or @-1"
            )
        names: list[str] = []
        left: list[str] = []
        for name in clause.names:
            records = [] if _is_job(name, scheduler) else _meant(store, name, text)
            names += [record.uid for record in records] or [name]
            waiting = [record for record in records if _is_open(clause.word, record)]
            left += [_job_of(record, scheduler, text) for record in waiting] if records else [name]
        runs.append(str(Clause(word=clause.word, names=list(dict.fromkeys(names)))))
        if left:
            jobs.append(str(Clause(word=clause.word, names=list(dict.fromkeys(left)))))
    return ",".join(runs), ",".join(jobs)


def _text(run: Run) -> str:
    return run.resources.dependency or ""


def _names_no_run(run: Run) -> bool:
    """Tell whether the dependency of *run* is all in its scheduler's own words, with which it may name alternatives."""
    text, scheduler = _text(run), run.cluster.scheduler
    alternatives = backend_of(scheduler.name).alternatives
    is_or = alternatives is not None and alternatives in text
    return is_or or all(_is_the_schedulers(clause, scheduler) for clause in clauses_of(text))


def _is_the_schedulers(clause: Clause, scheduler: SchedulerName) -> bool:
    is_known = backend_of(scheduler.name).job is not None
    return is_known and all(_is_job(name, scheduler) for name in clause.names)


def _is_job(name: str, scheduler: SchedulerName) -> bool:
    pattern = backend_of(scheduler.name).job
    return pattern is not None and pattern.fullmatch(name) is not None


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


def _is_open(word: str, record: RunRecord) -> bool:
    is_over = record.state.is_final and record.is_settled
    return outlook(word, record.state, is_over=is_over) is not Outlook.MET


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
