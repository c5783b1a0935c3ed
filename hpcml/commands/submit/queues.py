"""The limits of a site's queues, from its profile: a run that no queue takes is refused before it is submitted."""

from __future__ import annotations

import difflib
from dataclasses import replace

from hpcml.errors import ConfigError
from hpcml.model.run import Run
from hpcml.units import parse_walltime_s


def refuse_impossible(run: Run) -> None:
    """Raise `ConfigError` for a walltime or a number of GPUs above the limit of the run's queue.

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
    gpus = (wanted.gpus_per_node or 0) * wanted.nodes
    if queue.max_gpus is not None and gpus > queue.max_gpus:
        raise ConfigError(f"{gpus} GPUs: queue {name} of cluster={site.name} allows {queue.max_gpus} to a job")


def unknown_queue(run: Run) -> str | None:
    """Return a warning about a queue that the profile does not list, with the name most like it; else None.

    It is no error: a profile may be older than the queue, and the scheduler refuses a typo at once.
    """
    site, name = run.cluster, run.resources.partition_or_queue
    if name is None or not site.queues or name in site.queues:
        return None
    near = difflib.get_close_matches(name, site.queues, n=1)
    return f"resources.partition={name}: the profile of {site.name} lists no such queue; " + (
        f"did you mean {near[0]}?" if near else f"it lists {', '.join(site.queues)}"
    )


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
