"""What starts a program in an image, each by one entry: Apptainer, Singularity, and enroot by Slurm's pyxis. Pure.

An entry says what it takes as an image, what it cannot do, and with which words it starts a program. Apptainer is
tested as it is; pyxis on a double made from its documentation and sources (pyxis 0.21, enroot 4), never with the real
one. To find one on a machine is `hpcml.images.runtime`'s part.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.images.command import ENV_PREFIXES, RUNTIME_ENVIRONMENT, distinct, exec_argv, wrapped
from hpcml.images.registry import Reference
from hpcml.model.cluster import SchedulerName
from hpcml.model.container import RUNTIMES, Bind, Container, ContainerGpu
from hpcml.model.container import ContainerKind as Kind
from hpcml.runs.plan import INSIDE_NAMES, INSIDE_PREFIX

_HUB = "docker.io"
_GIVES = {"--env": "workload.env", "--workdir": "workload.cwd"}
_ALL_GPUS = frozenset(ContainerGpu) - {ContainerGpu.auto}
# What is put upon an image that is built; a runtime that builds none refuses it.
_ADDITIONS = ("definition", "dockerfile", "path", "pip", "apt", "post", "environment", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A program to be started in an image, with everything decided: `gpu` is not auto, paths are absolute."""

    image: str  # a file or folder, or the name that `ContainerRuntime.reference` has given
    command: Sequence[str]
    cwd: str  # inside
    home: str  # of the user: seen inside under its own name
    gpu: ContainerGpu = ContainerGpu.none
    binds: Sequence[Bind] = ()
    last_word: Mapping[str, str | None] = field(default_factory=dict)  # variables that win over the image's; public
    python_path: Sequence[str] = ()
    old_branches: Sequence[str] = ()  # of drivers under which the image's own libcuda comes first
    options: Sequence[str] = ()  # the user's own, for the runtime
    writable_tmpfs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntime:
    """One entry of `CONTAINER_RUNTIMES`.

    `argv` returns the whole command line of a program; variables are not in it, since arguments are public: each goes
    by the environment, with every prefix of `env_prefixes` before its name. `environment` is for the runtime itself.
    """

    name: str
    program: str  # looked for on PATH
    version_words: tuple[str, ...]  # that the program is asked with
    version: re.Pattern[str]  # of what it answers
    kinds: frozenset[Kind]  # of images that it starts; build: of those that hpcml builds
    takes: str  # the same for people
    argv: Callable[[Start], list[str]]
    reference: Callable[[Reference], str] | None = None  # how it names an image of a registry; None: it takes files
    gpus: frozenset[ContainerGpu] = _ALL_GPUS
    splits_at: str = ""  # characters that a path which is bound must not hold
    needs: SchedulerName | None = None  # the scheduler that it is a part of
    taken: Mapping[str, str] = field(default_factory=dict)  # its options that hpcml gives -> what to set instead
    env_prefixes: tuple[str, ...] = (INSIDE_PREFIX,)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def builds(self) -> bool:
        """Whether it starts what hpcml builds: files in the format of Apptainer."""
        return Kind.build in self.kinds

    def check(self, container: Container, scheduler: SchedulerName) -> None:
        """Raise `ConfigError`, in one line, for what this runtime cannot do with *container*."""
        if self.needs is not None and scheduler is not self.needs:
            raise ConfigError(
                f"container.runtime={self.name} is a part of {self.needs.value}, and the run is for {scheduler.value}"
            )
        if container.kind is Kind.build:
            self._check_base(container)
        elif container.kind not in self.kinds:
            raise ConfigError(f"container={container.name}: {self.name} takes {self.takes}")
        for word in container.options:
            if (instead := self.taken.get(word.partition("=")[0])) is not None:
                raise ConfigError(f"container.options: {word.partition('=')[0]}: set {instead}")
        for bind in container.all_binds():
            self._check_path(bind)

    def _check_base(self, container: Container) -> None:
        """Raise `ConfigError` where hpcml would have to build, and this runtime starts nothing that hpcml builds."""
        if self.builds:
            return
        given = next((name for name in _ADDITIONS if getattr(container, name)), None)
        if given is not None:
            raise ConfigError(f"container.{given}: {self.name} takes {self.takes}, and hpcml builds for Apptainer only")
        if Reference.of(container).plain_http:
            raise ConfigError(f"container.registry={container.registry}: {self.name} asks registries by https only")

    def _check_path(self, bind: Bind) -> None:
        path = bind.source + bind.destination
        found = next((mark for mark in self.splits_at if mark in path), None)
        if found is not None:
            raise ConfigError(f"{self.name} cannot bind {bind.source}: its path holds {found!r}, at which it splits")

    def words_for(self, start: Start) -> list[str]:
        """Return `argv` of *start*; raise `ConfigError` for what it cannot hand over."""
        for bind in start.binds:
            self._check_path(bind)
        if start.gpu not in self.gpus:
            raise ConfigError(f"container.gpu={start.gpu.value}: {self.name} brings no such driver inside")
        return self.argv(start)


def runtime_named(name: str) -> ContainerRuntime:
    """Return the entry of a program's *name* or path."""
    return CONTAINER_RUNTIMES[Path(name).name]


def _in_shell(start: Start, *first: str) -> list[str]:
    path, branches = start.python_path, start.old_branches
    return wrapped(start.command, start.last_word, python_path=path, first=first, old_branches=branches)


def _apptainer(program: str) -> Callable[[Start], list[str]]:
    def argv(start: Start) -> list[str]:
        words = exec_argv(
            start.image,
            program,
            gpu=start.gpu,
            binds=start.binds,
            cwd=start.cwd,
            options=start.options,
            writable_tmpfs=start.writable_tmpfs,
        )
        return [*words, *_in_shell(start)]

    return argv


# pyxis has no variables with a prefix of its own. A shell outside gives it the names of those that go in, which the
# agent has put into INSIDE_NAMES, and a shell inside takes the prefix off.
_TAKE_OFF = (
    f'for name in ${INSIDE_NAMES}; do eval "export ${{name#{INSIDE_PREFIX}}}=\\"\\$$name\\""; unset "$name"; done',
    f"unset {INSIDE_NAMES}",
)


def _with_own(start: Start) -> list[Bind]:
    """Return the binds, with home and /tmp, which Apptainer brings in by itself, where nothing else is there."""
    chosen = list(distinct(start.binds))
    there = {bind.destination.rstrip("/") for bind in chosen}
    own = [path for path in ("/tmp", start.home.rstrip("/")) if path and path not in there]  # noqa: S108
    return [*(Bind(source=path, destination=path) for path in own), *chosen]


def _pyxis(start: Start) -> list[str]:
    """Return the words of an ``srun`` of this node's part of the job, with pyxis's options (README, args.c).

    The step shares all that the job has on the node with the other steps (``--overlap``), and its processes may use
    all cores of it, as those that the agent starts by itself.
    """
    binds = [f"{each.source}:{each.destination}{':ro' if each.read_only else ''}" for each in _with_own(start)]
    gpu = _nvidia(start.gpu)
    names = "".join(f",{name}" for name in (INSIDE_NAMES, *gpu))
    gather = f'names=$(echo ${INSIDE_NAMES} | tr " " ,){names}; '
    sets = "".join(f"export {name}={shlex.quote(value)}; " for name, value in gpu.items())
    run = (
        'exec srun --nodelist="$SLURMD_NODENAME" --export="HOME,$names" --container-env="$names" '
        "--overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --input=none "
    )
    words = [
        f"--container-image={start.image}",
        f"--container-mounts={','.join(binds)}",
        f"--container-workdir={start.cwd}",
        "--no-container-entrypoint",
        "--no-container-remap-root",
        "--container-writable" if start.writable_tmpfs else "--container-readonly",
        *start.options,
    ]
    home = f"export HOME={shlex.quote(start.home)}"  # root's, or none, where nobody says it
    inside = _in_shell(start, *_TAKE_OFF, home)
    return ["/bin/sh", "-c", f'{gather}{sets}{run}"$@"', "hpcml", *words, *inside]


def _nvidia(gpu: ContainerGpu) -> Mapping[str, str]:
    """Return what enroot's hook for NVIDIA's driver reads (conf/hooks/98-nvidia.sh); images say so too."""
    if gpu is ContainerGpu.nv:
        return {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    return {"NVIDIA_VISIBLE_DEVICES": "void"}


def _enroot_name(base: Reference) -> str:
    """Return an image as enroot writes it: ``nvcr.io#nvidia/pytorch:24.12-py3``."""
    host = "" if base.host == _HUB else f"{base.host}#"
    return f"{host}{base.name}" + (f"@{base.digest}" if base.digest else f":{base.tag}")


_OF_FILES = frozenset({Kind.build, Kind.sif, Kind.sandbox})
_NUMBER = re.compile(r"\d+(?:\.\d+)+\S*")
_ENTRIES = (
    *(
        ContainerRuntime(
            name=name,
            program=name,
            version_words=("--version",),
            version=_NUMBER,
            kinds=_OF_FILES,
            takes="SIF files, squashfs files and sandboxes",
            argv=_apptainer(name),
            env_prefixes=ENV_PREFIXES,
            environment=RUNTIME_ENVIRONMENT,
        )
        for name in ("apptainer", "singularity")
    ),
    ContainerRuntime(
        name="pyxis",
        program="srun",
        version_words=("--help",),
        version=re.compile(r"--container-image"),
        kinds=frozenset({Kind.sif}),
        takes="squashfs files (.sqsh) and images of registries as they are",
        argv=_pyxis,
        reference=_enroot_name,
        gpus=_ALL_GPUS - {ContainerGpu.rocm},
        splits_at=":,",
        needs=SchedulerName.slurm,
        taken={
            "--container-image": "container.image or container.path",
            "--container-mounts": "container.binds",
            "--container-workdir": _GIVES["--workdir"],
            "--container-env": _GIVES["--env"],
            "--container-writable": "container.writable_tmpfs",
            "--container-readonly": "container.writable_tmpfs",
            "--export": _GIVES["--env"],
        },
    ),
)
CONTAINER_RUNTIMES: Mapping[str, ContainerRuntime] = {entry.name: entry for entry in _ENTRIES}
assert tuple(CONTAINER_RUNTIMES) == RUNTIMES
