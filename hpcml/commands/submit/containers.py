"""Checks that a run fits its container, and the run's plan rewritten to start inside of it.

Which version of a framework is in an image NVIDIA's own tables say (images/releases); else it is left to the program.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from hpcml.errors import ConfigError
from hpcml.images import releases
from hpcml.images.command import PASSED_ON, gpu_for
from hpcml.images.definition import reference_of
from hpcml.images.runtime import NAMES, is_squashfs, require_whole
from hpcml.images.runtimes import ContainerRuntime, Start, runtime_named
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.container import Bind, Container, ContainerGpu, ContainerKind
from hpcml.model.hardware import is_for_data_centres
from hpcml.model.precision import environment
from hpcml.model.recipe import oldest_version, read_recipe
from hpcml.model.run import Observe, Run
from hpcml.paths import home_of_user
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Image, Plan

_ARCHITECTURES = (None, "x86_64", "aarch64")  # of a cluster; None: nothing special
_INSTEAD = "+container=docker container.image={} container.tag=latest, or a file: container=sif"
_OTHER_VENDORS = {  # of GPUs, for which NVIDIA's images are not, and what to do instead
    "amd": "AMD's: take one with ROCm, as " + _INSTEAD.format("rocm/pytorch"),
    "intel": "Intel's: take one for these, as " + _INSTEAD.format("intel/intel-extension-for-pytorch"),
}
_FILES = (ContainerKind.build, ContainerKind.sif)
_FUSE = Path("/dev/fuse")


def with_tag(container: Container, cluster: Cluster) -> Container:
    """Return *container* with the newest tag that the cluster's GPU and driver can run, unless one was chosen.

    Which release needs which driver and compute capability is in hpcml's own table (images/releases); no registry is
    asked. A container without an image, or with a digest, is returned as it is.

    Raises `ConfigError` if the chosen tag, or none that is known, can run there, and for an image of NVIDIA's where the
    GPUs are another vendor's.
    """
    image, tag = base_of(container)
    others = _OTHER_VENDORS.get(cluster.gpu_vendor or "")
    if others is not None and (image or "").startswith("nvidia/"):
        raise ConfigError(f"container.image={image} is for GPUs of NVIDIA, and {cluster.name} has {others}")
    if image is None or container.digest is not None or (tag is None and container.image is None):
        return container
    capability, driver, limit = cluster.compute_capability, cluster.host_driver, cluster.ngc_max_release
    data_centre = has_data_centre_gpus(cluster)
    if tag is None:
        found = releases.newest(image, capability, driver, not_after=limit, data_centre=data_centre)
        return replace(container, tag=found.tag)
    if wrong := releases.check(image, tag, capability, driver, not_after=limit, data_centre=data_centre):
        raise ConfigError(wrong)
    return container


def base_of(container: Container) -> tuple[str | None, str | None]:
    """Return image and tag of the base of *container* in a registry, as far as they are named."""
    if container.dockerfile is None and container.definition is None:
        return container.image, container.tag
    reference = reference_of(container)
    return (reference.name, reference.tag) if reference is not None else (None, None)


def has_data_centre_gpus(cluster: Cluster) -> bool:
    """Tell whether the GPUs of *cluster* are known to be made for data centres, which forward compatibility asks."""
    return cluster.gpu_model is not None and is_for_data_centres(cluster.gpu_model) is True


def fitted(run: Run, machine: Cluster) -> Run:
    """Return *run* with the tag of its image decided, or raise `ConfigError` where the container cannot be used.

    *machine* is the run's cluster profile, for local runs with the GPU and driver that were found on this machine.
    Checked are: the container runtime (what it can do, and on this machine that it is there), an own image or sandbox
    (where it is there: it is readable and of its kind), and the vendor of the GPU. No registry is asked and nothing is
    built: that is done by `images.with_images`.
    """
    container = run.container
    if container.kind is ContainerKind.none:
        return run
    if container.kind is not ContainerKind.build:
        _check_own(container, _check_runtime(run))
        return run
    _check_architecture(run)
    run = replace(run, container=with_tag(container, machine))
    _check_runtime(run)
    return run


def _check_architecture(run: Run) -> None:
    """Raise `ConfigError` where the cluster's processors are others than those that images are made for."""
    if (arch := run.cluster.cpu_arch) not in _ARCHITECTURES:
        known = " and ".join(filter(None, _ARCHITECTURES))
        raise ConfigError(
            f"container={run.container.name}: cluster={run.cluster.name} has processors of {arch}, and NVIDIA's images "
            f"are for {known}: use container=none, or container=sif with an image that was built there"
        )


def runtime_for(run: Run) -> str:
    """Return the name of what starts the image: apptainer or singularity unless another is configured.

    Where neither is on this machine's PATH, it is apptainer: the job may find it after loading its modules.
    """
    chosen = run.container.runtime or run.cluster.container_runtime
    return chosen or next((name for name in NAMES if shutil.which(name)), NAMES[0])


def put_inside(
    plan: Plan, run: Run, image: Image, run_dir: RunDir, *, folder: Path, code: Path | None, packages: Path | None
) -> Plan:
    """Return *plan* with its command line wrapped, so that the program runs inside *image*.

    *folder* is where the run was submitted to start; *code* and *packages* are the copies that it uses instead (None:
    there are none). Bound into the container are these, the run directory, the data and the user's own binds.
    Variables reach the program by the environment, since arguments can be read by every user of a node.
    """
    container, switches = run.container, environment(run.precision.name)
    gpu = gpu_for(container.gpu, device=plan.device, vendor=run.cluster.gpu_vendor)
    # Arguments are public: only what they must say is here, the rest goes by the environment.
    last_word = {name: value for name, value in plan.environment.items() if name in switches or value is None}
    runtime = runtime_named(runtime_for(run))
    own_paths = run_dir.python_path(is_observed=run.precision.observe is Observe.always)
    start = Start(
        image=image.path,
        command=plan.argv,
        cwd=plan.cwd,
        home=str(home_of_user()),
        gpu=gpu,
        binds=_binds(plan, run, run_dir, folder, code, packages),
        last_word=last_word,
        python_path=[*own_paths, *plan.python_path],
        old_branches=_old_branches(run) if gpu is ContainerGpu.nv else (),
        options=[*_instead_of_fuse(run), *container.options],
        writable_tmpfs=container.writable_tmpfs,
    )
    return replace(
        plan,
        argv=runtime.words_for(start),
        profiled=runtime.words_for(replace(start, command=plan.profiled)) if plan.profiled else [],
        image=image,
        program_words=len(plan.argv),
        env_prefixes=list(runtime.env_prefixes),
        passed_on=list(PASSED_ON),
        runtime_environment=dict(runtime.environment),
    )


def lacks_fuse(run: Run) -> bool:
    """Tell whether *run* is to start an image file on this machine, where Apptainer cannot mount one by FUSE.

    What a node of a cluster has is not known here.
    """
    on_this_machine = run.cluster.scheduler is SchedulerName.local and run.container.kind in _FILES
    is_apptainer = Path(runtime_for(run)).name == "apptainer"  # Singularity has no --unsquash before 4
    return on_this_machine and is_apptainer and os.geteuid() != 0 and not os.access(_FUSE, os.R_OK | os.W_OK)


def _instead_of_fuse(run: Run) -> list[str]:
    return ["--unsquash"] if lacks_fuse(run) and "--unsquash" not in run.container.options else []


def _old_branches(run: Run) -> Sequence[str]:
    """Return the branches of drivers under which the image's own libcuda is to come first.

    Not where the GPU is known to be no data centre's; where it is not known, the node looks.
    """
    (image, tag), model = base_of(run.container), run.cluster.gpu_model
    if image is None or tag is None or (model and is_for_data_centres(model) is False):
        return ()
    return releases.served_branches(image, tag)


def check_binds(plan: Plan, run: Run) -> None:
    """Raise `ConfigError` if a bind of the user would cover a path that hpcml must bind itself."""
    put_inside(
        plan, run, Image(path="/image"), RunDir(Path("/run-of-hpcml")), folder=Path(plan.cwd), code=None, packages=None
    )


def _check_runtime(run: Run) -> ContainerRuntime:
    """Return what starts the image; raise `ConfigError` where it cannot do what is asked, or is not on this machine."""
    name = runtime_for(run)
    runtime = runtime_named(name)
    runtime.check(run.container, run.cluster.scheduler)
    # On a cluster the job finds it, after its modules.
    if run.cluster.scheduler is SchedulerName.local and shutil.which(runtime.program) is None:
        module = run.cluster.container_module
        hint = f"load its module first (ml {module})" if module else "load its module, or install it"
        raise ConfigError(f"container={run.container.name}: there is no {name} on this machine: {hint}")
    return runtime


def _check_own(container: Container, runtime: ContainerRuntime) -> None:
    assert container.path is not None
    path, is_file = Path(container.path), container.kind is ContainerKind.sif
    if not path.exists():
        return  # `advice.refusals` says so
    if is_file != path.is_file():
        what, other = ("a folder", "sandbox") if is_file else ("a file", "sif")
        raise ConfigError(f"container.path={path} is {what}: choose container={other}")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"container.path={path} cannot be read")
    if is_file:
        require_whole(path)
    if is_file and not runtime.builds and not is_squashfs(path):
        raise ConfigError(f"container.path={path}: {runtime.name} takes {runtime.takes}, and this is none")


def _binds(plan: Plan, run: Run, run_dir: RunDir, folder: Path, code: Path | None, packages: Path | None) -> list[Bind]:
    """Return all binds of the run, parents before children: hpcml's, each under its path outside, and the user's.

    Where the user binds the same folder in another mode (read-only or not), the user's bind counts.
    """
    chosen = run.container.all_binds()
    if plan.staging is None:
        own_binds = [*_seen([run_dir.path, Path(plan.cwd), folder], read_only=False)]
    else:  # the working directory lies in the run's; what it links to is shared by all runs
        shared = map(Path, plan.staging.shared.values())
        own_binds = [*_seen([run_dir.path], read_only=False), *_seen([folder, *shared], read_only=True)]
    if run.workload.command is None:
        own_binds += _seen([Path(plan.argv[1]).parent], read_only=True)
    elif code is not None:
        own_binds += _seen([code], read_only=True)
    data = None if run.data.path is None else Path(run.data.path)
    own_binds += _seen(filter(None, (packages, data)), read_only=True)
    # The same folder asked for in another mode: the user knows better, and what is written to stays so.
    known = {(bind.source, bind.destination) for bind in chosen}
    kept: dict[tuple[str, str], Bind] = {}
    for bind in own_binds:
        if (place := (bind.source, bind.destination)) not in known:
            kept.setdefault(place, bind)
    return sorted([*kept.values(), *chosen], key=lambda bind: len(Path(bind.destination).parts))


def _seen(paths: Iterable[Path], *, read_only: bool) -> Iterator[Bind]:
    """Yield binds of *paths* under their own names, and under those without symbolic links."""
    for path in paths:
        for name in dict.fromkeys((os.path.realpath(path), str(path))):
            if name != os.sep:
                yield Bind(source=name, destination=name, read_only=read_only)


# The framework in the image.


def check_framework(run: Run, script: Path, project: Path) -> None:
    """Raise `ConfigError` where a release of NVIDIA's is known to lack the recipe's framework, or has it too old.

    *script* is the recipe's program. What the user adds to an image may bring the framework: packages of its name,
    files of requirements, lines of shell, or a definition in *project*.
    """
    container, framework = run.container, str(run.model.framework)
    may_bring = any(word.startswith((framework, "-")) for word in container.pip) or container.post
    if may_bring or (project / "containers" / f"{container.name}.def").is_file():
        return
    image, tag = container.image, container.tag
    if wrong := releases.without(image or "", framework):
        raise ConfigError(wrong)
    if image is not None and tag is not None:
        lowest, highest = releases.version_of(image, tag, framework)
        asked = oldest_version(run, read_recipe(script.parent))
        if asked is None or highest is None:
            return
        oldest, why = asked
        if not _is_from(highest, oldest):
            has = f"{framework} {highest}{' or older' if lowest != highest else ''}"
            newest = with_tag(replace(container, tag=None), run.cluster).tag or tag
            _, its = releases.version_of(image, newest, framework)
            if its is None or _is_from(its, oldest):
                instead = f"choose container.tag={newest}, or container.pip=[{framework}] with a version"
            else:
                instead = f"{newest} is the newest that runs on {run.cluster.name}, for programs of your own"
            raise ConfigError(f"{why} needs {framework} {oldest} or newer, and {image}:{tag} has {has}: {instead}")


def _is_from(version: str, oldest: str) -> bool:
    return Version(Version(version).base_version) >= Version(oldest)
