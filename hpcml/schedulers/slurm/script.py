"""The sbatch script of one run, or of an array of runs: every directive said, then the lines that start the agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.schedulers.request import Request, fill
from hpcml.schedulers.script import body, refuse_line_breaks
from hpcml.units import format_walltime

GPU_REQUEST = "--gpus-per-node={gpus}"  # unless the site says it otherwise
TYPED_GPU_REQUEST = "--gpus-per-node={gpu_type}:{gpus}"
_CLUSTERS = re.compile(r"^#SBATCH (?:--clusters?(?![\w-])[= ]*|-M[= ]*)(\S+)", re.MULTILINE)
# Slurm may warn a minute early: of a short walltime before the agent listens, and that would end the shell
_DEAF = "trap '' USR1  # --signal may come before the agent listens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Titles:
    """What a script is called: in the queue, in the accounting, and to its reader."""

    name: str  # ends with the token that finds the job again
    comment: str
    remark: str  # one line for who opens the file


def render(
    request: Request,
    *,
    titles: Titles,
    folder: Path,
    command: Sequence[str],
    requeue: Sequence[str] = (),
    time_limit: Sequence[str] = (),
    array_size: int | None = None,
    clusters: str | None = None,
) -> str:
    """Return the whole script; it starts in *folder* and leaves there what Slurm and the agent print.

    Raises `ConfigError` where a value holds a line break, which would end its directive.

    *clusters* are those that it may be sent to (`clusters_of`), unless a directive of the user names others. *command*
    starts the agent, on several nodes by srun; *requeue* is what it runs to go back into the queue,
    *time_limit* to hear how long the job may run. *array_size* None is a plain job. Options and their meaning: man
    sbatch.
    """
    words = [("clusters", clusters), *_directives(request, array_size), *_files(folder, array=array_size is not None)]
    refused = request.cluster.slurm.refuses
    lines = [_directive(name, value) for name, value in words if value is not None and name not in refused]
    if request.gpus_per_node > 0 and (gpus := _gpus(request)):
        lines.append(f"#SBATCH {gpus}")
    lines += [f"#SBATCH {extra}" for extra in request.extra_directives]
    # Last, where no other line can replace them: the job is found again by them.
    lines += [_directive("job-name", titles.name), _directive("comment", titles.comment)]
    refuse_line_breaks((titles.remark, *lines))
    start = body(request, command, requeue=requeue, time_limit=time_limit, launcher=_launcher(request))
    is_warned = request.warning_s is not None and "signal" not in refused
    named = [] if clusters_in("\n".join(lines)) is None else ["export HPCML_JOB_CLUSTER=$SLURM_CLUSTER_NAME"]
    shell = [*([_DEAF] if is_warned else []), *named, *_rendezvous(request), *start]
    return "\n".join(["#!/bin/bash", f"# {titles.remark}", *lines, "", *shell, ""])


def clusters_of(environ: Mapping[str, str]) -> str | None:
    """Return which of a site's clusters sbatch would choose from with *environ*, joined by commas; None: its own."""
    return environ.get("SBATCH_CLUSTERS") or environ.get("SLURM_CLUSTERS") or None


def clusters_in(script: str) -> str | None:
    r"""Return the cluster that a script asks for, by the last of its ``#SBATCH`` lines that name any; None without one.

    >>> clusters_in("#SBATCH --clusters=big\n#SBATCH -M cm4\n"), clusters_in("#SBATCH --cluster-constraint=big")
    ('cm4', None)
    """
    said = _CLUSTERS.findall(script)
    return said[-1].strip("'\"") or None if said else None


def _gpus(request: Request) -> str:
    """Return the option that asks for GPUs; empty where the site's queue gives them with the node."""
    template = request.cluster.gpu_request
    return fill(GPU_REQUEST if template is None else template, request)


def _directives(request: Request, array_size: int | None) -> Iterator[tuple[str, str | int | None]]:
    yield "account", request.account
    yield "partition", request.partition
    yield "qos", request.qos
    yield "nodes", request.nodes
    yield "ntasks-per-node", 1  # one agent, which starts the processes of its node
    yield "cpus-per-task", request.cpus_per_node
    yield "mem", None if request.mem_mb is None else f"{request.mem_mb}M"
    yield "time", None if request.walltime_s is None else format_walltime(request.walltime_s)
    yield "constraint", request.constraint
    yield "reservation", request.reservation
    yield "nodelist", request.nodelist
    yield "exclude", request.exclude
    yield "exclusive", "" if request.exclusive else None
    yield "dependency", request.dependency
    yield "kill-on-invalid-dep", "yes" if request.dependency and request.ends_with_dependency else None
    yield "mail-user", request.mail_user
    yield "mail-type", request.mail_type
    if array_size is not None:
        limit = "" if request.array_parallelism is None else f"%{request.array_parallelism}"
        yield "array", f"0-{array_size - 1}{limit}"
    # To the process that this shell becomes: the agent, or srun, which passes it on to the agents of all nodes
    yield "signal", None if request.warning_s is None else f"B:USR1@{request.warning_s}"
    yield "requeue", ""  # after a preemption or a dead node: the agent counts it as another attempt


def _files(folder: Path, *, array: bool) -> Iterator[tuple[str, str]]:
    yield "chdir", str(folder)  # sbatch may have been typed in a folder that the node lacks
    yield "output", _log_pattern(folder, array=array)
    yield "open-mode", "append"  # what an attempt before a requeue said is kept


def _log_pattern(folder: Path, *, array: bool) -> str:
    """Return the pattern of a log in *folder*; one backslash anywhere makes Slurm take all of it literally."""
    if "\\" in str(folder):
        return str(folder / "slurm.log").replace("\\", "\\\\")
    return str(folder).replace("%", "%%") + ("/slurm-%a.log" if array else "/slurm.log")


def _directive(name: str, value: str | int) -> str:
    """Return a line whose value arrives as it is: in double quotes sbatch knows two escapes and no expansion.

    Single quotes are not safe: a backslash is an escape within them too (measured, Slurm 22.05).
    """
    if value == "" and name in ("exclusive", "requeue"):
        return f"#SBATCH --{name}"
    text = str(value)
    if all(character.isalnum() or character in "-_=+:,./@%" for character in text) and text.isascii() and text:
        return f"#SBATCH --{name}={text}"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{escaped}"'


def _rendezvous(request: Request) -> list[str]:
    if request.nodes == 1:
        return []
    return [
        'HPCML_MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export HPCML_MASTER_ADDR",
    ]


def _launcher(request: Request) -> list[str]:
    if request.nodes == 1:
        return []
    cpus = [] if request.cpus_per_node is None else [f"--cpus-per-task={request.cpus_per_node}"]  # else 1: 22.05 on
    return [
        *("srun", f"--nodes={request.nodes}", f"--ntasks={request.nodes}", "--ntasks-per-node=1", *cpus),
        *("--kill-on-bad-exit=1", "--export=ALL"),  # also where the site submits with --export=NONE
    ]
