"""Estimates of how long planned runs take and what they use, from recorded runs, for ``hpcml plan --time``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpcml.agent import host
from hpcml.analysis import estimate
from hpcml.analysis.estimate import Precedents, find_precedents
from hpcml.analysis.planning import Estimate, Forecast, Wanted
from hpcml.commands.collect import collect, opened
from hpcml.commands.submit.backends import Machine
from hpcml.commands.submit.plan import Planned
from hpcml.model.asked_used import asked_and_used
from hpcml.model.cluster import SchedulerName
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.plan import kept_of_walltime_s
from hpcml.store import query
from hpcml.store.database import Database
from hpcml.store.where import Filter
from hpcml.walltime import parse_walltime_s

_MOST = 300  # of the completed runs of a model on a cluster, the newest: loading them takes a fraction of a second


def estimate_runs(planned: Sequence[Planned], places: Places, machine: Machine) -> Estimate:
    """Return what recorded runs say of *planned*, in their order; nothing is submitted.

    The store is brought up to date before. At most the 300 newest completed runs of each model on each cluster are
    used.
    """
    with opened(places) as store:
        collect(store, places)
        return _asked(store, planned, machine)


def _asked(store: Database, planned: Sequence[Planned], machine: Machine) -> Estimate:
    wanted = [_wanted(item, machine) for item in planned]
    of_work = {
        (model, cluster): query.find_runs(
            store,
            states=[State.COMPLETED],
            filters=[
                Filter(key="model.name", op="=", value=model),
                Filter(key="cluster.name", op="=", value=cluster),
            ],
            sort="t_end",
            descending=True,
            limit=_MOST,
        )
        for model, cluster in {(item.run.model.name, item.run.cluster.name) for item in planned}
    }
    precedents = [
        find_precedents(each, of_work[item.run.model.name, item.run.cluster.name])
        for each, item in zip(wanted, planned, strict=True)
    ]
    uids = list(dict.fromkeys(run.uid for found in precedents for run in found.runs))
    found = estimate.estimate(wanted, precedents, query.curves(store, uids, "step_time_s"))
    return replace(found, forecasts=list(map(_with_asked, found.forecasts, precedents)))


def _with_asked(forecast: Forecast, precedents: Precedents) -> Forecast:
    """Return *forecast* with what runs alike used of what it asks for; others would say too little of it."""
    if forecast.basis != "alike":
        return forecast
    return replace(forecast, asked=asked_and_used(forecast.wanted.params, precedents.runs))


def _wanted(item: Planned, machine: Machine) -> Wanted:
    """Return what the estimate must know of a planned run: settings, devices, GPUs that are charged, and its times."""
    run, plan, site = item.run, item.plan, item.run.cluster
    nodes, gpus = run.resources.nodes, plan.gpus_per_node
    is_local = site.scheduler is SchedulerName.local
    charged = site.gpus_per_node if site.whole_nodes and gpus and site.gpus_per_node else gpus
    model = None
    if is_local:
        model = machine.gpus[0].name if plan.device == "cuda" else host.facts().get("cpu_model")
    is_packed = plan.walltime_s is not None and plan.stop_after_s == plan.walltime_s
    has_all = is_local or is_packed  # of its walltime: nothing is kept, or the job keeps it
    return Wanted(
        name=" ".join(item.overrides) or "the defaults",
        seed=run.seed,
        params=run.settings,
        numerics=plan.numerics.name,
        device=plan.device,
        device_model=model,
        gpus=nodes * gpus,
        charged_gpus=nodes * charged,
        nodes=nodes,
        walltime_s=plan.walltime_s,
        stop_after_s=plan.stop_after_s,
        warn_after_s=plan.warn_after_s,
        margin_s=0 if has_all else kept_of_walltime_s(plan.stop_grace_s),
        limit_s=_limit_s(item),
        whole_nodes=site.whole_nodes,
        co2_g_per_kwh=site.co2_g_per_kwh,
    )


def _limit_s(item: Planned) -> int | None:
    """Return the longest walltime that the site's profile allows to this run."""
    site = item.run.cluster
    queue = site.queues.get(item.run.resources.partition_or_queue or "")
    limits = [site.max_walltime, queue.max_walltime if queue is not None else None]
    return min((parse_walltime_s(limit, field="max_walltime") for limit in limits if limit is not None), default=None)
