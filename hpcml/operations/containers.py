"""A run and its container brought together: what fits, and what is seen and set inside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from hpcml.cluster import Cluster, SchedulerName
from hpcml.container import Bind, Container, ContainerBuild, ContainerKind
from hpcml.errors import ConfigError
from hpcml.images import releases
from hpcml.images.command import ENV_PREFIXES, PASSED_ON, RUNTIME_ENVIRONMENT, exec_argv, gpu_for, wrapped
from hpcml.images.runtime import looks_like_an_image
from hpcml.manifest import Image, Plan
from hpcml.precision import environment
from hpcml.rundir import RunDir
from hpcml.spec import Run

_RUNTIMES = ("apptainer", "singularity")


def with_tag(container: Container, cluster: Cluster) -> Container:
    """Return *container* with the newest tag that the cluster's GPU and driver can run, unless one was chosen.

    Raises `ConfigError` if the chosen one cannot run there.
    """
    if container.image is None or container.digest is not None:
        return container
    capability, driver, limit = cluster.compute_capability, cluster.host_driver, cluster.ngc_max_release
    if container.tag is None:
        found = releases.newest(container.image, capability, driver, not_after=limit)
        return replace(container, tag=found.tag)
    if wrong := releases.check(container.image, container.tag, capability, driver, not_after=limit):
        raise ConfigError(wrong)
    return container


def fitted(run: Run, machine: Cluster) -> Run:
    """Return *run* with its image decided, or raise `ConfigError` where it cannot be used on *machine*.

    *machine* is the run's cluster, with what was found of it here. Nothing is asked of a registry.
    """
    container = run.container
    if container.kind is ContainerKind.none:
        return run
    if container.build is ContainerBuild.job and run.cluster.scheduler is SchedulerName.local:
        raise ConfigError(f"container.build=job: cluster={run.cluster.name} is this one machine: set auto")
    _check_runtime(run)
    if container.kind is not ContainerKind.build:
        _check_own(container)
        return run
    if machine.gpu_vendor == "amd" and (container.image or "").startswith("nvidia/"):
        raise ConfigError(f"container.image={container.image} is for GPUs of NVIDIA, and {run.cluster.name} has AMD's")
    return replace(run, container=with_tag(container, machine))


def runtime_for(run: Run) -> str:
    """Return the name of the program that starts the image: where the run is, PATH says which one it is."""
    chosen = run.container.runtime or run.cluster.container_runtime
    return chosen or next((name for name in _RUNTIMES if shutil.which(name)), _RUNTIMES[0])


def put_inside(
    plan: Plan, run: Run, image: Image, run_dir: RunDir, *, folder: Path, code: Path | None, client: Path | None
) -> Plan:
    """Return *plan* with its program inside *image*.

    *folder* is where it was submitted to start; *code* and *client* are the copies that it uses instead.
    """
    container, switches = run.container, environment(run.precision.name)
    # Arguments are public: only what they must say is here, the rest goes by the environment.
    last_word = {name: value for name, value in plan.environment.items() if name in switches or value is None}
    argv = exec_argv(
        image.path,
        runtime_for(run),
        gpu=gpu_for(container.gpu, device=plan.device, vendor=run.cluster.gpu_vendor),
        binds=_binds(plan, run, run_dir, folder, code, client),
        cwd=plan.cwd,
        options=container.options,
        writable_tmpfs=container.writable_tmpfs,
    )
    return replace(
        plan,
        argv=[*argv, *wrapped(plan.argv, last_word, python_path=[str(run_dir.client_path)])],
        image=image,
        env_prefixes=list(ENV_PREFIXES),
        passed_on=list(PASSED_ON),
        runtime_environment=dict(RUNTIME_ENVIRONMENT),
    )


def check_binds(plan: Plan, run: Run) -> None:
    """Raise `ConfigError` if what the user wants to see inside is where something else must be."""
    put_inside(
        plan, run, Image(path="/image"), RunDir(Path("/run-of-hpcml")), folder=Path(plan.cwd), code=None, client=None
    )


def _check_runtime(run: Run) -> None:
    if run.cluster.scheduler is not SchedulerName.local:
        return  # the job finds it, after its modules
    name = runtime_for(run)
    if shutil.which(name) is None:
        module = run.cluster.container_module
        hint = f"load its module first (ml {module})" if module else "load its module, or install it"
        raise ConfigError(f"container={run.container.name}: there is no {name} on this machine: {hint}")


def _check_own(container: Container) -> None:
    assert container.path is not None
    path, is_file = Path(container.path), container.kind is ContainerKind.sif
    if not path.exists():
        raise ConfigError(f"container.path={path} does not exist")
    if is_file != path.is_file():
        what, other = ("a folder", "sandbox") if is_file else ("a file", "sif")
        raise ConfigError(f"container.path={path} is {what}: choose container={other}")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"container.path={path} cannot be read")
    if is_file and not looks_like_an_image(path):
        raise ConfigError(f"container.path={path} is no image that Apptainer can start (no SIF, squashfs or ext3)")


def _binds(plan: Plan, run: Run, run_dir: RunDir, folder: Path, code: Path | None, client: Path | None) -> list[Bind]:
    """Return what is seen inside at the place that it has outside, and then the user's; parents before children."""
    chosen = run.container.all_binds()
    ours = [*_seen([run_dir.path, Path(plan.cwd), folder], read_only=False)]
    if run.workload.command is None:
        ours += _seen([Path(plan.argv[1]).parent], read_only=True)
    elif code is not None:  # outside, too, it may write where it starts
        ours += _seen([code], read_only=False)
    ours += _seen([Path(path) for path in (client, run.data.path) if path is not None], read_only=True)
    # The same folder asked for in another mode: the user knows better, and what is written to stays so.
    known = {(bind.source, bind.destination) for bind in chosen}
    kept: list[Bind] = []
    for bind in ours:
        if (bind.source, bind.destination) not in known:
            known.add((bind.source, bind.destination))
            kept.append(bind)
    return sorted([*kept, *chosen], key=lambda bind: len(Path(bind.destination).parts))


def _seen(paths: Iterable[Path], *, read_only: bool) -> Iterator[Bind]:
    """Yield binds of *paths* under their own names, and under those without symbolic links."""
    for path in paths:
        for name in dict.fromkeys((os.path.realpath(path), str(path))):
            if name != os.sep:
                yield Bind(source=name, destination=name, read_only=read_only)
