"""A cluster described by its own scheduler: what `sites` learned, made into a profile.

`hpcml cluster new` calls `ask_scheduler` and writes the result with `hpcml.config.profiles`. What no scheduler tells,
the profile leaves to be filled in.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.cluster import Cluster, Queue, Resources
from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.description import Backend
from hpcml.schedulers.registry import backend_of
from hpcml.schedulers.sites import LOOKS, NodeKind, QueueFacts, Site
from hpcml.schedulers.slurm import reading_environ
from hpcml.walltime import format_walltime

_TIMEOUT_S = 60.0  # sinfo waits 9 s for a controller that is down; a big site answers in seconds
_MODEST_WALLTIME_S = 3600  # where the site has no default: short enough to start soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A profile that can be written down, and what it is in a line or two.

    `resources` are the defaults of a job: the queue chosen, one GPU, its share of the cores, a walltime.
    """

    cluster: Cluster
    resources: Resources
    summary: tuple[str, ...]


def ask_of_site(argv: Sequence[str]) -> Answer:
    """Run a program that tells what a site is, whatever a user's shell says it is to show; raise as `call` does."""
    return call(argv, timeout_s=_TIMEOUT_S, environ=reading_environ(os.environ))


def ask_scheduler(
    name: str,
    *,
    today: date,
    ask: Callable[[Sequence[str]], Answer] = ask_of_site,
    find: Callable[[str], str | None] = shutil.which,
) -> Found:
    """Describe the cluster that this machine belongs to, under *name*.

    Raises `ConfigError` where there is no scheduler, and `NoAnswerError` where it does not answer. *today* is noted in
    the profile. *ask* starts a program and *find* looks for one on PATH; both are parameters for tests. Schedulers are
    asked in the order of `sites.LOOKS` until one answers. Raises `SubmissionError` where a program cannot be
    started.
    """
    here = [look for programs, look in LOOKS.values() if all(find(program) for program in programs)]
    if not here:
        absent = " nor ".join(" and ".join(programs) for programs, _ in LOOKS.values())
        raise ConfigError(
            f"no scheduler here: neither {absent} are on PATH; ask on a login node, "
            "or fill in what --scheduler slurm (pbs, lsf, flux) writes"
        )
    # A site of PBS may have Slurm's programs too, left over or for another machine, which then do not answer.
    problems: list[NoAnswerError] = []
    for look in here:
        try:
            return describe(name, look(ask), today=today)
        except NoAnswerError as error:
            problems.append(error)
    raise NoAnswerError("; ".join(map(str, problems))) from problems[0]


def describe(name: str, site: Site, *, today: date) -> Found:
    """Make a profile of what a scheduler told; the queue with the most GPUs becomes the default.

    Of queues without GPUs the site's own default is preferred, and then the longest walltime. Queues that take no jobs
    now are listed in the profile and chosen only where there are no others. Of the chosen queue's nodes, those with
    GPUs describe the cluster, and the rest becomes a note. Raises `HpcmlError` where no queue was named.
    """
    usable = [queue for queue in site.queues if queue.closed is None] or list(site.queues)
    if not usable:
        raise HpcmlError("the scheduler answered, but named no queue that you may use")
    queue = max(usable, key=_attraction)
    kind = max(
        queue.kinds, key=lambda kind: (kind.gpus > 0, kind.count), default=NodeKind(count=0, cores=0, mem_mb=None)
    )
    limits_s = [queue.max_walltime_s for queue in usable]
    cluster = Cluster(
        name=name,
        scheduler=site.scheduler,
        gpu_type=kind.gpu_type,
        gpus_per_node=kind.gpus if queue.kinds else None,
        cores_per_node=kind.cores or None,
        cores_per_gpu=kind.cores // kind.gpus if kind.gpus else None,
        mem_per_node=_memory(kind.mem_mb),
        whole_nodes=queue.whole_nodes,
        gpu_request=_gpu_request(backend_of(site.scheduler.name), kind),
        gpu_queue=queue.name if queue.has_gpus else None,
        queues={facts.name: _queue(facts) for facts in site.queues},
        max_walltime=None if None in limits_s else format_walltime(max(filter(None, limits_s))),
        max_array_size=site.max_array_size,
        notes=list(_notes(queue, kind)),
        source=f"asked the scheduler on {today.isoformat()}",
    )
    default_s = queue.default_walltime_s or min(_MODEST_WALLTIME_S, queue.max_walltime_s or _MODEST_WALLTIME_S)
    resources = Resources(
        partition=queue.name,
        gpus_per_node=min(1, kind.gpus),
        cpus_per_task=max(1, cluster.cores_per_gpu or 0) if kind.gpus else None,
        walltime=format_walltime(default_s),
    )
    who = f"{site.own_name or name}: {backend_of(site.scheduler.name).title} {site.version or ''}".rstrip()
    lines = (f"{who}, as it described itself on {today.isoformat()}.", "The default queue is a guess: the most GPUs.")
    return Found(cluster=cluster, resources=resources, summary=lines)


def _attraction(queue: QueueFacts) -> tuple[int, bool, float]:
    gpus = sum(kind.count * kind.gpus for kind in queue.kinds) if queue.has_gpus else 0
    return gpus, queue.is_default, queue.max_walltime_s or float("inf")


def _gpu_request(backend: Backend, kind: NodeKind) -> str | None:
    if not kind.gpus:
        return None
    return (backend.typed_gpu_request if kind.gpu_type else None) or backend.gpu_request


def _queue(facts: QueueFacts) -> Queue:
    limit_s = facts.max_walltime_s
    return Queue(
        max_walltime=None if limit_s is None else format_walltime(limit_s), gpus=facts.has_gpus, note=facts.closed
    )


def _notes(queue: QueueFacts, kind: NodeKind) -> Iterator[str]:
    for other in queue.kinds:
        if other != kind:
            yield f"{queue.name} leads to other nodes too: {other}"
    if kind.gpus and queue.has_gpus is None:
        yield "which queue leads to the GPUs was not told: set resources.partition and cluster.gpu_queue"


def _memory(mem_mb: int | None) -> str | None:
    if mem_mb is None:
        return None
    return f"{mem_mb // 1024}G" if mem_mb % 1024 == 0 else f"{mem_mb}M"
