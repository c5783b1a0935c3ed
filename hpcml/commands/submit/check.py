"""Checking composed runs against this machine or their site, and planning them; nothing is written.

A run that no queue of its site takes is refused. A profile may leave the limits to the scheduler
(``cluster.asks_scheduler``), which is asked once for all runs.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hpcml.agent.telemetry.others import sampler_of
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import not_done_since
from hpcml.commands.submit import packs
from hpcml.commands.submit.backends import Machine, look_around
from hpcml.commands.submit.containers import check_binds, check_framework, fitted, lacks_fuse
from hpcml.commands.submit.plan import Planned, Software, absent_paths, build_plan
from hpcml.commands.submit.program import check_startable, start_of
from hpcml.commands.submit.strategy import processes_per_node
from hpcml.config.compose import Composed
from hpcml.config.sweep import MOST_RUNS, check_count
from hpcml.config.user import Ask, with_accounts
from hpcml.errors import ConfigError, HpcmlError, StoreError, require
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.container import ContainerKind
from hpcml.model.mig import check_is_told
from hpcml.model.precision import CPU, Device
from hpcml.model.recipe import own_recipes
from hpcml.model.records import RunRecord, check_tag, spell_job
from hpcml.model.run import Run
from hpcml.model.state import State
from hpcml.paths import Places, resource_dir
from hpcml.runs.dependency import WORDS, Clause, Outlook, clauses_of, outlook
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.discover import Found, ask_of_site, describe
from hpcml.schedulers.registry import backend_of, find_programs
from hpcml.schedulers.request import ACCOUNT_PLACEHOLDER
from hpcml.schedulers.sites import LOOKS
from hpcml.spelling import did_you_mean
from hpcml.store.database import Database
from hpcml.store.query import find_runs, runs_meant
from hpcml.walltime import parse_walltime_s

log = logging.getLogger(__name__)

_MOST_DEFAULT_CORES = 8  # a small model gains nothing from more, and leaves room for a second run
# Of a profile; those that it leaves open are taken from what the scheduler tells.
_ASKED = (
    *("gpu_type", "gpus_per_node", "cores_per_node", "cores_per_gpu", "mem_per_node", "queues", "gpu_queue"),
    *("max_walltime", "max_array_size"),
)


def is_importable(module: str) -> bool:
    """Tell whether this Python, which recipes are started with, finds the top-level *module*; it is not imported."""
    return importlib.util.find_spec(module) is not None


def plan_points(
    points: Sequence[Composed],
    environ: Mapping[str, str],
    project: Path,
    *,
    ask: Ask,
    is_dry: bool,
    most: int = MOST_RUNS,
) -> tuple[list[Planned], Machine]:
    """Give *points* their accounts and plan them on this machine, which is returned too.

    *environ* and *project* say where accounts are configured. Where one is not known, *ask* is asked for it; if
    *is_dry* a placeholder stands there instead. Raises `ConfigError` for the first run that cannot be planned, and for
    more than *most*, with all repeats.
    """
    repeats = max((point.run.schedule.repeats for point in points), default=1)
    check_count(sum(point.run.schedule.repeats for point in points), most, what=f"schedule.repeats={repeats}")
    placeholder = ACCOUNT_PLACEHOLDER if is_dry else None
    points = with_accounts(points, environ, project, ask=ask, placeholder=placeholder)
    machine = look_around(environ)
    return plan_all(_completed_by_schedulers(points), machine), machine


def _completed_by_schedulers(points: Sequence[Composed]) -> list[Composed]:
    """Return *points* with what their profiles leave to the schedulers, each of which is asked once."""
    sites = {point.run.cluster.name: point.run.cluster for point in points if point.run.cluster.asks_scheduler}
    answers = {name: asked_of(site) for name, site in sites.items()}
    return [replace(point, run=completed(point.run, answers.get(point.run.cluster.name))) for point in points]


def plan_all(
    points: Sequence[Composed], machine: Machine, has_module: Callable[[str], bool] = is_importable
) -> list[Planned]:
    """Plan every point, or raise `ConfigError` for the first that cannot run; nothing has happened then.

    The order is by repeat, then by seed: precisions take turns, so that a machine that warms up or fills up meets them
    alike. *has_module* tells whether Python can import a module by that name; recipes are refused whose framework is
    missing. Programs and working directories are looked up relative to the current directory.
    """
    cwd, shipped = Path.cwd(), resource_dir("recipes")
    software = Software(
        python=sys.executable,
        recipes=shipped,
        own_recipes=own_recipes(cwd, shipped),
        cwd=cwd,
        has_module=has_module,
    )
    is_here = functools.cache(lambda scheduler: all(find_programs(scheduler).values()))  # looks through PATH
    planned = sorted((_plan(point, machine, software, is_here) for point in points), key=lambda item: item.run.seed)
    _check_programs(planned)
    if any(lacks_fuse(item.run) for item in planned):
        log.warning(
            "/dev/fuse cannot be used here: each start unpacks its image first (--unsquash), which takes room in /tmp"
        )
    most = max((item.run.schedule.repeats for item in planned), default=0)
    repeated = [
        replace(item, repeat=repeat) for repeat in range(most) for item in planned if repeat < item.run.schedule.repeats
    ]
    packs.packs_of(repeated)  # refuses packs that would never run
    _warn_of_goals(points)
    return repeated


def _warn_of_goals(points: Sequence[Composed]) -> None:
    """Say where it is not known which way a metric is better."""
    for metric in sorted({point.run.objective.metric for point in points if point.run.objective.way is None}):
        log.warning("the name %s does not tell which way is better: say objective.goal=min or max", metric)


def _check_programs(planned: Sequence[Planned]) -> None:
    """Raise `ConfigError` where a command of the user's own cannot start; alike ones of a sweep are looked at once."""
    known: list[tuple[object, ...]] = []
    for item in planned:
        run = item.run
        if run.workload.command is None:
            continue
        start = start_of(item.plan.argv, Path(item.plan.cwd))
        asked = (start, run.workload.env.get("PATH"), run.cluster, run.container.kind)
        if asked not in known:
            check_startable(start, run)
            known.append(asked)


def _plan(point: Composed, machine: Machine, software: Software, is_here: Callable[[str], bool]) -> Planned:
    backend_of(point.run.cluster.scheduler.name)  # refuses one that is not there
    for name in point.run.telemetry.samplers:
        sampler_of(name)  # as above
    run = routed(point.run)
    for tag in run.tags:
        check_tag(tag)
    local = run.cluster.scheduler is SchedulerName.local
    for line in absent_paths(run) if local else ():  # a site's may be seen from there alone: `advice.refusals`
        raise ConfigError(line)
    cwd = Path(run.workload.cwd) if run.workload.cwd else software.cwd
    if not os.path.isdir(cwd):  # noqa: PTH112 - Path.is_dir raises where a name is longer than a file's may be
        raise ConfigError(f"workload.cwd={cwd} is no directory")
    refuse_impossible(run)
    _refuse_what_the_site_cannot_express(run)
    device = _local_device(run, machine) if local else run.profile_device()
    cpus = _local_cpus(run, machine, device) if local else run.resources.cpus_per_task
    run = fitted(run, _as_found(run.cluster, machine, device) if local else run.cluster)
    is_inside = run.container.kind is not ContainerKind.none
    if not _starts_in_this_python(run, is_here):
        software = replace(software, has_module=None)
    plan = build_plan(run, device, software.inside if is_inside else software, cpus_per_task=cpus)
    if is_inside:
        check_binds(plan, run)
    if run.container.kind is ContainerKind.build and run.workload.command is None:
        check_framework(run, Path(plan.argv[1]), software.cwd)
    return Planned(run=run, plan=plan, overrides=point.overrides, user_config=point.user_config, call=point.call)


def _refuse_what_the_site_cannot_express(run: Run) -> None:
    """Raise `ConfigError` for what the run asks for and the site's scheduler, or this machine, would not be told.

    A MIG slice that the site's templates do not name (whole GPUs would come), an option that its sbatch does not take,
    a limit that its scheduler does not know, and what only the script of a job would do.
    """
    site, wanted, backend = run.cluster, run.resources, backend_of(run.cluster.scheduler.name)
    if wanted.mig is not None and site.mig_type is not None:
        request = backend.gpu_request if site.gpu_request is None else site.gpu_request
        check_is_told(
            wanted.mig,
            cluster=site.name,
            mig_type=site.mig_type,
            gpu_request=request or "",
            directives=site.directives,
        )
    for key, value in (("cpus_per_task", wanted.cpus_per_task), ("mem", wanted.mem)):
        option = key.replace("_", "-")
        require(
            value is None or option not in site.slurm.refuses,
            f"resources.{key}={value}: cluster={site.name} takes no --{option} (cluster.slurm.refuses): write "
            f"resources.{key}=null, and the site decides",
        )
    require(
        wanted.array_parallelism is None or backend.limits_arrays,
        f"resources.array_parallelism={wanted.array_parallelism}: {backend.title} cannot be told how many jobs of a "
        "sweep may run at once: leave it out",
    )
    for name, words in (("modules", site.modules), ("prelude", site.prelude), ("directives", site.directives)):
        require(
            not words or site.scheduler is not SchedulerName.local,
            f"cluster.{name}={words}: no job script runs on this machine; programs get your shell's environment: "
            "prepare that before hpcml run",
        )


def _starts_in_this_python(run: Run, is_here: Callable[[str], bool]) -> bool:
    """Tell whether the run will find the same Python modules as this process.

    It does not where the job loads modules, runs a prelude or sets PYTHONPATH, or where it is submitted from another
    machine than this one (*is_here*: the programs of the scheduler are on this one).
    """
    site = run.cluster
    adds = bool(site.modules or site.prelude) or "PYTHONPATH" in run.workload.env
    return not adds and is_here(site.scheduler.name)


def _as_found(cluster: Cluster, machine: Machine, device: Device) -> Cluster:
    """Return the profile of this machine with what is known of its GPU."""
    if device.kind == "cpu":
        return cluster
    first = machine.gpus[0]
    capability = first.compute_capability and "{}.{}".format(*first.compute_capability)
    return replace(
        cluster,
        gpu_vendor="nvidia",
        gpu_model=first.name,
        gpu_compute_capability=capability,
        host_driver=first.driver,
    )


def _local_device(run: Run, machine: Machine) -> Device:
    """Return what a local run computes on: this machine's first GPU, or the CPU; `ConfigError` for too many GPUs."""
    wanted = run.resources.gpus_per_node
    if wanted is not None and wanted > len(machine.gpus):
        raise ConfigError(f"resources.gpus_per_node={wanted}: this machine shows {len(machine.gpus)}")
    if wanted == 0 or not machine.gpus:
        return CPU
    first = machine.gpus[0]
    return Device(kind="cuda", name=first.name, compute_capability=first.compute_capability)


def _local_cpus(run: Run, machine: Machine, device: Device) -> int:
    """Return the cores of each process of a local run: what it asks for, else a fair share, at most 8.

    A program of the user's own gets one: what more it could use is not known, and whoever waits for cores waits long.
    Raises `ConfigError` where the processes need more cores than this machine has.
    """
    processes = processes_per_node(run, device)
    share = machine.cores // (processes if device.kind == "cpu" else max(len(machine.gpus), processes))
    most = 1 if run.workload.command is not None else _MOST_DEFAULT_CORES
    cpus = run.resources.cpus_per_task or max(1, min(share, most))
    if cpus * processes > machine.cores:
        raise ConfigError(
            f"{processes} process(es) with resources.cpus_per_task={cpus}: this machine has {machine.cores} cores"
        )
    return cpus


# The queues.


def asked_of(site: Cluster, ask: Callable[[Sequence[str]], Answer] = ask_of_site) -> Found | None:
    """Return what Slurm or PBS tells of *site*; None, with a warning where it could, where nothing is told."""
    if (look := LOOKS.get(site.scheduler.name)) is None:
        return None
    if absent := [name for name, place in find_programs(site.scheduler.name).items() if place is None]:
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
    limits = {name: getattr(found.cluster, name) for name in _ASKED if not getattr(site, name)}
    if wanted.gpus_per_node and wanted.partition_or_queue is None:
        wanted = replace(wanted, partition=found.cluster.gpu_queue)
    return replace(run, cluster=replace(site, **limits), resources=wanted)


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


# What runs wait for: `resources.dependency` names runs, experiments or jobs; a scheduler knows jobs alone.


def with_jobs(planned: Sequence[Planned], places: Places) -> list[Planned]:
    """Return *planned* with the runs and the jobs that each waits for.

    The store is opened only where a dependency names a run. Raises `ConfigError` for a reference that means no run.
    """
    waits = {(text, run.cluster.scheduler): run for run in (item.run for item in planned) if (text := _text(run))}
    found = {key: (key[0], key[0]) for key, run in waits.items() if _names_no_run(run)}
    if len(found) < len(waits):
        with opened(places) as store:
            collect(store, places)
            found |= {key: jobs_waited_for(store, run) for key, run in waits.items() if key not in found}
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


def jobs_waited_for(store: Database, run: Run) -> tuple[str, str]:
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
