"""Rules for which failures are retried, and with which changed resources; docs/life-of-a-run.md has them as a table.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcml.model.cluster import SchedulerName
from hpcml.model.failure_causes import Cause
from hpcml.model.run import Run
from hpcml.model.state import State
from hpcml.schedulers.registry import backend_of
from hpcml.units import parse_memory_mb
from hpcml.walltime import format_walltime, parse_walltime_s

MORE = 1.5  # of what was too little
# What is tried again by itself, as often as schedule.retry allows: what the cluster did to a run.
AUTOMATIC = frozenset({Cause.NODE_FAILURE, Cause.PREEMPTION, Cause.GPU_FAULT, Cause.COMMUNICATION})
_BY_ITSELF: Mapping[Cause, str] = {
    Cause.PROGRAM: "the program failed by itself (hpcml logs RUN); hpcml retry RUN tries it again as it was",
    Cause.GPU_MEMORY: "the GPU's memory is too small for it: choose a smaller training.batch_size or another GPU",
    Cause.PRECISION_MISMATCH: "the device computed in another precision than was asked for, and would again",
    Cause.CONTAINER: "the container could not be started: hpcml logs RUN, then correct the image",
    Cause.CANCELLED: "somebody wanted it to end; --cause cancelled runs it again",
    Cause.UNKNOWN: "it is not known why it failed: hpcml logs RUN; --cause unknown runs it again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that ended without success: all that the decision about its next attempt depends on."""

    run: Run  # as it was asked for last
    state: State
    cause: Cause
    hosts: Sequence[str] = ()  # the nodes of its last attempt
    has_started: bool = True
    checkpoint_step: int | None = None  # of the last checkpoint; None: there is none
    is_wanted: bool = False  # by a person who named the run or this cause, or said what is to be different


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Another attempt: the fields of Resources that change (None: the field is emptied), and why, in one line."""

    why: str
    changes: Mapping[str, str | None] = field(default_factory=dict)  # fields of Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRetry:
    """No other attempt, with the reason and what to do instead in one line."""

    why: str


def decide(failure: Failure) -> Retry | NoRetry:
    """Return whether and how *failure* is retried.

    A run that never started is retried as it was. Time and memory grow by half up to the site's limit, a failed node is
    excluded where the scheduler can do that. What the program did by itself, and what has all that there is, is retried
    only if a person asks for it.
    """
    if not failure.has_started and failure.cause not in (Cause.CANCELLED, Cause.CONTAINER):
        return Retry(why="it never started: again as it was")
    decision = _by_cause(failure)
    if isinstance(decision, NoRetry) and failure.is_wanted:
        decision = Retry(why="again as it was")
    if isinstance(decision, Retry) and failure.checkpoint_step is not None:
        return replace(decision, why=f"{decision.why}, from the checkpoint of step {failure.checkpoint_step}")
    return decision


def _by_cause(failure: Failure) -> Retry | NoRetry:
    cause = failure.cause
    if cause is Cause.TIME_LIMIT:
        return _more_time(failure)
    if cause is Cause.HOST_MEMORY:
        return _more_memory(failure)
    if cause in (Cause.NODE_FAILURE, Cause.GPU_FAULT):
        return _elsewhere(failure)
    if cause is Cause.AGENT_KILLED or (cause is Cause.UNKNOWN and failure.state is State.LOST):
        return Retry(why="nobody saw its end: again as it was")
    if cause in _BY_ITSELF:
        return NoRetry(why=_BY_ITSELF[cause])
    return Retry(why="again as it was")


def _more_time(failure: Failure) -> Retry | NoRetry:
    """Return a retry with half as much walltime again, up to the site's limit; the same walltime with a checkpoint."""
    wanted_s = failure.run.resources.walltime_s
    if failure.checkpoint_step is not None:
        return Retry(why="with the same walltime")
    if wanted_s is None:
        return NoRetry(why="it had no resources.walltime, so nobody knows what was too little: give --walltime")
    limit_s, of_whom = _time_limit(failure.run)
    if limit_s is not None and wanted_s >= limit_s:
        return NoRetry(
            why=f"its walltime is the longest that {of_whom} allows ({format_walltime(limit_s)}): "
            "let the program leave checkpoints, or ask for less"
        )
    more_s = round(wanted_s * MORE)
    more = format_walltime(more_s if limit_s is None else min(more_s, limit_s))
    return Retry(why=f"with a walltime of {more} instead of {format_walltime(wanted_s)}", changes={"walltime": more})


def _time_limit(run: Run) -> tuple[int | None, str]:
    """Return the shorter longest walltime of queue and cluster in seconds, and whose it is; None without any."""
    site, name = run.cluster, run.resources.partition_or_queue
    queue = site.queues.get(name or "")
    limits = []
    if queue is not None and queue.max_walltime:
        limits.append((parse_walltime_s(queue.max_walltime, field="max_walltime"), f"queue {name}"))
    if site.max_walltime:
        limits.append((parse_walltime_s(site.max_walltime, field="max_walltime"), f"cluster {site.name}"))
    return min(limits) if limits else (None, "")


def _more_memory(failure: Failure) -> Retry | NoRetry:
    """Return a retry with half as much memory again, at most that of a node.

    There is none where the run had all of that already, or asked for no amount of memory.
    """
    site, mem = failure.run.cluster, failure.run.resources.mem
    if site.scheduler is SchedulerName.local:
        return NoRetry(why="this machine has no more memory: fewer runs at once (cluster.max_parallel) may help")
    if mem is None:
        return NoRetry(why="it had no resources.mem, so nobody knows what was too little: give --mem")
    had_mb = parse_memory_mb(mem)
    limit_mb = parse_memory_mb(site.mem_per_node, field="cluster.mem_per_node") if site.mem_per_node else None
    if limit_mb is not None and had_mb >= limit_mb:
        return NoRetry(why=f"it had all the memory of a node of {site.name} ({site.mem_per_node})")
    more_mb = round(had_mb * MORE)
    more = f"{more_mb if limit_mb is None else min(more_mb, limit_mb)}M"
    return Retry(why=f"with {more} of memory instead of {mem}", changes={"mem": more})


def _elsewhere(failure: Failure) -> Retry:
    """Return a retry that excludes the nodes of the last attempt, where the scheduler has an option for that."""
    where = ",".join(dict.fromkeys(failure.hosts))
    if not where or failure.run.cluster.scheduler is SchedulerName.local:
        return Retry(why="again as it was")
    backend = backend_of(failure.run.cluster.scheduler.name)
    if not backend.avoids_nodes:
        return Retry(why=f"again, perhaps on {where}: {backend.title} has no word for nodes to avoid")
    known = failure.run.resources.exclude
    changes: dict[str, str | None] = {"exclude": where if known is None else f"{known},{where}"}
    if failure.run.resources.nodelist is None:
        return Retry(why=f"on another node than {where}", changes=changes)
    changes["nodelist"] = None  # Slurm refuses a job that must run where it must not
    why = f"on another node than {where}, without resources.nodelist={failure.run.resources.nodelist}"
    return Retry(why=why, changes=changes)
