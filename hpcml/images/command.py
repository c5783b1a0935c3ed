"""A command inside an image, as an argument list: what is in its files, its environment and its way. Pure.

Measured with Apptainer 1.4.5. The words that older Singularities do not know are given only where they are needed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from hpcml.container import Bind, ContainerGpu
from hpcml.errors import ConfigError

# What goes inside of the host's own environment, which --cleanenv keeps out: what the scheduler has given, and how this
# machine is to be spoken to. PATH, LD_LIBRARY_PATH and PYTHONPATH of the host would break the image.
PASSED_ON = (
    *("SLURM_*", "SLURMD_*", "PBS_*", "NCPUS", "PMI_*", "PMI2_*", "PMIX_*", "OMPI_*", "MPICH_*"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    *("NCCL_*", "RCCL_*", "GLOO_*", "UCX_*", "FI_*", "HSA_*"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("HPCML_*", "TZ", "TERM"),
)
# A variable with one of these before its name is set inside, after the image's own. Apptainer knows both and says
# nothing where they agree; Singularity knows the second.
ENV_PREFIXES = ("APPTAINERENV_", "SINGULARITYENV_")
# Else the values of such variables are read as a shell reads what stands in double quotes: $HOME is replaced, and a
# command between backticks is run. As variables because an older Singularity refuses the option.
RUNTIME_ENVIRONMENT: Mapping[str, str] = {"APPTAINER_NO_EVAL": "1", "SINGULARITY_NO_EVAL": "1"}
# $HOME is seen inside, as people expect who keep their data and caches there; the packages in its ~/.local are of
# another Python, or of another torch.
_ALWAYS: Mapping[str, str | None] = {"PYTHONNOUSERSITE": "1"}
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NEEDS_MOUNT = re.compile(r'[,:"\\]')  # --bind splits at these


def exec_argv(
    image_path: str,
    runtime: str,
    *,
    gpu: ContainerGpu = ContainerGpu.none,
    binds: Sequence[Bind] = (),
    cwd: str | None = None,
    options: Sequence[str] = (),
    writable_tmpfs: bool = False,
    cleanenv: bool = True,
) -> list[str]:
    """Return the words before the command that is to run in *image_path*.

    *runtime* is a program's name or path. Of two equal binds one is given; two that show different things in one place
    raise `ConfigError`. *gpu* is decided, not `auto`. The user's *options* come last, so that they prevail.
    """
    assert gpu is not ContainerGpu.auto
    argv = [runtime, "exec"]
    if cleanenv:
        argv.append("--cleanenv")
    if gpu is not ContainerGpu.none:
        argv.append(f"--{gpu.value}")
    if writable_tmpfs:
        argv.append("--writable-tmpfs")
    for bind in _distinct(binds):
        argv += _bind_words(bind)
    if cwd is not None:
        argv += ["--pwd", cwd]  # --cwd is its new name, which Singularity does not know
    return [*argv, *options, image_path]


def wrapped(
    command: Sequence[str], environment: Mapping[str, str | None], *, python_path: Sequence[str] = ()
) -> list[str]:
    """Return *command* behind a shell that first sets *environment*, of which None means: must not be set.

    This has the last word whatever the image says of itself, also where a runtime lets the image win, and it is the
    only way to unset a variable. It is for what everybody may read (the arguments of a process are public). Folders of
    *python_path* come before those of the image. The shell becomes the command: no process is added.
    """
    lines = []
    for name, value in {**_ALWAYS, **environment}.items():
        assert _NAME.fullmatch(name), name
        lines.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    if python_path:
        lines.append(f'export PYTHONPATH={shlex.quote(":".join(python_path))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    return ["/bin/sh", "-c", "; ".join([*lines, 'exec "$@"']), "hpcml", *command]


def passed_on(environ: Mapping[str, str], patterns: Sequence[str] = PASSED_ON) -> dict[str, str]:
    """Return what of the host's environment goes inside."""
    return {
        name: value
        for name, value in environ.items()
        if _NAME.fullmatch(name) and any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def prefixed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the runtime's own process that set *environment* inside."""
    return {prefix + name: value for name, value in environment.items() for prefix in ENV_PREFIXES}


def gpu_for(wanted: ContainerGpu, *, device: str, vendor: str | None) -> ContainerGpu:
    """Decide what `auto` means for a run on *device* (cpu or cuda, as torch calls AMD's, too)."""
    if wanted is not ContainerGpu.auto:
        return wanted
    if device == "cpu":
        return ContainerGpu.none
    return ContainerGpu.rocm if vendor == "amd" else ContainerGpu.nv


def _distinct(binds: Sequence[Bind]) -> Iterator[Bind]:
    """Yield each destination once, in the order given: the runtime keeps the first and drops the others unsaid."""
    seen: dict[str, Bind] = {}
    for bind in binds:
        place = _normal(bind.destination)
        other = seen.setdefault(place, bind)
        if other is bind:
            yield bind
        elif _normal(other.source) != _normal(bind.source) or other.read_only != bind.read_only:
            raise ConfigError(
                f"container.binds: {bind.destination} is to show {bind.source} ({_mode(bind)}) and is {other.source} "
                f"({_mode(other)}) already: choose another destination"
            )


def _bind_words(bind: Bind) -> list[str]:
    if not _NEEDS_MOUNT.search(bind.source + bind.destination):
        return ["--bind", f"{bind.source}:{bind.destination}:{_mode(bind)}"]
    fields = ["type=bind", _csv(f"src={bind.source}"), _csv(f"dst={bind.destination}"), *(["ro"] * bind.read_only)]
    return ["--mount", ",".join(fields)]  # Apptainer 1.0, SingularityCE 3.10


def _csv(field: str) -> str:
    doubled = field.replace('"', '""')
    return f'"{doubled}"'


def _normal(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _mode(bind: Bind) -> str:
    return "ro" if bind.read_only else "rw"
