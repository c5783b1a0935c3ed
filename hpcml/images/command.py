"""The command line that runs a program inside an image, and the environment for it. Pure.

Planning (`hpcml.commands.submit.containers`) uses it to make the argv of a run. Measured with Apptainer 1.4.5; options
that older versions of Singularity do not know are used only where they are needed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from hpcml.errors import ConfigError
from hpcml.model.container import Bind, ContainerGpu

# What goes inside of the host's own environment, which --cleanenv keeps out: what the scheduler has given, and how this
# machine is to be spoken to. PATH, LD_LIBRARY_PATH and PYTHONPATH of the host would break the image.
PASSED_ON = (
    *(
        "SLURM_*",
        "SLURMD_*",
        "PBS_*",
        "LSB_*",
        "LSF_*",
        "FLUX_*",
        "NCPUS",
        "PMI_*",
        "PMI2_*",
        "PMIX_*",
        "OMPI_*",
        "MPICH_*",
    ),
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
# CUDA's forward compatibility: an image of NVIDIA's has a libcuda of its own, for drivers of older branches on GPUs of
# data centres. Its entrypoint would put that first, which `exec` does not run. Only a driver older than it may meet it,
# which is known on the node alone: so what the kernel's module says of itself and of the GPUs is read there.
_COMPATIBILITY = """hpcml_driver() {
read -r words </proc/driver/nvidia/version || return
set -f; set -- ${words#*Module}; set +f
for word do case $word in [0-9]*.[0-9]*) echo "$word"; return;; esac; done
}
hpcml_compat() {
driver=$(hpcml_driver 2>/dev/null)
case $driver in BRANCHES) ;; *) return;; esac
for file in /proc/driver/nvidia/gpus/*/information; do
[ -r "$file" ] || continue
while read -r words; do
case $words in Model:*GeForce*|Model:*RTX*|Model:*GTX*|Model:*Quadro*|Model:*TITAN*) return;; esac
done <"$file"
done
for folder in /usr/local/cuda/compat/lib.real /usr/local/cuda/compat/lib /usr/local/cuda/compat; do
for file in "$folder"/libcuda.so.[0-9]*.[0-9]*; do
[ -e "$file" ] || continue
own=${file##*libcuda.so.}
[ "${driver%%.*}" -lt "${own%%.*}" ] || return
export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
echo "hpcml: driver $driver is older than the image: its own libcuda $own is used ($folder)" >&2
return
done
done
echo "hpcml: driver $driver is older than the image, which has no libcuda of its own in /usr/local/cuda/compat" >&2
}
hpcml_compat"""
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

    *runtime* is a program's name or path; *gpu* is decided, not `auto`. *cwd* is the working directory inside the
    image; None leaves it to the runtime. The user's *options* come last, so that they win. Equal binds are given once;
    two that show different things in one place raise `ConfigError`, since the runtime would silently drop the second. A
    path with a comma, a colon, a quote or a backslash is bound with ``--mount``, which Apptainer 1.0 and SingularityCE
    3.10 know.

        >>> exec_argv("/i.sif", "apptainer", gpu=ContainerGpu.nv, cwd="/w")
        ['apptainer', 'exec', '--cleanenv', '--nv', '--pwd', '/w', '/i.sif']
    """
    assert gpu is not ContainerGpu.auto
    argv = [runtime, "exec"]
    if cleanenv:
        argv.append("--cleanenv")
    if gpu is not ContainerGpu.none:
        argv.append(f"--{gpu.value}")
    if writable_tmpfs:
        argv.append("--writable-tmpfs")
    for bind in distinct(binds):
        argv += _bind_words(bind)
    if cwd is not None:
        argv += ["--pwd", cwd]  # --cwd is its new name, which Singularity does not know
    return [*argv, *options, image_path]


def wrapped(
    command: Sequence[str],
    environment: Mapping[str, str | None],
    *,
    python_path: Sequence[str] = (),
    first: Sequence[str] = (),
    old_branches: Sequence[str] = (),
) -> list[str]:
    """Return *command* behind a shell that first sets *environment*; None in it means to unset the variable.

    So these values win over the image's own environment, and it is the only way to unset a variable. They are public,
    as the arguments of a process are: no password belongs there. Folders of *python_path* come before those of the
    image; *first* are lines of shell before all that. The shell replaces itself by the command (exec), so that there is
    no additional process.

    *old_branches* are those of NVIDIA's drivers (``470.57``) under which the image's own ``libcuda`` comes first, where
    it has one that is newer: CUDA's forward compatibility, for GPUs of data centres alone.

        >>> wrapped(["python", "train.py"], {"OMP_NUM_THREADS": "4", "PYTHONHOME": None})[2]
        'export PYTHONNOUSERSITE=1; export OMP_NUM_THREADS=4; unset PYTHONHOME; exec "$@"'
    """
    lines = [*first]
    for name, value in {**_ALWAYS, **environment}.items():
        assert _NAME.fullmatch(name), name
        lines.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    if python_path:
        lines.append(f'export PYTHONPATH={shlex.quote(":".join(python_path))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    if old_branches:
        majors = "|".join(sorted({f"{branch.partition('.')[0]}.*" for branch in old_branches}))
        assert re.fullmatch(r"[0-9.*|]+", majors), majors
        lines.append(_COMPATIBILITY.replace("BRANCHES", majors))
    return ["/bin/sh", "-c", "; ".join([*lines, 'exec "$@"']), "hpcml", *command]


def passed_on(environ: Mapping[str, str], patterns: Sequence[str] = PASSED_ON) -> dict[str, str]:
    """Return those variables of the host's environment that are passed into the container, by *patterns* of names.

    A pattern may have ``*`` as in a shell. Variables whose name is no identifier (exported functions of a shell) are
    left out.

        >>> passed_on({"SLURM_JOB_ID": "7", "PATH": "/usr/bin"})
        {'SLURM_JOB_ID': '7'}
    """
    return {
        name: value
        for name, value in environ.items()
        if _NAME.fullmatch(name) and any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def gpu_for(wanted: ContainerGpu, *, device: str, vendor: str | None) -> ContainerGpu:
    """Return *wanted*, or what `auto` means for a run on *device*: cpu, or cuda (torch's name for AMD GPUs, too).

    *vendor* is amd, nvidia, or None where it is not known, which counts as nvidia.
    """
    if wanted is not ContainerGpu.auto:
        return wanted
    if device == "cpu":
        return ContainerGpu.none
    return ContainerGpu.rocm if vendor == "amd" else ContainerGpu.nv


def distinct(binds: Sequence[Bind]) -> Iterator[Bind]:
    """Yield each destination once, in the order given: the runtime keeps the first and silently drops the others."""
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
    return ["--mount", mount_of(bind)]


def mount_of(bind: Bind) -> str:
    """Return *bind* as ``--mount`` and APPTAINER_MOUNT take it, since Apptainer 1.0 and SingularityCE 3.10."""
    fields = ["type=bind", _csv(f"src={bind.source}"), _csv(f"dst={bind.destination}"), *(["ro"] * bind.read_only)]
    return ",".join(fields)


def _csv(field: str) -> str:
    doubled = field.replace('"', '""')
    return f'"{doubled}"'


def _normal(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _mode(bind: Bind) -> str:
    return "ro" if bind.read_only else "rw"
