"""Submitting runs again as a further attempt of the same run, for ``hpcml retry`` and schedule.retry."""

from __future__ import annotations

import logging
import shlex
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcml.commands.collect import claim, collect, opened
from hpcml.commands.repairs import may_retry, retries_of
from hpcml.commands.retry_policy import Failure, NoRetry, Retry, decide
from hpcml.commands.selection import Selection, done_since, select
from hpcml.commands.submit import recover
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.check import jobs_waited_for, refuse_impossible
from hpcml.commands.submit.plan import with_times
from hpcml.commands.submit.submission import deciding_alone, manifests_under_way
from hpcml.errors import ConfigError, HpcmlError, why_not
from hpcml.model.cluster import Resources
from hpcml.model.failure_causes import Cause
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.cancellation import unmark
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import Manifest, home_of_original, read_to_execute, write_manifest
from hpcml.runs.private import make_folder, write_file
from hpcml.runs.run_json import IMPORTED
from hpcml.runs.state import RunFold, told_by
from hpcml.schedulers.contract import Job
from hpcml.store.database import Database
from hpcml.store.missing import runs_below
from hpcml.store.query import events, get_run

log = logging.getLogger(__name__)

_LOCAL_PATIENCE_S = 5.0  # for an agent that left at a checkpoint to queue its run again
_PATIENCE_S = 90.0  # the same where its journals come over a network file system


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that ended without success, and what the retry policy decided; `number` counts its retries, from 1."""

    record: RunRecord
    cause: Cause
    decision: Retry | NoRetry
    number: int
    manifest: Manifest | None  # what the next attempt would be; None: there will be none


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """A run that was queued once more."""

    uid: str
    why: str
    job: str  # scheduler and id


def finish_interrupted(places: Places, backends: Backends) -> None:
    """Finish submissions whose process died, before anything is retried.

    The retry of a run may be among them, which would otherwise be submitted a second time.
    """
    if recover.interrupted(places):
        claim(places)
        recover.recover(places, backends)


def candidates(
    places: Places, selection: Selection, *, cause: str | None, overrides: Mapping[str, str]
) -> list[Candidate]:
    """Return what could be done about the selected runs, in their order; nothing has happened yet.

    *cause* keeps only runs that ended by it, and retries them even where the policy would not, as it does runs that are
    named one by one. *overrides* are fields
    of Resources (``{"walltime": "4h"}``) that count instead of the policy's. A run whose configuration a later run has
    completed, or has under way, is retried only where it is named; an empty selection without a cause leaves it out.

    Raises `ConfigError` for a run that is named and cannot be retried (it completed, has not ended, was imported, or is
    of another HPCML_HOME), for an unknown cause, and for overrides that are no resources.
    """
    named_cause = None if cause is None else _cause(cause)
    Resources(**dict[str, Any](overrides))  # a walltime that is none is refused before anything is looked at
    claim(places)
    with opened(places, to_write=True) as store:
        collect(store, places)
        found: list[Candidate] = []
        ours = runs_below(store, places.runs)
        chosen = select(store, selection)
        is_named = len(chosen) <= len(selection.references)  # and not by a word for several, such as @-1
        done = {} if selection.references else done_since(store, chosen)
        if selection.is_empty and named_cause is None:
            chosen = [record for record in chosen if record.uid not in done]
        for record in chosen:
            theirs = None if record.uid in ours else f"is not below {places.runs}: whoever submitted it can retry it"
            if refusal := theirs or _why_not_at_all(store, record):
                if selection.references:
                    raise ConfigError(f"run {record.uid} {refusal}")
                continue
            its_cause = _cause(record.cause or Cause.UNKNOWN.value)
            if named_cause is not None and its_cause is not named_cause:
                continue
            if record.uid in done:
                found.append(_done_again(record, its_cause, *done[record.uid]))
                continue
            is_wanted = is_named or named_cause is not None or bool(overrides)
            found.append(_candidate(store, record, its_cause, overrides, is_wanted=is_wanted))
        return found


def _done_again(record: RunRecord, cause: Cause, later: str, state: State) -> Candidate:
    why = f"its configuration was run again as {later}, which is {state.value}; name this run to retry it all the same"
    return Candidate(record=record, cause=cause, decision=NoRetry(why=why), number=0, manifest=None)


def retry(places: Places, backends: Backends, chosen: Sequence[Candidate]) -> Iterator[Retried]:
    """Queue every one of *chosen* that the policy retries; yield them as their schedulers take them.

    Runs that are retried in the same attempt for the same reason are submitted together: equal requests are one array.
    One that another hpcml retries at this moment is left out. Raises `SubmissionError` where a scheduler refuses; what
    was queued before stays queued.
    """
    groups: defaultdict[tuple[int, str], list[Candidate]] = defaultdict(list)
    for candidate in chosen:
        if candidate.manifest is not None:
            groups[candidate.record.attempt + 1, why_of(candidate)].append(candidate)
    with opened(places) as store:
        for together in groups.values():
            yield from _queue(store, places, backends, together)


def retry_automatically(store: Database, places: Places, backends: Backends, record: RunRecord) -> Retried | None:
    """Retry *record* if the cluster failed it and ``schedule.retry`` allows one more; None where it does not.

    Raises `SubmissionError` where the scheduler refuses.
    """
    if record.cause is None or not may_retry(record, places) or _why_not_at_all(store, record):
        return None
    candidate = _candidate(store, record, Cause(record.cause), {}, is_wanted=False)
    if candidate.manifest is None:
        return None
    return next(iter(_queue(store, places, backends, [candidate])), None)


def is_going_on(store: Database, record: RunRecord, now: float) -> bool:
    """Tell whether a run that left at a checkpoint is probably being queued again by its agent at this moment.

    That is assumed for 5 seconds after its end on this machine, and for 90 where its journals come over a network file
    system, as long as ``schedule.max_requeues`` is not used up. *now* is unix seconds.
    """
    if record.state is not State.TIMEOUT or record.t_end is None:
        return False
    patience_s = _LOCAL_PATIENCE_S if record.scheduler == "local" else _PATIENCE_S
    if now - record.t_end > patience_s:
        return False
    told = _told(store, record)
    allowed = record.params.get("schedule.max_requeues")
    left = told.may_go_on and told.deciding is not None and told.deciding.number == record.attempt
    return left and isinstance(allowed, int) and told.requeues < allowed


def _told(store: Database, record: RunRecord) -> RunFold:
    return RunFold.of(told_by(event) for event in events(store, record.uid))


def _why_not_at_all(store: Database, record: RunRecord) -> str | None:
    """Return why *record* is in no state to be retried, whatever its cause; None where it may be."""
    if record.state is State.COMPLETED:
        return "is COMPLETED: there is nothing to retry"
    if record.scheduler == IMPORTED:
        return "was imported: the tool that ran it can run it again"
    if not record.state.is_final:
        return f"is {record.state.value}: it can be retried once it has ended"
    if not record.is_settled:
        return "was ended by a signal from outside and its scheduler has not said why: hpcml status asks it"
    if is_going_on(store, record, time.time()):
        return "left at a checkpoint and is being queued again"
    home = home_of_original(RunDir(Path(record.path)))
    again = f"try it again by hpcml --home {shlex.quote(str(home))}, or submit it anew by hpcml run"
    return None if home is None else f"is a copy: {again}"


def _candidate(
    store: Database, record: RunRecord, cause: Cause, overrides: Mapping[str, str], *, is_wanted: bool
) -> Candidate:
    """Return what the policy says of *record*, with the manifest of the next attempt where there will be one.

    *is_wanted*: a person named it or its cause, or gave overrides, so that failures of the program are retried too.
    Resources that the site forbids turn a retry into none.
    """
    run_dir = RunDir(Path(record.path))
    count = retries_of(run_dir)
    manifest = read_to_execute(run_dir.retry_manifest(count) if count else run_dir.manifest)
    told = _told(store, record)
    failure = Failure(
        run=manifest.run,
        state=record.state,
        cause=cause,
        hosts=_hosts(told),
        has_started=any(attempt.starts for attempt in told),
        checkpoint_step=max((step for attempt in told for step in attempt.checkpoint_steps), default=None),
        is_wanted=is_wanted,
    )
    decision = decide(failure)
    amended: Manifest | None = None
    if isinstance(decision, Retry):
        decision = _with_overrides(decision, overrides)
        try:
            amended = _amended(store, manifest, decision.changes, has_started=failure.has_started)
        except ConfigError as error:
            decision = NoRetry(why=str(error))
    return Candidate(record=record, cause=cause, decision=decision, number=count + 1, manifest=amended)


def _with_overrides(decision: Retry, overrides: Mapping[str, str]) -> Retry:
    if not overrides:
        return decision
    asked = ", ".join(f"{name} {value}" for name, value in overrides.items())
    why = "again" if decision.changes.keys() & overrides.keys() else decision.why
    return Retry(why=f"{why}, as asked with {asked}", changes={**decision.changes, **overrides})


def _amended(store: Database, manifest: Manifest, changes: Mapping[str, str | None], *, has_started: bool) -> Manifest:
    """Return *manifest* with other resources and the plan that follows.

    Raises `ConfigError` if the site forbids them, or the run still waits for what will never be.
    """
    fields: dict[str, Any] = dict(changes)
    if has_started:  # what it waited for is over, and Slurm refuses to wait for a job that it has forgotten
        fields = {"dependency": None, **fields}
    run, jobs = replace(manifest.run, resources=replace(manifest.run.resources, **fields)), None
    if run.resources.dependency is not None and manifest.plan.dependency is not None:
        jobs = jobs_waited_for(store, run)[1]  # what it waits for may be another job by now
    refuse_impossible(run)
    image = manifest.plan.image
    if image is not None and image.path.startswith("/") and not Path(image.path).exists():
        raise ConfigError(f"its image {image.path} is gone: submit the run again")
    return replace(manifest, run=run, plan=with_times(replace(manifest.plan, dependency=jobs), run))


def _queue(store: Database, places: Places, backends: Backends, together: Sequence[Candidate]) -> list[Retried]:
    """Write retries down and hand them to their schedulers; what another hpcml has retried meanwhile is left out."""
    # Imported here: loads what submits runs, images among it, for the few that are retried.
    from hpcml.commands.submit.launch import submit_retries  # noqa: PLC0415
    from hpcml.store.ingest import ingest_run  # noqa: PLC0415

    claim(places)
    with deciding_alone(places, log.info):
        under_way = manifests_under_way(places.open_submissions)
        jobs: list[Job] = []
        troubles: list[str] = []
        for candidate in together:
            assert candidate.manifest is not None
            run_dir = RunDir(Path(candidate.record.path))
            job = Job(run_dir=run_dir, manifest=candidate.manifest, retry=candidate.number)
            try:
                if _is_as_it_was(store, candidate, under_way) and _claim(job, backends):
                    unmark(run_dir)  # whoever wanted it to end wants it to run now
                    jobs.append(job)
            except OSError as error:
                troubles.append(f"run {run_dir.uid} cannot be tried again: {why_not(error, run_dir.path)}")
        if troubles and not jobs:
            raise HpcmlError(troubles[0])
        for trouble in troubles:
            log.warning("%s", trouble)
        if not jobs:
            return []
        attempt, why = together[0].record.attempt + 1, why_of(together[0])
        tickets = submit_retries(jobs, places, backends, attempt=attempt, why=why)
        for job in jobs:
            ingest_run(store, job.run_dir)
    return [
        Retried(uid=job.run_dir.uid, why=why, job=f"{ticket.scheduler} {ticket.spelled}")
        for job, ticket in zip(jobs, tickets, strict=True)
    ]


def _is_as_it_was(store: Database, candidate: Candidate, under_way: Collection[str]) -> bool:
    """Tell whether a run is as it was when it was looked at.

    Nobody has retried it since, or is about to (its last retry is not open), and it has not gone on after all.
    """
    from hpcml.store.ingest import ingest_run  # noqa: PLC0415 - as above

    run_dir = RunDir(Path(candidate.record.path))
    ingest_run(store, run_dir)
    record, last = get_run(store, candidate.record.uid), candidate.number - 1
    is_open = last > 0 and str(run_dir.retry_manifest(last)) in under_way
    is_same = (record.state, record.attempt) == (candidate.record.state, candidate.record.attempt)
    return is_same and not is_open


def why_of(candidate: Candidate) -> str:
    """Return the one line that the run's journal, and the user, get as the reason of its retry."""
    return f"retried after {candidate.cause.value}: {candidate.decision.why}"


def _claim(job: Job, backends: Backends) -> bool:
    """Write the retry's manifest and script; False where that number is taken. Raises `OSError`."""
    make_folder(job.source.parent)
    script = backends.submitter_for(job.manifest.run.cluster).script_for(job)
    try:
        write_manifest(job.source, job.manifest)
    except FileExistsError:
        return False
    write_file(job.script, script)
    return True


def _hosts(told: RunFold) -> list[str]:
    """Return the nodes of the last attempt that started, by their short names, as schedulers call them."""
    started = [attempt for attempt in told if attempt.starts]
    names = (host.partition(".")[0] for host in started[-1].hosts) if started else ()
    return [name for name in names if name not in ("", "?")]


def _cause(word: str) -> Cause:
    try:
        return Cause(word.lower())
    except ValueError:
        raise ConfigError(f"--cause {word}: choose {', '.join(cause.value for cause in Cause)}") from None
