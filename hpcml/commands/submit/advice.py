"""What is said of a submission before it is made: refusals, warnings, the scheduler's answer, and the dry run."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from hpcml.commands.submit import images, launch, packs, snapshot
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.check import unknown_queue, with_jobs
from hpcml.commands.submit.plan import Planned, absent_paths
from hpcml.commands.submit.program import start_of
from hpcml.errors import NotPrivateError, SubmissionError
from hpcml.model.cluster import SchedulerName
from hpcml.model.run import Run
from hpcml.mounts import file_system_of, is_local
from hpcml.paths import Places
from hpcml.runs.files import read_whole
from hpcml.runs.plan import Plan
from hpcml.runs.private import why_shared
from hpcml.schedulers.contract import Preview
from hpcml.schedulers.registry import backend_of, find_programs
from hpcml.schedulers.rehearsal import Rehearsal
from hpcml.schedulers.request import ACCOUNT_PLACEHOLDER, request_for_pack
from hpcml.walltime import spell_walltime

_DIRECTIVE = re.compile(rb"#(?:SBATCH|PBS|BSUB|FLUX:?)\s")
_COMMENT = re.compile(rb"\s*(?:#.*)?")
_MOST = 10  # questions of one submission: each is a call of the scheduler
_SOON_S = 60.0


# What refuses a submission, and what looks wrong.


def refusals(planned: Sequence[Planned]) -> list[str]:
    """Return, each once, what refuses a submission; a dry run, which may be made far from the site, warns of it."""
    found = {line: None for item in planned for line in absent_paths(item.run)}
    if any(item.run.resources.account == ACCOUNT_PLACEHOLDER for item in planned):
        yours = "resources.account=..., HPCML_ACCOUNT, or 'account: ...' in hpcml.yaml here"
        found[f"resources.account={ACCOUNT_PLACEHOLDER} stands for an account of yours: set {yours}"] = None
    return list(found)


def all_warnings(planned: Sequence[Planned], places: Places) -> list[str]:
    """Return every warning about *planned*, each once and sorted; for ``hpcml run``, with and without ``--dry-run``.

    They come from the site's profile, file systems, packing and the code. A warning stops nothing.
    """
    kind_of = functools.cache(file_system_of)  # asked once, for thousands of runs in one folder
    found = {text for item in planned for text in warnings(item, places, kind_of)}
    found |= {*_unread_directives(planned), *packs.warnings(planned), *snapshot.check(planned, places)}
    return sorted(found)


def warnings(item: Planned, places: Places, kind_of: Callable[[Path], str | None] = file_system_of) -> Iterator[str]:
    """Yield one line for each thing of a run on a cluster that looks wrong and may yet be right.

    It is the profile's status, queue, account, whole nodes, walltime, and whether HPCML_HOME, the data and the working
    directory are on a file system that other nodes can see, which *kind_of* tells.
    """
    run = item.run
    site, wanted = run.cluster, run.resources
    if site.scheduler is SchedulerName.local:
        return
    if site.status != "active":
        yield f"cluster={site.name} is {site.status} according to its profile"
    if queue := unknown_queue(run):
        yield queue
    pattern = f"(?:{site.account_pattern})|{ACCOUNT_PLACEHOLDER}"
    if wanted.account and site.account_pattern and not re.fullmatch(pattern, wanted.account):
        yield f"resources.account={wanted.account} looks like no account of {site.name} ({site.account_pattern})"
    if site.whole_nodes and site.gpus_per_node and wanted.gpus_per_node not in (None, 0, site.gpus_per_node):
        yield (
            f"resources.gpus_per_node={wanted.gpus_per_node}: {site.name} gives out whole nodes, "
            f"all {site.gpus_per_node} GPUs will be charged"
        )
    if wanted.walltime is None:
        yield f"no resources.walltime: the job gets the default of {site.name}, and cannot stop in time by itself"
    data = None if run.data.path is None else Path(run.data.path)
    seen = {"HPCML_HOME": places.home, "data.path": data, "the working directory": item.code_folder}
    for what, path in seen.items():
        kind = None if path is None else kind_of(path)
        if is_local(kind):
            yield f"{what} ({path}) is on {kind}, a file system of this machine: do the nodes of {site.name} see it?"


def _unread_directives(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield a line for each job script that is started as a program: its directives are comments then."""
    own = [item.plan for item in planned if item.run.workload.command is not None]
    starts = dict.fromkeys(start_of(plan.argv, Path(plan.cwd)) for plan in own)
    for cwd, name in dict.fromkeys((start.cwd, name) for start in starts for name in start.files):
        with suppress(OSError):
            lines = read_whole(cwd / name).splitlines()
            found = next(filter(_DIRECTIVE.match, takewhile(_COMMENT.fullmatch, lines)), None)
            if found is not None:
                yield (
                    f"the {found.split()[0].decode()} lines of {name} are not read: resources.* in front of the -- "
                    "asks for nodes, cores, GPUs and time, and -m with a list behind it makes what was an array"
                )


# What the scheduler says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What the scheduler said of all jobs of a submission, for people."""

    refusals: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()

    def refuse(self) -> None:
        """Raise `SubmissionError` with the scheduler's first refusal."""
        if self.refusals:
            more = len(self.refusals) - 1
            others = f" (and {more} more)" if more else ""
            raise SubmissionError(f"{self.refusals[0]}{others}; nothing was written or queued")


def rehearse(planned: Sequence[Planned], places: Places, backends: Backends) -> Rehearsed:
    """Ask the scheduler whether it would take each distinct request of *planned*; silence refuses nothing.

    Nothing is written or queued. Not asked are runs of this machine, those with ``schedule.preflight=false``, and
    schedulers that are not here.
    """
    can_ask = functools.cache(
        lambda scheduler: backend_of(scheduler).rehearse is not None and None not in find_programs(scheduler).values()
    )
    asked = [
        item
        for item in planned
        if item.run.schedule.preflight
        and item.run.resources.account != ACCOUNT_PLACEHOLDER
        and can_ask(item.run.cluster.scheduler.name)
    ]
    seen: list[object] = []
    found: list[Rehearsal] = []
    for batch in launch.draft(asked, places) if asked else ():
        request = request_for_pack(batch.packs[0])
        ask = backend_of(request.cluster.scheduler.name).rehearse
        if ask is None or request in seen:
            continue
        seen.append(request)
        if len(found) < _MOST:
            found.append(ask(batch, launch.submitter_of(batch, backends).preview(batch).script))
    more = [f"the scheduler was asked about {_MOST} of {len(seen)} kinds of jobs before submission"]
    return Rehearsed(
        refusals=list(dict.fromkeys(answer.refused for answer in found if answer.refused is not None)),
        warnings=list(dict.fromkeys(text for answer in found for text in answer.warnings)) + more * (len(seen) > _MOST),
        notes=_starts(found, time.time()),
    )


def _starts(found: Sequence[Rehearsal], now: float) -> list[str]:
    """Return a line for when the jobs are expected to start; none where that is at once."""
    waits = sorted(max(0.0, answer.starts_at - now) for answer in found if answer.starts_at is not None)
    if not waits or waits[-1] < _SOON_S:
        return []
    first, last = (spell_walltime(round(wait / 60) * 60) for wait in (waits[0], waits[-1]))
    when = f"in {first}" if first == last else f"in {first} to {last}"
    return [f"the scheduler expects the start {when}, as the queue stands now"]


# The dry run.


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPreview:
    """What `hpcml run` would do: each run with its plan and overrides, and each call of a scheduler.

    `runs` and `submissions` are in the order of the submission.
    """

    runs: Sequence[tuple[Run, Plan, tuple[str, ...]]]
    submissions: Sequence[Preview]
    sources: Sequence[str]  # a line for each place that code, and each image, would come from
    warnings: Sequence[str]


def preview_submission(
    planned: Sequence[Planned], places: Places, backends: Backends, *, environ: Mapping[str, str], project: Path
) -> SubmissionPreview:
    """Return what a submission of *planned* would be; nothing is written, built or submitted.

    Raises the `ConfigError` or `ImageError` that the submission would raise. *environ* and *project* are as for
    `run.submit_points`: they say where images and their definitions are.
    """
    if places.home.is_dir() and (shared := why_shared(places.home)):
        raise NotPrivateError(shared)
    planned = with_jobs(planned, places)
    planned, lines = images.foreseen(planned, environ, project)
    submissions = launch.preview(planned, places, backends)
    answer = rehearse(planned, places, backends)
    refused = [*refusals(planned), *answer.refusals]
    return SubmissionPreview(
        runs=[(item.run, launch.plan_shown(item, places), item.overrides) for item in planned],
        submissions=submissions,
        sources=[*snapshot.foreseen(planned, places), *lines, *answer.notes],
        warnings=[*refused, *answer.warnings, *all_warnings(planned, places)],
    )
