"""What a site asks of a run and allows it: the account that it charges, and the limits of its queues.

A run that no queue takes is refused before it is submitted. A profile may leave the limits to the scheduler
(``cluster.asks_scheduler``), which is asked once for all runs (`asked_of`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hpcml.config import user
from hpcml.config.compose import Composed
from hpcml.errors import ConfigError, HpcmlError, require
from hpcml.model.cluster import Cluster
from hpcml.model.run import Run
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.discover import Found, ask_of_site, describe
from hpcml.schedulers.registry import find_programs
from hpcml.schedulers.sites import LOOKS
from hpcml.spelling import did_you_mean
from hpcml.units import parse_walltime_s

log = logging.getLogger(__name__)

Ask = Callable[[str], str | None]
# Of a profile; those that it leaves open are taken from what the scheduler tells.
_ASKED = (
    *("gpu_type", "gpus_per_node", "cores_per_node", "cores_per_gpu", "mem_per_node", "queues", "gpu_queue"),
    *("max_walltime", "max_array_size"),
)


# The account.


def with_accounts(
    points: Sequence[Composed], environ: Mapping[str, str], project: Path, *, ask: Ask, placeholder: str | None = None
) -> list[Composed]:
    """Return *points* in their order, with an account for every run whose site charges one and that names none.

    The account is the first of: HPCML_ACCOUNT, `accounts` in the project's hpcml.yaml, the same in the user's
    configuration file, *placeholder* (of dry runs), and the answer of *ask*, which gets the question as text. A site is
    asked about once, however many runs go there.

    Raises `ConfigError` where none of them has an account; *ask* returns None where nobody can be asked (no terminal).
    """
    sites = {run.cluster.name: run.cluster for run in (point.run for point in points) if _lacks_account(run)}
    found = {
        name: known_account(site, environ, project) or placeholder or _asked(site, environ, ask)
        for name, site in sites.items()
    }
    return [
        replace(
            point,
            run=replace(point.run, resources=replace(point.run.resources, account=found[point.run.cluster.name])),
        )
        if _lacks_account(point.run)
        else point
        for point in points
    ]


def _lacks_account(run: Run) -> bool:
    return run.cluster.account_required and run.resources.account is None


def known_account(site: Cluster, environ: Mapping[str, str], project: Path) -> str | None:
    """Return the account for *site* that was configured before; None where there is none.

    HPCML_ACCOUNT holds for every site and comes first; then hpcml.yaml in *project*, then the user's configuration
    file. `hpcml doctor` calls this too, to report a missing account before a submission does.
    """
    if environ.get("HPCML_ACCOUNT"):
        return environ["HPCML_ACCOUNT"]
    files = [project / user.PROJECT_FILE, user.user_file(environ)]
    accounts = (user.read_preferences(file).account_for(site.name) for file in files if file is not None)
    return next((account for account in accounts if account), None)


def _asked(site: Cluster, environ: Mapping[str, str], ask: Ask) -> str:
    file = user.user_file(environ) or "your configuration"
    account = ask(f"Account to charge on {site.name} ('accounts: {{{site.name}: ...}}' in {file} sets it)")
    if not account:
        raise ConfigError(
            f"cluster={site.name} charges an account and none is given: set resources.account=..., HPCML_ACCOUNT, or "
            f"'accounts: {{{site.name}: ...}}' in {user.PROJECT_FILE} here or in {file}"
        )
    return account


# The queues.


def asked_of(site: Cluster, ask: Callable[[Sequence[str]], Answer] = ask_of_site) -> Found | None:
    """Return what the scheduler of *site* tells of it; None, with a warning, where it tells nothing."""
    look = LOOKS.get(site.scheduler.name)
    absent = [name for name, place in find_programs(site.scheduler.name).items() if place is None]
    if look is None or absent:
        log.warning("cluster=%s asks its scheduler for queues and limits; not here: %s", site.name, ", ".join(absent))
        return None
    try:
        return describe(site.name, look[1](ask), today=datetime.now(tz=UTC).date())
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
    queue = site.queues.get(name or "")
    if queue is None:
        return  # a profile may be older than a queue; see `unknown_queue`
    where = f"queue {name} of cluster={site.name}"
    if wanted.walltime_s:
        most, least = (
            limit and parse_walltime_s(limit, field=f"cluster.queues.{name}.{which}_walltime")
            for which, limit in (("max", queue.max_walltime), ("min", queue.min_walltime))
        )
        walltime = f"resources.walltime={wanted.walltime}: {where}"
        require(not most or wanted.walltime_s <= most, f"{walltime} allows {queue.max_walltime}")
        require(not least or wanted.walltime_s >= least, f"{walltime} wants {queue.min_walltime} or more")
    nodes, gpus = f"resources.nodes={wanted.nodes}: {where}", (wanted.gpus_per_node or 0) * wanted.nodes
    require(queue.min_nodes is None or wanted.nodes >= queue.min_nodes, f"{nodes} begins at {queue.min_nodes}")
    require(queue.max_nodes is None or wanted.nodes <= queue.max_nodes, f"{nodes} allows {queue.max_nodes}")
    require(queue.max_gpus is None or gpus <= queue.max_gpus, f"{gpus} GPUs: {where} allows {queue.max_gpus} to a job")


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
