"""The limits of a site's queues, from its profile: a run that no queue takes is refused before it is submitted.

A profile may leave them to the scheduler (``cluster.asks_scheduler``), which is asked once for all runs (`asked_of`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.cluster import Cluster, Queue
from hpcml.model.run import Run
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.discover import Found, ask_of_site, describe
from hpcml.schedulers.registry import backend_of, find_programs
from hpcml.spelling import did_you_mean
from hpcml.units import parse_walltime_s

log = logging.getLogger(__name__)

# Of a profile; those that it leaves open are taken from what the scheduler tells.
_ASKED = (
    *("gpu_type", "gpus_per_node", "cores_per_node", "cores_per_gpu", "mem_per_node", "queues", "gpu_queue"),
    *("max_walltime", "max_array_size"),
)


def asked_of(site: Cluster, ask: Callable[[Sequence[str]], Answer] = ask_of_site) -> Found | None:
    """Return what the scheduler of *site* tells of it; None, with a warning, where it is not here or does not answer.

    Raises nothing: what is not known beforehand, the scheduler says at the submission.
    """
    backend = backend_of(site.scheduler.name)
    absent = [name for name, place in find_programs(site.scheduler.name).items() if place is None]
    if backend.look_at_site is None or absent:
        log.warning("cluster=%s asks its scheduler for queues and limits; not here: %s", site.name, ", ".join(absent))
        return None
    try:
        return describe(site.name, backend.look_at_site(ask), today=datetime.now(tz=UTC).date())
    except HpcmlError as error:
        log.warning("cluster=%s asks its scheduler for queues and limits, which did not answer: %s", site.name, error)
        return None


def completed(run: Run, found: Found | None) -> Run:
    """Return *run* with what its cluster's profile leaves open as the scheduler has told it.

    Where it asks for GPUs and names no queue, it goes to the one that has most of them. Raises `ConfigError` where the
    run does not fit what was told.
    """
    if found is None:
        return run
    site, wanted = run.cluster, run.resources
    told = {name: getattr(found.cluster, name) for name in _ASKED if not getattr(site, name)}
    if wanted.gpus_per_node and wanted.partition_or_queue is None:
        wanted = replace(wanted, partition=found.cluster.gpu_queue)
    return replace(run, cluster=replace(site, **told), resources=wanted)


def refuse_impossible(run: Run) -> None:
    """Raise `ConfigError` for a walltime, nodes or GPUs outside of the limits of the run's queue.

    The limits are those of the cluster's profile. A queue that the profile does not list, and a profile without queues,
    refuse nothing: the scheduler decides.
    """
    site, wanted = run.cluster, run.resources
    name = wanted.partition_or_queue
    if name is None or not site.queues:
        return
    queue = site.queues.get(name)
    if queue is None:
        return  # a profile may be older than a queue; see `unknown_queue`
    if queue.max_walltime and wanted.walltime_s:
        limit_s = parse_walltime_s(queue.max_walltime, field=f"cluster.queues.{name}.max_walltime")
        if wanted.walltime_s > limit_s:
            raise ConfigError(
                f"resources.walltime={wanted.walltime}: queue {name} of cluster={site.name} allows {queue.max_walltime}"
            )
        shortest = queue.min_walltime
        if shortest and wanted.walltime_s < parse_walltime_s(shortest, field=f"cluster.queues.{name}.min_walltime"):
            raise ConfigError(
                f"resources.walltime={wanted.walltime}: queue {name} of cluster={site.name} wants {shortest} or more"
            )
    _check_nodes(run, name, queue)
    gpus = (wanted.gpus_per_node or 0) * wanted.nodes
    if queue.max_gpus is not None and gpus > queue.max_gpus:
        raise ConfigError(f"{gpus} GPUs: queue {name} of cluster={site.name} allows {queue.max_gpus} to a job")


def _check_nodes(run: Run, name: str, queue: Queue) -> None:
    nodes, least, most = run.resources.nodes, queue.min_nodes, queue.max_nodes
    if least is not None and nodes < least:
        raise ConfigError(f"resources.nodes={nodes}: queue {name} of cluster={run.cluster.name} begins at {least}")
    if most is not None and nodes > most:
        raise ConfigError(f"resources.nodes={nodes}: queue {name} of cluster={run.cluster.name} allows {most}")


def unknown_queue(run: Run) -> str | None:
    """Return a warning about a queue that the profile does not list, with the name most like it; else None.

    It is no error: a profile may be older than the queue, and the scheduler refuses a typo at once.
    """
    site, name = run.cluster, run.resources.partition_or_queue
    if name is None or not site.queues or name in site.queues:
        return None
    instead = did_you_mean(name, site.queues) or f"it lists {', '.join(site.queues)}"
    return f"resources.partition={name}: the profile of {site.name} lists no such queue; {instead}"


def routed(run: Run) -> Run:
    """Return *run*, sent to the site's queue for GPUs if it asks for GPUs and its own queue has none.

    Raises `ConfigError` where the profile names no such queue (``cluster.gpu_queue``). A run without GPUs, or in a
    queue of which the profile does not say whether it has GPUs, stays as it is.
    """
    site, queue = run.cluster, run.resources.partition_or_queue
    known = site.queues.get(queue or "")
    if not run.resources.gpus_per_node or known is None or known.gpus is not False:
        return run
    if site.gpu_queue is None:
        raise ConfigError(
            f"resources.gpus_per_node={run.resources.gpus_per_node}: queue {queue} of cluster={site.name} has no GPUs, "
            "and its profile names no other for them (cluster.gpu_queue)"
        )
    return replace(run, resources=replace(run.resources, partition=site.gpu_queue, queue=None))
