"""A run held against what its site's profile says of its queues."""

from __future__ import annotations

import difflib
from dataclasses import replace

from hpcml.errors import ConfigError
from hpcml.quantities import parse_walltime_s
from hpcml.spec import Run


def refuse_impossible(run: Run) -> None:
    """Raise `ConfigError` for what the site's queues, as its profile knows them, would never run."""
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
    """Return a line about a queue that the profile does not list; the scheduler will refuse a typo at once."""
    site, name = run.cluster, run.resources.partition_or_queue
    if name is None or not site.queues or name in site.queues:
        return None
    near = difflib.get_close_matches(name, site.queues, n=1)
    return f"resources.partition={name}: the profile of {site.name} lists no such queue; " + (
        f"did you mean {near[0]}?" if near else f"it lists {', '.join(site.queues)}"
    )


def routed(run: Run) -> Run:
    """Send a job that asks for GPUs to the queue that the site names for GPUs, if its own queue has none."""
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
