"""The plan of a run: command line, environment and processes that the agent starts, once the settings fit together."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from hpcml.agent.ranks import PROFILE, overrides_env
from hpcml.commands.submit.launchers import mpi_start_of
from hpcml.errors import ConfigError, require
from hpcml.model.choices import Numerics
from hpcml.model.cluster import SchedulerName
from hpcml.model.container import ContainerKind
from hpcml.model.placeholders import MIXED_PRECISION, fill_in, names_in
from hpcml.model.precision import (
    INFERENCE,
    SCALED_PRODUCTS,
    Device,
    PrecisionName,
    capability,
    decide_numerics,
    environment,
    mixed_precision,
)
from hpcml.model.recipe import check, check_modules, check_requirements, find_program, read_recipe
from hpcml.model.run import Launcher, LayoutName, ProfileTool, Run
from hpcml.model.strategy import KINDS, NVLS_NEEDS, Nccl, Processes, StrategyName
from hpcml.runs.plan import Plan, stop_and_warn_after_s


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


class _Times(TypedDict):
    walltime_s: int | None
    stop_after_s: int | None
    warn_after_s: int | None


def gpus_per_node(run: Run, device: Device) -> int:
    """Return how many GPUs of a node the run uses: what it asks for, else one.

    On a *device* without a GPU it is 0, whatever is asked for; on MIG slices 1, since a process sees one.
    """
    if device.kind == "cpu":
        return 0
    if run.resources.mig is not None:
        return 1
    return 1 if run.resources.gpus_per_node is None else run.resources.gpus_per_node


def processes_per_node(run: Run, device: Device) -> int:
    """Return how many processes (ranks) the agent starts on each node.

    The strategy decides: one, ``strategy.processes_per_node``, or one for each GPU. A program of one's own with Horovod
    gets one process, since its own launcher (horovodrun) starts the ranks, unless ``workload.launcher`` does.
    """
    processes = KINDS[run.strategy.name].processes
    is_launcher = run.strategy.name is StrategyName.horovod and run.workload.launcher is Launcher.auto
    if processes is Processes.one or (is_launcher and run.workload.command is not None):
        return 1
    if processes is Processes.per_node:
        return run.strategy.processes_per_node or 1
    return run.strategy.processes_per_node or gpus_per_node(run, device)


def build_plan(run: Run, device: Device, software: Software, *, cpus_per_task: int | None) -> Plan:
    """Return everything that the agent needs to know of *run*: numerics, command line, environment, ranks, times.

    *device* is what each rank computes on. *cpus_per_task* is written into OMP_NUM_THREADS and MKL_NUM_THREADS; None
    leaves them to the scheduler. The strategy, recipe and data are checked against each other on the way.

    Raises `ConfigError` where the device cannot compute in the precision, the strategy does not fit the batch or the
    devices, the recipe refuses a setting, or the command cannot be split into words.
    """
    numerics = decide_numerics(run.precision.name, run.precision.numerics, device, run.model.framework)
    if run.training.compile and (what := _replaced_products(run, numerics)) is not None:
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
    return Plan(
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
        profiled=[*profiler, *argv] if profiler else [],
        **division,
        **_times(run, is_packed=False),
    )


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
    return replace(plan, **_times(run, is_packed=is_packed))


def _times(run: Run, *, is_packed: bool) -> _Times:
    walltime_s = run.resources.walltime_s
    if walltime_s is None:
        return {"walltime_s": None, "stop_after_s": None, "warn_after_s": None}
    is_alone = run.cluster.scheduler is not SchedulerName.local and not is_packed
    grace_s, notice_s = run.workload.stop_grace_s, run.schedule.notice_s
    stop_after_s, warn_after_s = stop_and_warn_after_s(
        walltime_s, grace_s=grace_s, notice_s=notice_s, is_alone=is_alone
    )
    return {"walltime_s": walltime_s, "stop_after_s": stop_after_s, "warn_after_s": warn_after_s}


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
    if names_in(words, [MIXED_PRECISION]):
        values[MIXED_PRECISION] = mixed_precision(run.precision.name)
    values |= run.workload.args or {}
    absent = {f"{{{name}}}" for name, value in (run.workload.args or {}).items() if not value}
    return [fill_in(words[0], values), *(fill_in(word, values) for word in words[1:] if word not in absent)]


def _split(command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"workload.command={command!r}: {error}") from error
    if not argv:
        raise ConfigError("workload.command is empty: write what runs, as in hpcml run -- python train.py")
    return argv


_TOLD = ("HPCML_PRECISION", "HPCML_NUMERICS")
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
    switches = environment(run.precision.name)
    for name in sorted(switches.keys() & run.workload.env.keys()):
        raise ConfigError(f"workload.env.{name} would undo precision={run.precision.name.name}: leave it to hpcml")
    told = run.strategy.environment()
    for name in sorted(told.keys() & run.workload.env.keys()):
        library = name.partition("_")[0].lower()
        raise ConfigError(f"workload.env.{name} would undo strategy.{library}: set one of them")
    processes = processes_per_node(run, device) * run.resources.nodes
    for name in sorted(run.workload.env):
        if name in _TOLD or overrides_env(run, name, processes=processes):
            raise ConfigError(
                f"workload.env.{name} would have no effect: hpcml tells each of {processes} process(es) its own "
                f"{name}: leave it out"
            )
    variables: dict[str, str | None] = {
        **switches,
        **told,
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


# Whether the strategy fits the other settings of a run, once its devices are known.

_NOT_COMPILED = (StrategyName.fsdp, StrategyName.pipeline, StrategyName.model_parallel, StrategyName.horovod)
_SHARED_BY_PROCESSES = (StrategyName.ddp, StrategyName.fsdp, StrategyName.horovod)
_SHARED_BY_DEVICES = (StrategyName.mirrored, StrategyName.central_storage)
_MICROBATCHES = 4  # the recipes' own choice, where strategy.microbatches is null
_STAGES = 2  # the same of model_parallel without a GPU


class Division(TypedDict, total=False):
    """How a batch, and a model, are divided.

    It is written into run.json as a part of the plan, and the recipe reads it there instead of computing it again.
    """

    part_size: int  # the samples that are computed at once
    stages: int  # of strategies that cut the model


def check_strategy(run: Run, device: Device, numerics: Numerics, *, cpus_per_task: int | None) -> None:
    """Raise `ConfigError` where the strategy of *run* does not fit its device, precision, or other settings.

    For a ``workload.command`` less is checked: what a program of one's own can do is not known.
    """
    strategy = run.strategy
    require(
        device.kind != "cpu" or strategy.nccl == Nccl(),
        "strategy.nccl means nothing without GPUs, where gloo sends: leave it at null",
    )
    algo, capability_ = strategy.nccl.algo or "", device.compute_capability
    require(
        not algo.startswith("nvls") or capability_ is None or capability_ >= NVLS_NEEDS,
        f"strategy.nccl.algo={algo} is the NVSwitches' own (NVLink SHARP), from compute capability 9.0: {device.name}",
    )
    require(
        strategy.name is not StrategyName.cpu_threads or cpus_per_task is not None,
        "strategy=cpu_threads needs resources.cpus_per_task: how many threads",
    )
    is_launcher = strategy.name is StrategyName.horovod and run.workload.launcher is Launcher.auto
    require(
        not is_launcher or run.workload.command is None or run.resources.nodes == 1,
        f"resources.nodes={run.resources.nodes}: strategy=horovod starts one launcher for a workload.command: use 1, "
        "or have the ranks started by MPI: workload.launcher=mpirun or srun",
    )
    launcher, each = run.workload.own_launcher, processes_per_node(run, device)
    require(
        launcher is None or each == 1 or mpi_start_of(run) is not None,
        f"{launcher} starts the processes itself, and strategy={strategy.name.name} would start it {each} times: use "
        f"strategy=single, or leave {launcher} out",
    )
    if run.workload.command is None:
        _check_recipe(run, numerics)
        if device.kind == "cuda" and run.resources.gpus_per_node is None:
            _check_one_gpu(run)


def divide(run: Run, *, processes_per_node: int, gpus_per_node: int) -> Division:
    """Return how the recipe of *run* divides a batch and its model, or raise `ConfigError` where it cannot.

    A batch of ``training.batch_size`` samples is shared by the processes (ddp, fsdp, horovod) or the devices (mirrored,
    central_storage, multi_worker_mirrored), and each share is computed in ``training.accumulate`` parts: 256 samples on
    4 GPUs with accumulate=2 are parts of 32. A pipeline divides it into ``strategy.microbatches`` instead, and has a
    stage for each process. Every division must be without remainder.
    """
    name, training, devices = run.strategy.name, run.training, run.strategy.devices
    processes = processes_per_node * run.resources.nodes
    if name is StrategyName.pipeline:
        return {"part_size": _microbatch_size(run, processes), "stages": processes}
    shares = _shares(run, processes, gpus_per_node)
    require(
        training.batch_size % shares == 0,
        f"training.batch_size={training.batch_size} cannot be shared by {shares} "
        f"{'processes' if name in _SHARED_BY_PROCESSES else 'devices'}: use a multiple of {shares}",
    )
    share = training.batch_size // shares
    require(
        share % training.accumulate == 0,
        f"training.accumulate={training.accumulate} does not divide the {share} samples of each share "
        f"(training.batch_size={training.batch_size}, {shares} share(s))",
    )
    part_size = share // training.accumulate
    if name is StrategyName.model_parallel:
        return {"part_size": part_size, "stages": gpus_per_node or devices or _STAGES}
    return {"part_size": part_size}


def _shares(run: Run, processes: int, gpus_per_node: int) -> int:
    """Return how many parts of a batch are computed side by side."""
    name = run.strategy.name
    if name in _SHARED_BY_PROCESSES:
        return processes
    if name in _SHARED_BY_DEVICES:
        return gpus_per_node or run.strategy.devices or 1
    if name is StrategyName.multi_worker_mirrored:
        return gpus_per_node * run.resources.nodes or processes
    return 1


def _microbatch_size(run: Run, stages: int) -> int:
    batch_size, parts = run.training.batch_size, run.strategy.microbatches or _MICROBATCHES
    require(batch_size % parts == 0, f"strategy.microbatches={parts} does not divide training.batch_size={batch_size}")
    require(
        run.strategy.schedule != "1f1b" or parts >= stages,
        f"strategy.microbatches={parts}: strategy.schedule=1f1b needs one for each of {stages} stages, or more",
    )
    return batch_size // parts


def _check_one_gpu(run: Run) -> None:
    try:
        run.strategy.check(nodes=run.resources.nodes, gpus_per_node=1)
    except ConfigError as error:
        raise ConfigError(
            f"{error} (resources.gpus_per_node=null is one GPU: say how many, or 0 for the CPU)"
        ) from error


def _check_recipe(run: Run, numerics: Numerics) -> None:
    name, training = run.strategy.name, run.training
    is_by_gloo = name is StrategyName.horovod and run.workload.launcher is Launcher.auto
    require(
        not is_by_gloo or run.model.framework != "tensorflow",
        "strategy=horovod in TensorFlow is started by MPI: set workload.launcher=mpirun or srun",
    )
    require(
        not is_by_gloo or not run.strategy.horovod.hierarchical,
        "strategy.horovod.hierarchical=true is a part of Horovod's MPI operations: set workload.launcher=mpirun or "
        "srun",
    )
    require(
        not (training.compile and name in _NOT_COMPILED),
        f"training.compile=true with strategy={name.name} is not supported: set it to false",
    )
    require(
        not (name is StrategyName.fsdp and run.layout.name is LayoutName.nhwc),
        "layout=nhwc with strategy=fsdp: torch shards contiguous parameters only: use layout=nchw",
    )
    require(
        not (name is StrategyName.horovod and run.precision.name is PrecisionName.bf16),
        "precision=bf16 with strategy=horovod: Horovod sends no BF16: use precision=amp_bf16 or strategy=ddp",
    )
    require(
        not (name is StrategyName.horovod and run.precision.name is PrecisionName.fp8_hybrid_delayed),
        "precision=fp8_hybrid_delayed with strategy=horovod: the ranks cannot share the maxima of their tensors: "
        "use precision=fp8_hybrid or strategy=ddp",
    )
    if name is StrategyName.pipeline:
        _check_pipeline(run, numerics)


def _replaced_products(run: Run, numerics: Numerics) -> str | None:
    """Return whose products hpcml computes in place of the framework's; None where it computes none."""
    if numerics is Numerics.emulated:
        return f"emulation of {run.precision.name.name}"
    return f"scaled products of {run.precision.name.name}" if run.precision.name in SCALED_PRODUCTS else None


def _check_pipeline(run: Run, numerics: Numerics) -> None:
    precision, training = run.precision.name, run.training
    if numerics is Numerics.emulated:
        raise ConfigError(f"precision={precision.name} is emulated here, which strategy=pipeline does not do")
    require(
        precision not in SCALED_PRODUCTS,
        f"precision={precision.name} is computed by scaled products, which strategy=pipeline does not do",
    )
    if precision is PrecisionName.amp_fp16 and run.precision.loss_scaling:
        raise ConfigError(
            "precision=amp_fp16 scales the loss, which stages of a pipeline cannot agree on: use precision=amp_bf16"
        )
    require(
        training.accumulate == 1,
        f"training.accumulate={training.accumulate}: strategy=pipeline has strategy.microbatches",
    )


# Checks of data.path: it exists, is of the kind that the recipe reads, and is not empty.

_KINDS = {"file": "a file", "folder": "a folder", "any": "a file or a folder"}  # as recipe.toml says it


def check_exists(path: str) -> None:
    """Raise `ConfigError` unless *path* (``data.path``) exists and its folder may be looked into."""
    if not _ask(Path(path), Path.exists):
        raise ConfigError(f"data.path={path} does not exist")


def check_kind(path: str | None, kind: str, *, data: str) -> None:
    """Raise `ConfigError` unless *path* is what the recipe reads *data* from: of the right kind, readable, not empty.

    *kind* is file, folder or any, as the recipe's recipe.toml has it. *path* must exist (`check_exists`); None is an
    error too.
    """
    if path is None:
        raise ConfigError(f"data={data} needs data.path: {_KINDS[kind]}")
    place = Path(path)
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


def _ask(place: Path, question: Callable[[Path], bool]) -> bool:
    try:
        return question(place)
    except OSError as error:
        raise ConfigError(f"data.path={place} cannot be looked at: {error.strerror}") from error
