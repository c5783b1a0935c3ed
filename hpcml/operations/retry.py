"""Runs tried again: which, with what, and handed to their schedulers as another attempt of the same run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcml.causes import Cause
from hpcml.cluster import Resources
from hpcml.errors import ConfigError, HpcmlError
from hpcml.manifest import IMPORTED, Manifest, read_manifest, write_manifest
from hpcml.operations import launch, recover
from hpcml.operations.backends import Backends
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.operations.image_uses import claim_all
from hpcml.operations.queues import refuse_impossible
from hpcml.operations.retry_policy import AUTOMATIC, Failure, NoRetry, Retry, decide
from hpcml.places import Places
from hpcml.records import RunRecord, StoredEvent
from hpcml.rundir import RunDir
from hpcml.schedulers.submitter import Job, Ticket
from hpcml.states import State
from hpcml.store.engine import Store
from hpcml.store.ingest import ingest_run
from hpcml.store.missing import runs_below
from hpcml.store.queries import events, find_runs, runs_by_spec
from hpcml.workload import with_times

_LOCAL_PATIENCE_S = 5.0  # for an agent that left at a checkpoint to queue its run again
_PATIENCE_S = 90.0  # the same where its journals come over a network file system


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that ended without success, and what the policy says of it. `number` counts its retries, from 1."""

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
    """Finish submissions that died half-way: a retry that another one would double may be among them."""
    if recover.interrupted(places):
        recover.recover(places, backends)


def candidates(
    places: Places, selection: Selection, *, cause: str | None, overrides: Mapping[str, str]
) -> list[Candidate]:
    """Return what could be done about the selected runs; nothing has happened yet.

    An empty selection without a cause means all that were not done again since. A run that is named and cannot be
    retried, because it completed or has not ended, refuses all. *overrides* are
    fields of Resources that a person wants instead of the policy's.
    """
    named_cause = None if cause is None else _cause(cause)
    Resources(**dict[str, Any](overrides))  # a walltime that is none is refused before anything is looked at
    with opened(places, to_write=True) as store:
        collect(store, places)
        found: list[Candidate] = []
        chosen = select(store, selection)
        if selection.is_empty and named_cause is None:
            chosen = _not_done_since(store, chosen)
        ours = runs_below(store, places.runs)
        for record in chosen:
            if record.uid not in ours:
                if selection.references:
                    raise ConfigError(f"run {record.uid} is not below {places.runs}: whoever submitted it can retry it")
                continue
            if refusal := _why_not_at_all(store, record):
                if selection.references:
                    raise ConfigError(f"run {record.uid} {refusal}")
                continue
            its_cause = _cause(record.cause or Cause.UNKNOWN.value)
            if named_cause is not None and its_cause is not named_cause:
                continue
            is_wanted = named_cause is not None or bool(overrides)
            found.append(_candidate(store, record, its_cause, overrides, is_wanted=is_wanted))
        return found


def _not_done_since(store: Store, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return those whose configuration no later run has completed, or is about to."""
    good = (State.COMPLETED, State.PENDING, State.RUNNING)
    known = runs_by_spec(store, {record.spec_hash for record in records})
    return [
        record
        for record in records
        if not any(uid > record.uid and state in good for uid, state in known.get(record.spec_hash, []))
    ]


def retry(places: Places, backends: Backends, chosen: Sequence[Candidate]) -> Iterator[Retried]:
    """Queue every one of *chosen* that is to be retried; yield them as their schedulers take them.

    Those that are retried for the same reason go out together: equal requests are one array.
    """
    groups: defaultdict[tuple[int, str], list[Candidate]] = defaultdict(list)
    for candidate in chosen:
        if candidate.manifest is not None:
            groups[candidate.record.attempt + 1, why_of(candidate)].append(candidate)
    with opened(places) as store:
        for together in groups.values():
            yield from _queue(store, places, backends, together)


def to_retry(store: Store, places: Places) -> list[RunRecord]:
    """Return the runs that ended by the cluster's fault and may be tried again without being asked."""
    ended = find_runs(store, states=(State.FAILED, State.NODE_FAIL, State.PREEMPTED, State.LOST))
    ours = runs_below(store, places.runs)
    return [record for record in ended if record.uid in ours and _may_retry(record)]


def retry_automatically(store: Store, places: Places, backends: Backends, record: RunRecord) -> Retried | None:
    """Try *record* again if the cluster failed it and schedule.retry allows one more; None where it does not."""
    if (
        record.cause is None
        or not places.tends(record.path)
        or not _may_retry(record)
        or _why_not_at_all(store, record)
    ):
        return None
    candidate = _candidate(store, record, Cause(record.cause), {}, is_wanted=False)
    if candidate.manifest is None:
        return None
    return next(iter(_queue(store, places, backends, [candidate])), None)


def _may_retry(record: RunRecord) -> bool:
    allowed = record.params.get("schedule.retry")
    if record.cause not in AUTOMATIC or not isinstance(allowed, int) or allowed < 1:
        return False
    return _retries(RunDir(Path(record.path))) < allowed


def is_going_on(store: Store, record: RunRecord, now: float) -> bool:
    """Tell whether a run that left at a checkpoint is probably being queued again by its agent right now."""
    if record.state is not State.TIMEOUT or record.t_end is None:
        return False
    patience_s = _LOCAL_PATIENCE_S if record.scheduler == "local" else _PATIENCE_S
    if now - record.t_end > patience_s:
        return False
    told = events(store, record.uid)
    ends = [event for event in told if event.name == "attempt_ended" and event.attempt == record.attempt]
    requeues = sum(event.name == "submitted" and event.details.get("by") == "agent" for event in told)
    allowed = record.params.get("schedule.max_requeues")
    left = any(event.details.get("checkpointed") is True for event in ends)
    return left and isinstance(allowed, int) and requeues < allowed


def _why_not_at_all(store: Store, record: RunRecord) -> str | None:
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
    return None


def _candidate(
    store: Store, record: RunRecord, cause: Cause, overrides: Mapping[str, str], *, is_wanted: bool
) -> Candidate:
    run_dir = RunDir(Path(record.path))
    count = _retries(run_dir)
    manifest = read_manifest(run_dir.retry_manifest(count) if count else run_dir.manifest)
    told = events(store, record.uid)
    failure = Failure(
        run=manifest.run,
        state=record.state,
        cause=cause,
        hosts=_hosts(told),
        has_started=any(event.name == "attempt_started" for event in told),
        checkpoint_step=_checkpoint_step(told),
        is_wanted=is_wanted,
    )
    decision = decide(failure)
    amended: Manifest | None = None
    if isinstance(decision, Retry):
        decision = _with_overrides(decision, overrides)
        try:
            amended = _amended(manifest, decision.changes, has_started=failure.has_started)
        except ConfigError as error:
            decision = NoRetry(why=str(error))
    return Candidate(record=record, cause=cause, decision=decision, number=count + 1, manifest=amended)


def _with_overrides(decision: Retry, overrides: Mapping[str, str]) -> Retry:
    if not overrides:
        return decision
    asked = ", ".join(f"{name} {value}" for name, value in overrides.items())
    return Retry(why=f"{decision.why}, as asked with {asked}", changes={**decision.changes, **overrides})


def _amended(manifest: Manifest, changes: Mapping[str, str | None], *, has_started: bool) -> Manifest:
    """Return *manifest* with other resources and the plan that follows; `ConfigError` if the site forbids them."""
    fields: dict[str, Any] = dict(changes)
    if has_started:  # what it waited for is over, and Slurm refuses to wait for a job that it has forgotten
        fields = {"dependency": None, **fields}
    run = replace(manifest.run, resources=replace(manifest.run.resources, **fields))
    refuse_impossible(run)
    image = manifest.plan.image
    if image is not None and not Path(image.path).exists():
        raise ConfigError(f"its image {image.path} is gone: submit the run again")
    return replace(manifest, run=run, plan=with_times(manifest.plan, run))


def _queue(store: Store, places: Places, backends: Backends, together: Sequence[Candidate]) -> list[Retried]:
    """Write retries down and hand them to their schedulers; what another hpcml retries right now is left out."""
    jobs: list[Job] = []
    for candidate in together:
        assert candidate.manifest is not None
        run_dir = RunDir(Path(candidate.record.path))
        job = Job(run_dir=run_dir, manifest=candidate.manifest, retry=candidate.number)
        if _claim(job, backends):
            run_dir.cancel_mark.unlink(missing_ok=True)  # whoever wanted it to end wants it to run now
            jobs.append(job)
    if not jobs:
        return []
    attempt, why = together[0].record.attempt + 1, why_of(together[0])
    claim_all([job.manifest.plan.image for job in jobs if job.manifest.plan.image is not None], places)
    tickets = launch.submit_retries(jobs, places, backends, attempt=attempt, why=why)
    for job in jobs:
        ingest_run(store, job.run_dir)
    return [
        Retried(uid=job.run_dir.uid, why=why, job=_job_words(ticket)) for job, ticket in zip(jobs, tickets, strict=True)
    ]


def _job_words(ticket: Ticket) -> str:
    index = "" if ticket.array_index is None else f"_{ticket.array_index}"
    return f"{ticket.scheduler} {ticket.job_id}{index}"


def why_of(candidate: Candidate) -> str:
    """Return the one line that the run's journal keeps of its retry."""
    return f"retried after {candidate.cause.value}: {candidate.decision.why}"


def _claim(job: Job, backends: Backends) -> bool:
    """Write the retry's manifest and script; False where that number is taken."""
    job.source.parent.mkdir(exist_ok=True)
    script = backends.submitter_for(job.manifest.run.cluster).script_for(job)
    try:
        write_manifest(job.source, job.manifest)
    except FileExistsError:
        return False
    except OSError as error:
        raise HpcmlError(f"{job.source} cannot be written: {error.strerror}") from error
    job.script.write_text(script, encoding="utf-8")
    return True


def _retries(run_dir: RunDir) -> int:
    """Return how often the run was tried again."""
    count = 0
    while run_dir.retry_manifest(count + 1).exists():
        count += 1
    return count


def _hosts(told: Sequence[StoredEvent]) -> list[str]:
    """Return the nodes of the last attempt that started, by their short names, as schedulers call them."""
    starts = [event for event in told if event.name == "attempt_started"]
    last = max((event.attempt for event in starts), default=0)
    names = (str(event.details.get("hostname") or "") for event in starts if event.attempt == last)
    return [short for name in names if (short := name.partition(".")[0])]


def _checkpoint_step(told: Sequence[StoredEvent]) -> int | None:
    steps = [event.details.get("step") for event in told if event.name == "checkpoint"]
    return max((step for step in steps if isinstance(step, int)), default=None)


def _cause(word: str) -> Cause:
    try:
        return Cause(word.lower())
    except ValueError:
        raise ConfigError(f"--cause {word}: choose {', '.join(cause.value for cause in Cause)}") from None
