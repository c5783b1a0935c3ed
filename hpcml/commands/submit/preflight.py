"""Refusals and warnings before a submission: of paths, queues, accounts, file systems, and walltimes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from hpcml.commands.machine import Machine
from hpcml.commands.submit import packing, snapshot, walltimes
from hpcml.commands.submit.data_path import absent_paths
from hpcml.commands.submit.planned import Planned
from hpcml.commands.submit.queues import unknown_queue
from hpcml.commands.submit.startable import start_of
from hpcml.errors import StoreError
from hpcml.model.cluster import SchedulerName
from hpcml.mounts import file_system_of, is_local
from hpcml.paths import Places
from hpcml.runs.files import read_whole
from hpcml.schedulers.request import ACCOUNT_PLACEHOLDER

# How many threads a process begins: of OpenMP, and of libraries that ask their own first.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "JULIA_NUM_THREADS")
_DIRECTIVE = re.compile(rb"#(?:SBATCH|PBS|BSUB|FLUX:?)\s")
_COMMENT = re.compile(rb"\s*(?:#.*)?")


def refusals(planned: Sequence[Planned]) -> list[str]:
    """Return, each once, what refuses a submission; a dry run, which may be made far from the site, warns of it."""
    found = {line: None for item in planned for line in absent_paths(item.run)}
    if any(item.run.resources.account == ACCOUNT_PLACEHOLDER for item in planned):
        yours = "resources.account=..., HPCML_ACCOUNT, or 'account: ...' in hpcml.yaml here"
        found[f"resources.account={ACCOUNT_PLACEHOLDER} stands for an account of yours: set {yours}"] = None
    return list(found)


def all_warnings(planned: Sequence[Planned], places: Places, machine: Machine) -> list[str]:
    """Return every warning about *planned*, each once and sorted; for ``hpcml run``, with and without ``--dry-run``.

    They come from the site's profile, file systems, recorded runtimes, packing and the code. A warning stops nothing.
    """
    own = [item for item in planned if item.run.workload.command is not None]
    kind_of = functools.cache(file_system_of)  # asked once, for thousands of runs in one folder
    found = {text for item in planned for text in warnings(item, places, kind_of)}
    found |= set(_walltime_warnings(planned, places, machine))
    found |= set(_unread_directives(own))
    return sorted(found | set(packing.warnings(planned)) | set(snapshot.check(planned, places)))


def _unread_directives(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield a line for each job script that is started as a program: its directives are comments then."""
    starts = dict.fromkeys(start_of(item.plan.argv, Path(item.plan.cwd)) for item in planned)
    for cwd, name in dict.fromkeys((start.cwd, name) for start in starts for name in start.files):
        with suppress(OSError):
            lines = read_whole(cwd / name).splitlines()
            found = next(filter(_DIRECTIVE.match, takewhile(_COMMENT.fullmatch, lines)), None)
            if found is not None:
                directive = found.split()[0].decode()
                yield (
                    f"the {directive} lines of {name} are not read: resources.* in front of the -- asks for nodes, "
                    "cores, GPUs and time, and -m with a list behind it makes what was an array"
                )


def _walltime_warnings(planned: Sequence[Planned], places: Places, machine: Machine) -> Iterator[str]:
    """Yield what recorded runs say of the walltimes; that they cannot be asked refuses nothing, and is said."""
    if all(item.plan.stop_after_s is None for item in planned):
        return
    try:
        yield from walltimes.warnings(planned, places, machine)
    except (StoreError, OSError) as error:
        yield f"no recorded run was asked whether the walltime will do: {error}"


def warnings(item: Planned, places: Places, kind_of: Callable[[Path], str | None] | None = None) -> Iterator[str]:
    """Yield one line for each thing that looks wrong and may yet be right.

    Of any run it is whether more threads are set than cores are asked for; of one on a cluster also the profile's
    status, queue, account, whole nodes, walltime, and whether HPCML_HOME, the data and the working directory are on a
    file system that other nodes can see, which *kind_of* tells (`file_system_of`).
    """
    run = item.run
    site, wanted = run.cluster, run.resources
    yield from _thread_warnings(run.workload.env, item.plan.cpus_per_task)
    if site.scheduler is SchedulerName.local:
        return
    if site.status != "active":
        yield f"cluster={site.name} is {site.status} according to its profile"
    if queue := unknown_queue(run):
        yield queue
    if (
        wanted.account
        and site.account_pattern
        and not re.fullmatch(f"(?:{site.account_pattern})|{ACCOUNT_PLACEHOLDER}", wanted.account)
    ):
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
        kind = None if path is None else (kind_of or file_system_of)(path)
        if is_local(kind):
            yield f"{what} ({path}) is on {kind}, a file system of this machine: do the nodes of {site.name} see it?"


def _thread_warnings(variables: Mapping[str, str], cores: int | None) -> Iterator[str]:
    """Yield a line for each variable that sets more threads than a process has *cores*: they would take turns."""
    for name in _THREADS:
        threads = variables.get(name, "")
        if cores is not None and threads.isdecimal() and int(threads) > cores:
            yield (
                f"workload.env.{name}={threads}, and a process has {cores} core{'s' if cores > 1 else ''}: its threads "
                f"take turns; resources.cpus_per_task={threads} asks for as many, and sets {_THREADS[0]} by itself"
            )
