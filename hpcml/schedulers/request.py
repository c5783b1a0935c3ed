"""What is asked of a scheduler for one run, in Slurm's words and decided: no None is left to chance.

The way of a resource: `Resources` (what the user wrote) and the plan (how many processes that makes) become a `Request`
here, which `slurm/script` and `pbs/script` write down in the words of their scheduler. Times are in seconds, memory in
MiB, and GPUs, cores and memory are those of one node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpcml.errors import ConfigError, require
from hpcml.model.cluster import Cluster, Resources, SchedulerName
from hpcml.model.container import ContainerKind
from hpcml.model.pbs import PbsRequest
from hpcml.model.run import Run
from hpcml.runs.manifest import Manifest
from hpcml.schedulers.contract import Batch, Job
from hpcml.units import parse_memory_mb

PACK_MARGIN_S = 60  # of the job of a pack: what stands between its runs, and the last words
_LONGEST_WARNING_S = 65_535  # that Slurm takes
ACCOUNT_PLACEHOLDER = "YOUR-ACCOUNT"  # what a dry run shows where a site wants one and none was given


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One job's resources, for each node where they are a node's. None: not said, so the site's default holds.

    Runs with equal requests may share a job array: so nothing of a single run, as its name, is in here. `request_for`
    makes it. `cluster` is the site's profile; templates of it are filled with `fill`.
    """

    account: str | None
    partition: str | None
    qos: str | None
    nodes: int
    gpus_per_node: int
    cpus_per_node: int | None
    mem_mb: int | None  # of each node
    walltime_s: int | None
    constraint: str | None
    reservation: str | None
    nodelist: str | None
    exclude: str | None
    exclusive: bool
    dependency: str | None
    mail_user: str | None
    mail_type: str | None
    array_parallelism: int | None
    extra_directives: tuple[str, ...]  # the site's, then the user's; templates filled in
    cluster: Cluster
    warning_s: int | None = None  # before the end of the walltime, if the workload is to be warned then
    grace_s: int = 30  # what a program of it has between SIGTERM and SIGKILL
    pbs: PbsRequest = field(default_factory=PbsRequest)
    ranks_per_node: int | None = None  # that an MPI launcher starts on each node; None: one agent does
    ends_with_dependency: bool = False  # once what it waits for has failed, it shall not wait for ever

    @property
    def cores_per_node(self) -> int | None:
        """The cores of a node: as asked for, else all where the job has its nodes alone; None: neither is known.

        It is for schedulers that give a job no more cores than it names, its nodes whole or not. Slurm's `--exclusive`
        brings them all.
        """
        if self.cpus_per_node is None and (self.exclusive or self.cluster.whole_nodes):
            return self.cluster.cores_per_node
        return self.cpus_per_node


def request_for_batch(batch: Batch) -> Request:
    """Return the request of *batch*, which is that of its packs, with what holds for this batch alone.

    Raises `ConfigError` as `request_for_pack` does, and where the batch has to wait for another one and its runs name
    alternatives (Slurm's ``?``), which cannot stand beside that.
    """
    request = request_for_pack(batch.packs[0])
    if batch.at_once is not None:
        request = replace(request, array_parallelism=batch.at_once)
    if batch.after_job is None:
        return request
    if "?" in (request.dependency or ""):
        raise ConfigError(
            f"resources.dependency={request.dependency}: alternatives cannot be combined with "
            f"resources.array_parallelism, by which some jobs of this sweep wait for others: leave one of them out"
        )
    return replace(request, dependency=",".join(filter(None, [request.dependency, f"afterany:{batch.after_job}"])))


def request_for_pack(pack: Sequence[Job]) -> Request:
    """Return the request of a job that runs *pack*, one after the other; all but the walltime is that of the first.

    The walltime is the sum of theirs and `PACK_MARGIN_S`, or None
    as soon as one of them has none; the warning comes as early as the run that wants the longest needs it. Raises
    `ConfigError` as `fill` does. Whoever makes the packs sees to it that all runs of a pack ask for equal resources.
    """
    requests = [request_for(job.manifest) for job in pack]
    first = requests[0]
    if len(requests) == 1:
        return first
    times_s = [request.walltime_s for request in requests if request.walltime_s is not None]
    warnings_s = [request.warning_s for request in requests if request.warning_s is not None]
    is_limited = len(times_s) == len(requests)
    margin_s = PACK_MARGIN_S if is_limited else 0
    warning_s = min(max(warnings_s) + margin_s, _LONGEST_WARNING_S) if warnings_s else None
    return replace(first, walltime_s=sum(times_s) + margin_s if is_limited else None, warning_s=warning_s)


def request_for(manifest: Manifest) -> Request:
    """Return the request of a planned run: cores of a node are those of a process times its processes.

    Raises `ConfigError` where a template of the site's directives cannot be filled. Nothing is looked up: all is in the
    manifest, so that a script rendered later is the same.
    """
    run, plan = manifest.run, manifest.plan
    wanted, site = run.resources, _with_slice(_with_runtime(run), run.resources)
    cpus = None if plan.cpus_per_task is None else plan.cpus_per_task * plan.processes_per_node
    request = Request(
        account=wanted.account,
        partition=wanted.partition_or_queue,
        qos=wanted.qos,
        nodes=wanted.nodes,
        gpus_per_node=plan.gpus_per_node,
        cpus_per_node=cpus,
        mem_mb=None if wanted.mem is None else parse_memory_mb(wanted.mem),
        walltime_s=plan.walltime_s,
        constraint=wanted.constraint,
        reservation=wanted.reservation,
        nodelist=wanted.nodelist,
        exclude=wanted.exclude,
        exclusive=wanted.exclusive,
        dependency=wanted.dependency if plan.dependency is None else plan.dependency or None,
        mail_user=wanted.mail_user,
        mail_type=wanted.mail_type,
        array_parallelism=wanted.array_parallelism,
        extra_directives=(),
        cluster=site,
        warning_s=_warning_s(manifest),
        grace_s=plan.stop_grace_s,
        pbs=wanted.pbs,
        ranks_per_node=None if plan.mpi is None else plan.processes_per_node,
        ends_with_dependency=plan.dependency is not None,
    )
    if not site.directives and not wanted.extra_directives:
        return request
    asked = [("cluster.directives", fill(template, request)) for template in site.directives]
    asked += [("resources.extra_directives", text) for text in wanted.extra_directives]
    return replace(request, extra_directives=tuple(_option(text, key, site.scheduler) for key, text in asked))


# How a line of a job script begins that holds options of the job, for the schedulers whose scripts are written here.
_MARKS = {
    SchedulerName.slurm: "#SBATCH",
    SchedulerName.pbs: "#PBS",
    SchedulerName.lsf: "#BSUB",
    SchedulerName.flux: "#flux:",
}


# The option that makes several jobs of one; it is said here, and never by who writes of a run
_ARRAYS = {
    SchedulerName.slurm: re.compile(r"(?<!\S)(--ar(r|ra|ray)?|-a)(?![a-z-])"),  # an option may be cut short
    SchedulerName.pbs: re.compile(r"(?<!\S)-J\s*\d"),
    SchedulerName.lsf: re.compile(r"(?<!\S)-J\s*[^\s\[]*\["),
}


def _option(text: str, key: str, scheduler: SchedulerName) -> str:
    """Return the options of a job in *text*, without what a line of a script begins with.

    Raises `ConfigError` for what is none: in a script it would be taken for a comment, or end the submission. And for
    an array, whose elements would all carry out the same run.
    """
    if (mark := _MARKS.get(scheduler)) is None:
        return text
    option = text.strip().removeprefix(mark).strip()
    require(
        option.startswith("-"),
        f"{key}: {text!r} is no option of {scheduler.name}: write it as on its command line, from its - or -- on",
    )
    array = _ARRAYS.get(scheduler)
    require(
        array is None or array.search(_unquoted(option)) is None,
        f"{key}: {text!r} would start each run several times: leave it out, and sweep by -m, as in -m seed=0,1,2",
    )
    return option


def _unquoted(option: str) -> str:
    """Return the words of *option* without quotes, but for those that hold spaces, and without a comment."""
    try:
        words = shlex.split(option, comments=True)
    except ValueError:  # of a quote that nothing closes, which the scheduler refuses
        words = option.split()
    return " ".join(word for word in words if not re.search(r"\s", word))


def _with_runtime(run: Run) -> Cluster:
    """Return the cluster of *run* with the module that brings what starts its image."""
    site, module = run.cluster, run.cluster.container_module
    if run.container.kind is ContainerKind.none or module is None or module in site.modules:
        return site
    return replace(site, modules=[*site.modules, module])


def _with_slice(site: Cluster, wanted: Resources) -> Cluster:
    """Return *site* with the scheduler's name of the MIG slice that is wanted in place of its whole GPUs'."""
    if wanted.mig is None or site.mig_type is None:
        return site
    return replace(site, gpu_type=site.mig_type.replace("{mig}", wanted.mig))


def _warning_s(manifest: Manifest) -> int | None:
    """Return how long before the walltime the job is warned; Slurm takes 65535 s at most (man sbatch, --signal).

    None where the workload wants no warning.
    """
    plan = manifest.plan
    if plan.walltime_s is None:  # the site's default holds: only the scheduler knows it
        return min(manifest.run.schedule.notice_s, _LONGEST_WARNING_S)
    return None if plan.warn_after_s is None else min(plan.walltime_s - plan.warn_after_s, _LONGEST_WARNING_S)


def fill(template: str, request: Request) -> str:
    """Fill {nodes} {gpus} {gpus_total} {gpu_type} {cores} of a site's template; GPUs and cores are those of a node.

    ``--gres=gpu:{gpu_type}:{gpus}`` becomes ``--gres=gpu:a100:4``. Raises `ConfigError` where a word is none of these,
    or stands for something that is not known.
    """
    values = {
        "nodes": request.nodes,
        "gpus": request.gpus_per_node,
        "gpus_total": request.gpus_per_node * request.nodes,
        "gpu_type": request.cluster.gpu_type,
        "cores": request.cpus_per_node,
    }
    try:
        return template.format_map({name: value for name, value in values.items() if value is not None})
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"cluster={request.cluster.name}: the template {template!r} cannot be filled: {error}"
        ) from error
