"""Composed runs checked against the machine or the site they are meant for; nothing is written."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.cluster import Cluster, SchedulerName
from hpcml.config.compose import Composed
from hpcml.container import ContainerKind
from hpcml.data_path import check_exists
from hpcml.errors import ConfigError
from hpcml.manifest import Image, Plan
from hpcml.operations import packing
from hpcml.operations.containers import check_binds, fitted
from hpcml.operations.machine import Machine
from hpcml.operations.queues import refuse_impossible, routed
from hpcml.precision import CPU, Device
from hpcml.recipe import own_recipes
from hpcml.resources import resource_dir
from hpcml.schedulers.presence import find_programs
from hpcml.spec import Run
from hpcml.workload import Software, build_plan, processes_per_node

_MOST_DEFAULT_CORES = 8  # a small model gains nothing from more, and leaves room for a second run


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run that could start now: checked, and nothing written yet."""

    run: Run
    plan: Plan
    overrides: tuple[str, ...]
    user_config: tuple[str, ...]
    repeat: int = 0  # which of schedule.repeats it is
    image: Image | None = None  # what it will be put into; None: nothing, or not looked for yet

    @property
    def wants_image(self) -> bool:
        """Whether it is to run in a container."""
        return self.run.container.kind is not ContainerKind.none

    @property
    def code_folder(self) -> Path:
        """Where its program starts: the code around it is the run's."""
        return Path(self.plan.cwd)


def is_importable(module: str) -> bool:
    """Tell whether this Python, which recipes are started with, finds *module*; nothing is imported."""
    return importlib.util.find_spec(module) is not None


def plan_all(
    points: Sequence[Composed], machine: Machine, has_module: Callable[[str], bool] = is_importable
) -> list[Planned]:
    """Plan every point, or raise `ConfigError` for the first that cannot run; nothing has happened then.

    The order is by repeat, then by seed: precisions take turns, so that a machine that warms up or fills up meets them
    alike.
    """
    cwd, shipped = Path.cwd(), resource_dir("recipes")
    software = Software(
        python=sys.executable,
        recipes=shipped,
        own_recipes=own_recipes(cwd, shipped),
        cwd=cwd,
        has_module=has_module,
    )
    planned = sorted((_plan(point, machine, software) for point in points), key=lambda item: item.run.seed)
    most = max((item.run.schedule.repeats for item in planned), default=0)
    repeated = [
        replace(item, repeat=repeat) for repeat in range(most) for item in planned if repeat < item.run.schedule.repeats
    ]
    packing.packs_of(repeated)  # refuses packs that would never run
    return repeated


def _plan(point: Composed, machine: Machine, software: Software) -> Planned:
    run = routed(point.run)
    if run.data.path is not None:
        check_exists(run.data.path)
    cwd = Path(run.workload.cwd or software.cwd)
    if not cwd.is_dir():
        raise ConfigError(f"workload.cwd={cwd} is no directory")
    refuse_impossible(run)
    local = run.cluster.scheduler is SchedulerName.local
    device = _local_device(run, machine) if local else run.profile_device()
    cpus = _local_cpus(run, machine, device) if local else run.resources.cpus_per_task
    run = fitted(run, _as_found(run.cluster, machine, device) if local else run.cluster)
    is_inside = run.container.kind is not ContainerKind.none
    if not _starts_in_this_python(run):
        software = replace(software, has_module=None)
    plan = build_plan(run, device, software.inside if is_inside else software, cpus_per_task=cpus)
    if is_inside:
        check_binds(plan, run)
    elif local and run.workload.command and not _is_startable(plan.argv[0], cwd):
        raise ConfigError(f"workload.command={run.workload.command!r}: there is no program {plan.argv[0]!r} here")
    return Planned(run=run, plan=plan, overrides=point.overrides, user_config=point.user_config)


def _starts_in_this_python(run: Run) -> bool:
    """Tell whether what this Python finds is what the run will find: jobs from here, and nothing that adds to it."""
    site = run.cluster
    adds = bool(site.modules or site.prelude) or "PYTHONPATH" in run.workload.env
    return not adds and all(find_programs(site.scheduler.name).values())


def _as_found(cluster: Cluster, machine: Machine, device: Device) -> Cluster:
    """Return the profile of this machine with what is known of its GPU."""
    if device.kind == "cpu":
        return cluster
    first = machine.gpus[0]
    capability = first.compute_capability and "{}.{}".format(*first.compute_capability)
    return replace(cluster, gpu_vendor="nvidia", gpu_compute_capability=capability, host_driver=first.driver)


def _is_startable(program: str, cwd: Path) -> bool:
    """Tell whether *program* would start in *cwd*: looked up on PATH unless it is a path, as execvp does."""
    return shutil.which(str(cwd / program) if os.sep in program else program) is not None


def _local_device(run: Run, machine: Machine) -> Device:
    wanted = run.resources.gpus_per_node
    if wanted is not None and wanted > len(machine.gpus):
        raise ConfigError(f"resources.gpus_per_node={wanted}: this machine shows {len(machine.gpus)}")
    if wanted == 0 or not machine.gpus:
        return CPU
    first = machine.gpus[0]
    return Device(kind="cuda", name=first.name, compute_capability=first.compute_capability)


def _local_cpus(run: Run, machine: Machine, device: Device) -> int:
    processes = processes_per_node(run, device)
    share = machine.cores // (processes if device.kind == "cpu" else max(len(machine.gpus), processes))
    cpus = run.resources.cpus_per_task or max(1, min(share, _MOST_DEFAULT_CORES))
    if cpus * processes > machine.cores:
        raise ConfigError(
            f"{processes} process(es) with resources.cpus_per_task={cpus}: this machine has {machine.cores} cores"
        )
    return cpus
