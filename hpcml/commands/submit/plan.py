"""The plan of a run: command line, environment and processes that the agent starts, once the settings fit together.

Also what a recipe asks of data.path: that it is of the kind that the recipe reads, and not empty.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.agent.ranks import PROFILE, overrides_env
from hpcml.commands.submit.strategy import (
    Division,
    check_strategy,
    divide,
    gpus_per_node,
    mpi_start_of,
    processes_per_node,
    replaced_products,
)
from hpcml.errors import ConfigError, require
from hpcml.model.cluster import SchedulerName
from hpcml.model.container import ContainerKind
from hpcml.model.placeholders import MIXED_PRECISION, fill_in, names_in
from hpcml.model.precision import (
    INFERENCE,
    Device,
    capability,
    decide_numerics,
    environment,
    mixed_precision,
)
from hpcml.model.recipe import check, check_modules, check_requirements, find_program, read_recipe
from hpcml.model.run import Launcher, ProfileTool, Run
from hpcml.model.secrets import masked
from hpcml.runs.plan import Image, Plan, stop_and_warn_after_s

_LONGEST_WORD = 131_071  # bytes: Linux' MAX_ARG_STRLEN without the zero at the end (man execve)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run that could start now: checked, and nothing written yet.

    `overrides` are the words of the command line that made this point of a sweep, without secrets; `user_config` are
    the folders of options that were read besides hpcml's own.
    """

    run: Run
    plan: Plan
    overrides: tuple[str, ...]
    user_config: tuple[str, ...]
    call: bytes | None = None  # as composed
    repeat: int = 0  # which of schedule.repeats it is
    image: Image | None = None  # what it will be put into; None: nothing, or not looked for yet

    @property
    def wants_image(self) -> bool:
        """Whether it is to run in a container."""
        return self.run.container.kind is not ContainerKind.none

    @property
    def code_folder(self) -> Path:
        """The folder in which its program is submitted to start; the code around it counts as the run's."""
        return Path(self.plan.cwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The Python and the recipes that a run is started with."""

    python: str
    recipes: Path  # that ship with hpcml
    own_recipes: Path | None = None  # the user's, if there are any
    cwd: Path  # where a workload starts that names no other place
    has_module: Callable[[str], bool] | None = None  # whether python can import it; None: nobody knows

    @property
    def inside(self) -> Software:
        """The same inside an image: its own ``python3``, of which it is not known which modules it has."""
        return replace(self, python="python3", has_module=None)


def build_plan(run: Run, device: Device, software: Software, *, cpus_per_task: int | None) -> Plan:
    """Return everything that the agent needs to know of *run*: numerics, command line, environment, ranks, times.

    *device* is what each rank computes on. *cpus_per_task* is written into OMP_NUM_THREADS and MKL_NUM_THREADS; None
    leaves them to the scheduler. The strategy, recipe and data are checked against each other on the way.

    Raises `ConfigError` where the device cannot compute in the precision, the strategy does not fit the batch or the
    devices, the recipe refuses a setting, or the command cannot be split into words.
    """
    numerics = decide_numerics(run.precision.name, run.precision.numerics, device, run.model.framework)
    if run.training.compile and (what := replaced_products(run, numerics)) is not None:
        raise ConfigError(f"training.compile=true: compiled code escapes the {what}: set it to false")
    division: Division = {}
    if run.workload.command is None:
        argv, division = _start_of_recipe(run, device, software)
    else:
        argv = _own_words(run, run.workload.command)
        require(
            capability(run.precision.name, run.model.framework).trains,
            f"precision={run.precision.name.name}: nothing is trained in it, and hpcml quantises no program: "
            f"{INFERENCE}; a program that quantises by itself has precision=own",
        )
    check_strategy(run, device, numerics, cpus_per_task=cpus_per_task)
    profiler = _profiler(run, processes_per_node(run, device) * run.resources.nodes)
    plan = Plan(
        numerics=numerics,
        device=device.kind,
        argv=argv,
        environment=_environment(run, device, numerics.name, cpus_per_task),
        cwd=run.workload.cwd or str(software.cwd),
        processes_per_node=processes_per_node(run, device),
        gpus_per_node=gpus_per_node(run, device),
        cpus_per_task=cpus_per_task,
        stop_grace_s=run.workload.stop_grace_s,
        mpi=mpi_start_of(run),
        walltime_s=None,  # `with_times`
        stop_after_s=None,
        profiled=[*profiler, *argv] if profiler else [],
        **division,
    )
    return with_times(plan, run)


def _profiler(run: Run, processes: int) -> list[str]:
    """Return what starts the program under NVIDIA's profilers; empty where none of them is asked for.

    Each process is told by the agent where its file lies (HPCML_PROFILE). Options: ``nsys profile --help``, ``ncu
    --help``; those of the user come last, so that they win. Raises `ConfigError` for a process that there is not, and
    for a program that this machine, on which the run is to be, has not.
    """
    profile = run.profile
    if profile.tool is ProfileTool.none:
        return []
    require(
        run.workload.launcher is not Launcher.none,
        f"profile={profile.tool.name}: with workload.launcher=none the command starts its processes itself: put "
        "the profiler into the command",
    )
    require(
        max(profile.ranks) < processes, f"profile.ranks={profile.ranks}: the run has {processes} process(es), from 0 on"
    )
    if profile.tool is ProfileTool.torch:
        return []
    name, out = profile.tool.name, f"%q{{{PROFILE}}}"
    is_here = run.cluster.scheduler is SchedulerName.local and run.container.kind is ContainerKind.none
    is_of_torch = run.workload.command is None and run.model.framework == "torch"
    require(
        not is_here or shutil.which(name) is not None,
        f"profile={name}: there is no {name} on this machine: load its module"
        + (", or use profile=torch" if is_of_torch else ""),
    )
    from_step = profile.first_step is not None
    if profile.tool is ProfileTool.nsys:
        steps = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if from_step else []
        words = ["nsys", "profile", "--sample=none", "--force-overwrite=true", f"--output={out}"]
    else:
        steps = ["--profile-from-start=off"] if from_step else []
        words = ["ncu", "--target-processes=all", "--force-overwrite", f"--export={out}"]
    return [*words, *steps, *profile.options]


def with_times(plan: Plan, run: Run, *, is_packed: bool = False) -> Plan:
    """Return *plan* with the times that follow from the walltime of *run*; all are None without a walltime.

    On a cluster `stop_after_s` is at least a minute shorter than the walltime, so that the agent can end the program
    and write the outcome down before the scheduler kills the job; never shorter than half of it. `warn_after_s` is
    earlier by ``schedule.notice_s``. A packed run shares its job with others: the margin is the job's, and the run has
    all of its own walltime.
    """
    walltime_s = run.resources.walltime_s
    if walltime_s is None:
        return replace(plan, walltime_s=None, stop_after_s=None, warn_after_s=None)
    is_alone = run.cluster.scheduler is not SchedulerName.local and not is_packed
    grace_s, notice_s = run.workload.stop_grace_s, run.schedule.notice_s
    stop_after_s, warn_after_s = stop_and_warn_after_s(
        walltime_s, grace_s=grace_s, notice_s=notice_s, is_alone=is_alone
    )
    return replace(plan, walltime_s=walltime_s, stop_after_s=stop_after_s, warn_after_s=warn_after_s)


def _start_of_recipe(run: Run, device: Device, software: Software) -> tuple[list[str], Division]:
    """Return how the recipe is started, and how it divides a batch.

    Raises `ConfigError` for what the recipe would refuse when it starts, as far as that can be known before.
    """
    assert run.model.recipe is not None  # Run refuses to exist with neither
    script = find_program(run.model.recipe, software.recipes, software.own_recipes)
    recipe = read_recipe(script.parent)
    check(run, recipe)
    needs = recipe.needs.get(run.data.name)
    if needs is not None and needs.path is not None:
        check_kind(run.data.path, needs.path, data=run.data.name)
    processes, gpus = processes_per_node(run, device), gpus_per_node(run, device)
    division: Division = {} if recipe.measures else divide(run, processes_per_node=processes, gpus_per_node=gpus)
    check_requirements(run, recipe, {"device": device.kind, **division})
    if software.has_module is not None:
        check_modules(run, recipe, software.python, software.has_module)
    return [software.python, str(script)], division


def _own_words(run: Run, command: str) -> list[str]:
    """Return the words of the user's own *command*, with its placeholders filled in.

    A word that is nothing but a placeholder for nothing is left out: a flag that is not there.
    """
    words = _split(command)
    values = {"seed": str(run.seed), "precision": run.precision.name.name}
    swept = run.workload.args or {}
    if MIXED_PRECISION not in swept and names_in(words, [MIXED_PRECISION]):
        values[MIXED_PRECISION] = mixed_precision(run.precision.name)
    values |= swept
    absent = {f"{{{name}}}" for name, value in swept.items() if not value}
    argv = [fill_in(words[0], values), *(fill_in(word, values) for word in words[1:] if word not in absent)]
    for word in (*argv, *(f"{name}={value}" for name, value in run.workload.env.items())):
        require(
            (size := len(os.fsencode(word))) <= _LONGEST_WORD,
            f"{masked([word])[0][:40]}... has {size:,} bytes, and Linux takes no word or variable of more than "
            f"{_LONGEST_WORD:,}: write it to a file",
        )
    return argv


def _split(command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"workload.command={command!r}: {error}") from error
    if not argv:
        raise ConfigError("workload.command is empty: write what runs, as in hpcml run -- python train.py")
    return argv


_TOLD_EACH_PROCESS = ("HPCML_PRECISION", "HPCML_NUMERICS")
# What torch.compile made of one run's graph is no other run's: PyTorch before 2.13 gives a program that asks for FP16
# (or, in an autocast, FP32) what it compiled for BF16 (pytorch/pytorch#181564). Kernels are kept, by their source.
_NO_GRAPHS_OF_BEFORE = dict.fromkeys(
    ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO"), "0"
)


def _environment(run: Run, device: Device, numerics: str, cpus_per_task: int | None) -> dict[str, str | None]:
    """Return the variables that the run adds to the job's; None removes one.

    Raises `ConfigError` where ``workload.env`` would undo the switches of the precision or the strategy, or names what
    each process is told.
    """
    switches, by_strategy = environment(run.precision.name), run.strategy.environment()
    processes = processes_per_node(run, device) * run.resources.nodes
    for name in sorted(run.workload.env):
        if name in switches:
            raise ConfigError(f"workload.env.{name} would undo precision={run.precision.name.name}: leave it to hpcml")
        if name in by_strategy:
            library = name.partition("_")[0].lower()
            raise ConfigError(f"workload.env.{name} would undo strategy.{library}: set one of them")
        if name in _TOLD_EACH_PROCESS or overrides_env(run, name, processes=processes):
            raise ConfigError(
                f"workload.env.{name} would have no effect: hpcml tells each of {processes} process(es) its own "
                f"{name}: leave it out"
            )
    variables: dict[str, str | None] = {
        **switches,
        **by_strategy,
        **_NO_GRAPHS_OF_BEFORE,
        "HPCML_PRECISION": run.precision.name.name,
        "HPCML_NUMERICS": numerics,
        "PYTHONUNBUFFERED": "1",  # a killed program has said all it printed
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order that NVML and the scheduler use
    }
    if device.kind == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    if cpus_per_task is not None:
        variables |= {name: str(cpus_per_task) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**variables, **run.workload.env}


# The data.

_KINDS = {"file": "a file", "folder": "a folder", "any": "a file or a folder"}  # as recipe.toml says it


def absent_paths(run: Run) -> Iterator[str]:
    """Yield a line for each path, of the data and of an image, that *run* names and that this machine has not.

    Raises `ConfigError` for one that cannot be looked at.
    """
    for key, path in (("data.path", run.data.path), ("container.path", run.container.path)):
        if path is not None and not _ask(Path(path), Path.exists, key):
            yield f"{key}={path} does not exist"


def check_kind(path: str | None, kind: str, *, data: str) -> None:
    """Raise `ConfigError` unless *path* is what the recipe reads *data* from: of the right kind, readable, not empty.

    *kind* is file, folder or any, as the recipe's recipe.toml has it. None is an error too; what is absent is none
    here (`absent_paths`).
    """
    if path is None:
        raise ConfigError(f"data={data} needs data.path: {_KINDS[kind]}")
    place = Path(path)
    if not _ask(place, Path.exists):
        return
    is_folder = _ask(place, Path.is_dir)
    if kind != "any" and is_folder is not (kind == "folder"):
        found = "folder" if is_folder else "file"
        raise ConfigError(f"data.path={path} is {_KINDS[found]}: data={data} is read from {_KINDS[kind]}")
    if _ask(place, _is_empty):
        raise ConfigError(f"data.path={path} is empty: data={data} is read from it")
    if not os.access(place, os.R_OK | (os.X_OK if is_folder else 0)):
        raise ConfigError(f"data.path={path} cannot be read by you: change its permissions")


def _is_empty(place: Path) -> bool:
    if place.is_dir():
        with os.scandir(place) as entries:  # not listed: data sets have folders with millions of files
            return next(entries, None) is None
    return place.stat().st_size == 0


def _ask(place: Path, question: Callable[[Path], bool], key: str = "data.path") -> bool:
    try:
        return question(place)
    except OSError as error:
        raise ConfigError(f"{key}={place} cannot be looked at: {error.strerror}") from error
