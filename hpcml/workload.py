"""A run turned into what the agent starts: command line, environment and number of processes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from hpcml.cluster import SchedulerName
from hpcml.data_path import check_kind
from hpcml.errors import ConfigError
from hpcml.manifest import Plan
from hpcml.precision import Device, Numerics, decide_numerics, environment
from hpcml.recipe import check, check_modules, check_requirements, find_program, read_recipe
from hpcml.spec import Run
from hpcml.strategy import KINDS, Processes, StrategyName
from hpcml.strategy_fit import check_strategy, divide

_MARGIN_S = 60  # of a scheduler's walltime, so that the outcome is written down before everything is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What a recipe is started with."""

    python: str
    recipes: Path  # that ship with hpcml
    own_recipes: Path | None = None  # the user's, if there are any
    cwd: Path  # where a workload starts that names no other place
    has_module: Callable[[str], bool] | None = None  # whether python can import it; None: nobody knows

    @property
    def inside(self) -> Software:
        """The same in an image, which has a Python of its own."""
        return replace(self, python="python3", has_module=None)


class _Times(TypedDict):
    walltime_s: int | None
    stop_after_s: int | None
    warn_after_s: int | None


def gpus_per_node(run: Run, device: Device) -> int:
    """Return how many GPUs of a node the run uses: what it asks for, else one where it has a GPU at all."""
    if device.kind == "cpu":
        return 0
    return 1 if run.resources.gpus_per_node is None else run.resources.gpus_per_node


def processes_per_node(run: Run, device: Device) -> int:
    """Return the ranks that a node starts; a program of one's own with Horovod has a launcher, which starts them."""
    processes = KINDS[run.strategy.name].processes
    if processes is Processes.one or (run.strategy.name is StrategyName.horovod and run.workload.command is not None):
        return 1
    if processes is Processes.per_node:
        return run.strategy.processes_per_node or 1
    return run.strategy.processes_per_node or gpus_per_node(run, device)


def build_plan(run: Run, device: Device, software: Software, *, cpus_per_task: int | None) -> Plan:
    """Decide everything that the agent does, or raise `ConfigError` where *device* or the command cannot."""
    numerics = decide_numerics(run.precision.name, run.precision.numerics, device, run.model.framework)
    if run.training.compile and numerics is Numerics.emulated:
        name = run.precision.name.name
        raise ConfigError(f"training.compile=true: compiled code escapes the emulation of {name}: set it to false")
    argv = _start_of_recipe(run, device, software) if run.workload.command is None else _split(run.workload.command)
    check_strategy(run, device, numerics, cpus_per_task=cpus_per_task)
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
        **_times(run, is_packed=False),
    )


def with_times(plan: Plan, run: Run, *, is_packed: bool = False) -> Plan:
    """Return *plan* with the times that follow from the walltime of *run*.

    A packed run shares its job with others: the margin is the job's, and the run has all of its own walltime.
    """
    return replace(plan, **_times(run, is_packed=is_packed))


def _times(run: Run, *, is_packed: bool) -> _Times:
    walltime_s = run.resources.walltime_s
    if walltime_s is None:
        return {"walltime_s": None, "stop_after_s": None, "warn_after_s": None}
    stop_after_s = walltime_s
    if run.cluster.scheduler is not SchedulerName.local and not is_packed:
        margin_s = max(_MARGIN_S, run.workload.stop_grace_s + _MARGIN_S // 2)
        stop_after_s -= min(margin_s, walltime_s // 2)
    warn_after_s = stop_after_s - min(run.schedule.notice_s, stop_after_s // 2)
    return {"walltime_s": walltime_s, "stop_after_s": stop_after_s, "warn_after_s": warn_after_s}


def _start_of_recipe(run: Run, device: Device, software: Software) -> list[str]:
    """Return how the recipe is started; refuse what it would refuse then, as far as that can be known before."""
    assert run.model.recipe is not None  # Run refuses to exist with neither
    script = find_program(run.model.recipe, software.recipes, software.own_recipes)
    recipe = read_recipe(script.parent)
    check(run, recipe)
    needs = recipe.needs.get(run.data.name)
    if needs is not None and needs.path is not None:
        check_kind(run.data.path, needs.path, data=run.data.name)
    processes, gpus = processes_per_node(run, device), gpus_per_node(run, device)
    found_out = {} if recipe.measures else divide(run, processes_per_node=processes, gpus_per_node=gpus)
    check_requirements(run, recipe, {"device": device.kind, **found_out})
    if software.has_module is not None:
        check_modules(run, recipe, software.python, software.has_module)
    return [software.python, str(script)]


def _split(command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"workload.command={command!r}: {error}") from error
    if not argv:
        raise ConfigError("workload.command is empty")
    return argv


def _environment(run: Run, device: Device, numerics: str, cpus_per_task: int | None) -> dict[str, str | None]:
    switches = environment(run.precision.name)
    for name in sorted(switches.keys() & run.workload.env.keys()):
        raise ConfigError(f"workload.env.{name} would undo precision={run.precision.name.name}: leave it to hpcml")
    told = run.strategy.environment()
    for name in sorted(told.keys() & run.workload.env.keys()):
        library = name.partition("_")[0].lower()
        raise ConfigError(f"workload.env.{name} would undo strategy.{library}: set one of them")
    variables: dict[str, str | None] = {
        **switches,
        **told,
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
