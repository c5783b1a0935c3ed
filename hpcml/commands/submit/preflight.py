"""Warnings before a submission: queues, accounts, file systems, and walltimes that recorded runs needed more than."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath

import yaml

from hpcml.commands.machine import Machine
from hpcml.commands.submit import code, packing, walltimes
from hpcml.commands.submit.job_scripts import syntax_errors, unread_directives
from hpcml.commands.submit.planned import Planned
from hpcml.commands.submit.python_start import imports_of_nothing
from hpcml.commands.submit.queues import unknown_queue
from hpcml.commands.submit.startable import has_known_python, named_files, python_script
from hpcml.config.guess import nearest
from hpcml.config.unreadable import why_unreadable
from hpcml.errors import StoreError
from hpcml.model.cluster import SchedulerName
from hpcml.model.container import ContainerKind
from hpcml.mounts import file_system_of, is_local
from hpcml.paths import Places
from hpcml.runs.files import read_whole

# How many threads a process begins: of OpenMP, and of libraries that ask their own first.
_MOST_OF_SETTINGS = 1 << 18  # bytes
_SETTINGS = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".gin", ".json")
_SETTINGS_OPTION = re.compile(r"conf|cfg|param|setting|args|spec|deepspeed", re.IGNORECASE)
_OUTPUT_OPTION = re.compile(r"out|save|log|result|write|export|dump|report|record", re.IGNORECASE)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "JULIA_NUM_THREADS")


def all_warnings(planned: Sequence[Planned], places: Places, machine: Machine) -> list[str]:
    """Return every warning about *planned*, each once and sorted; for ``hpcml run``, with and without ``--dry-run``.

    They come from the site's profile, file systems, recorded runtimes, packing and the code. A warning stops nothing.
    """
    own = [item for item in planned if item.run.workload.command is not None]
    kind_of = functools.cache(file_system_of)  # asked once, for thousands of runs in one folder
    found = {text for item in planned for text in warnings(item, places, kind_of)}
    found |= set(_walltime_warnings(planned, places, machine))
    commands = {
        (item.plan.argv[0], item.plan.cwd, *named_files(item.plan.argv, Path(item.plan.cwd))): item for item in own
    }
    found |= {text for item in commands.values() for text in syntax_errors(item.plan.argv, Path(item.plan.cwd))}
    found |= set(_import_warnings(own)) | set(_settings_warnings(own)) | set(_missing_settings(own))
    return sorted(found | set(packing.warnings(planned)) | set(code.warnings(planned)))


def _import_warnings(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield what scripts that are queued import, and their Python, as it is found here, does not find."""
    asked = {
        (script, item.plan.argv[0], Path(item.plan.cwd), item.run.workload.env.get("PYTHONPATH", inherited))
        for item in planned
        if item.run.cluster.scheduler is not SchedulerName.local  # where it is seen at once
        and has_known_python(item.run)
        and (script := python_script(item.plan.argv, Path(item.plan.cwd))) is not None
        for inherited in [os.environ.get("PYTHONPATH", "")]
    }
    for script, program, cwd, path in asked:
        if lost := imports_of_nothing(script, program, cwd, path):
            yield (
                f"{script.name} imports {', '.join(lost)}, and its Python has no such module here: activate the "
                "environment that has it before hpcml run"
            )


def _settings_warnings(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield where files of YAML that the words of a program name are none; templates are left alone."""
    words = {(item.plan.cwd, word) for item in planned for word in item.plan.argv if word.endswith((".yaml", ".yml"))}
    for cwd, name in {(cwd, word.rpartition("=")[2]) for cwd, word in words}:
        try:
            text = read_whole(Path(cwd) / name, most=_MOST_OF_SETTINGS)
        except OSError:
            continue  # it is not there yet, or large
        if b"{{" not in text and b"{%" not in text and (error := _error_in(text)) is not None:
            yield why_unreadable(name, error)


def _missing_settings(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield which files of settings that the words of a program name are not there, where one of a like name is.

    Without one it may be what the program makes, or finds in another folder.
    """
    asked = {
        (item.plan.cwd, *named)
        for item in planned
        for named in _named_settings(item.plan.argv)
        if item.run.container.kind is ContainerKind.none or not os.path.isabs(named[1])  # noqa: PTH117 - a text
    }
    for cwd, option, name in sorted(asked):
        is_read = _SETTINGS_OPTION.search(option) if name.endswith(".json") else not _OUTPUT_OPTION.search(option)
        if is_read and (near := _like_named(Path(cwd), PurePath(name))):
            yield f"{name} is not there, seen from {cwd}: did you mean {near}?"


def _named_settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files of settings that *words* name, each with the option that it is given to ("" without one)."""
    for before, word in pairwise(words):
        option, _, name = word.rpartition("=")
        if name.endswith(_SETTINGS):
            yield option or (before if before.startswith("-") else ""), name


def _like_named(cwd: Path, name: PurePath) -> str | None:
    """Return the file that somebody may have meant who wrote *name*, a path that is not there; None: nobody knows."""
    folder = cwd
    for at, part in enumerate(name.parts):
        try:
            (folder / part).lstat()
        except FileNotFoundError:
            rest = name.parts[at + 1 :]
            if name.is_absolute() and rest:  # of another machine, maybe
                return None
            near = _like(folder, part, "" if rest else name.suffix)
            meant = None if near is None else PurePath(*name.parts[:at], near, *rest)
            return str(meant) if meant is not None and os.path.isfile(cwd / meant) else None  # noqa: PTH113 - raises none
        except OSError:
            return None
        folder /= part
    return None


def _like(folder: Path, part: str, end: str) -> str | None:
    """Return what is called like *part* in *folder*, of that which ends in *end*."""
    try:
        stems = [name.removesuffix(end) for name in os.listdir(folder) if name.endswith(end)]  # noqa: PTH208 - texts
    except OSError:
        return None
    near = nearest(part.removesuffix(end), stems)
    return near[0] + end if near else None


def _error_in(settings: bytes) -> Exception | None:
    """Return what is wrong with a text of YAML, to both parsers of PyYAML; None if nothing is, or only one is here.

    The one in C takes no time, and the square of it for nothing; the other says it better.
    """
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is None or (found := _refusal(settings, fast)) is None or "nesting" in str(found):
        return None
    return _refusal(settings, yaml.SafeLoader)


def _refusal(settings: bytes, loader: type[yaml.SafeLoader]) -> Exception | None:
    try:
        for _ in yaml.parse(settings, Loader=loader):  # reads no values, so that own tags do no harm
            pass
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter of a number in it
        return error
    return None


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

    Of any run it is whether more threads are set than cores are asked for, and whether a job script that it starts asks
    for what it does not; of one on a cluster also the profile's
    status, queue, account, whole nodes, walltime, and whether HPCML_HOME, the data and the working directory are on a
    file system that other nodes can see, which *kind_of* tells (`file_system_of`).
    """
    run = item.run
    site, wanted = run.cluster, run.resources
    yield from _thread_warnings(run.workload.env, item.plan.cpus_per_task)
    yield from unread_directives(item)
    if site.scheduler is SchedulerName.local:
        return
    if site.status != "active":
        yield f"cluster={site.name} is {site.status} according to its profile"
    if queue := unknown_queue(run):
        yield queue
    if wanted.account and site.account_pattern and not re.fullmatch(f"(?:{site.account_pattern})", wanted.account):
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
