"""What Flux is asked for, as the words of ``flux submit``, and the script that each node then runs; pure text.

Sources: recordings of flux-core 0.88.0 and its man pages. A job of ``flux submit`` runs the script once on each node,
as srun does, so no launcher is needed. Of several jobs one call makes them all (``--cc``): Flux has no arrays.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import require
from hpcml.schedulers.request import Request, fill
from hpcml.schedulers.script import body, refuse_line_breaks, words_of_directive

GPU_REQUEST = (
    "--gpus-per-task={gpus}"  # a task is an agent, and has its whole node's; unless the site says it otherwise
)
# Within which the others leave after the first node, well or not: agents wait for each other (other_nodes), and the
# first may have a webhook to tell and the run to queue again after the others have left (flux-core, src/shell/doom.c)
_EXIT_TIMEOUT_S = 30
_WAITS = ("afterok", "afterany", "afternotok", "after")
_JOB = re.compile(r"[f\u0192]?[1-9A-HJ-NP-Za-km-z]+")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HATCH = "; what Flux itself has for it can be given by resources.extra_directives"


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxAsk:
    """One call of ``flux submit``: its options in order; *count* jobs, or None for a plain one."""

    name: str
    options: tuple[str, ...]
    log: Path
    count: int | None = None

    def argv(self, script: Path, *, only: Sequence[int] | None = None) -> list[str]:
        """Return the words of the call for *script*; of several jobs all, or those numbers of them in *only*."""
        many: list[str] = []
        name, log = self.name, self.log
        if self.count is not None:
            which = f"0-{self.count - 1}" if only is None else ",".join(map(str, only))
            many, name, log = [f"--cc={which}"], f"{self.name}.{{cc}}", log.with_name("job-{cc}.log")
        return ["flux", "submit", *self.options, *many, f"--output={log}", f"--job-name={name}", "bash", str(script)]


def ask(request: Request, *, name: str, folder: Path, count: int | None = None) -> FluxAsk:
    """Say *request* in Flux's words, or raise `ConfigError` for what Flux has no word for."""
    require(
        not set(str(folder)) & set("{}"),
        f"{folder}: flux submit fills in what stands in braces, so no folder of a run may have them in its name",
    )
    return FluxAsk(name=name, options=tuple(_options(request, folder)), log=folder / "job.log", count=count)


def _options(request: Request, folder: Path) -> Iterator[str]:
    _refuse(request)
    yield from _resources(request)
    said = {
        "time-limit": None if request.walltime_s is None else f"{request.walltime_s}s",  # bare numbers are minutes
        "queue": request.partition,
        "setattr": None if request.account is None else f"bank={request.account}",
        "requires": " and ".join(_conditions(request)) or None,
    }
    yield from (f"--{name}={value}" for name, value in said.items() if value is not None)
    if request.dependency is not None:
        yield from (f"--dependency={one}" for one in _dependencies(request.dependency))
    if request.warning_s is not None and request.walltime_s is None:  # else the agent's own clock does it
        yield f"--signal=USR1@{request.warning_s}s"
    yield f"--cwd={folder}"
    if request.nodes > 1:
        yield f"--setopt=exit-timeout={_EXIT_TIMEOUT_S}s"  # the first node that fails ends the others
    for text in request.extra_directives:
        yield from words_of_directive(text)


def _resources(request: Request) -> Iterator[str]:
    yield f"--nodes={request.nodes}"
    yield f"--ntasks={request.nodes}"
    if request.cores_per_node is not None:
        yield f"--cores-per-task={request.cores_per_node}"
    if request.gpus_per_node > 0:
        template = request.cluster.gpu_request
        yield from shlex.split(fill(GPU_REQUEST if template is None else template, request))
    if request.exclusive or request.cluster.whole_nodes:
        yield "--exclusive"


def _conditions(request: Request) -> Iterator[str]:
    """Yield what a node must be, in the language of constraints (RFC 35)."""
    if request.constraint is not None:
        yield request.constraint
    for key, word in (("nodelist", "host"), ("exclude", "-host")):
        if (text := getattr(request, key)) is not None:
            good = all(_HOST.fullmatch(host) for host in text.split(","))
            require(good, f"resources.{key}={text}: write names of hosts, separated by commas and without brackets")
            yield f"{word}:{text}"


def _refuse(request: Request) -> None:
    """Raise `ConfigError` for what Flux has no word for."""
    said = {
        "mem": (request.mem_mb, "Flux shares out cores and GPUs, and no memory"),
        "qos": (request.qos, "Flux has queues and no quality of service; give resources.partition"),
        "reservation": (request.reservation, "Flux has no reservations of its own"),
        "mail_user": (request.mail_user, "Flux sends no mail"),
        "mail_type": (request.mail_type, "Flux sends no mail"),
    }
    for key, (value, why) in said.items():
        require(value is None, f"resources.{key}: {why}: leave it out{_HATCH}")


def _dependencies(text: str) -> Iterator[str]:
    for clause in text.split(","):
        word, *jobs = clause.split(":")
        require(
            word in _WAITS and bool(jobs) and all(_JOB.fullmatch(job) or job.startswith("<") for job in jobs),
            f"resources.dependency={text}: Flux has {', '.join(_WAITS)}, each as WORD:ID[:ID]",
        )
        yield from (f"{word}:{job}" for job in jobs)


def render(
    request: Request,
    wanted: FluxAsk,
    *,
    remark: str,
    script: Path,
    command: Sequence[str],
    requeue: Sequence[str] = (),
    time_limit: Sequence[str] = (),
) -> str:
    """Return the script that lies at *script* and that each node runs; its head says how it is submitted by hand.

    *command* starts the agent, *requeue* is what it runs to go back into the queue, *time_limit* to hear how long the
    job may run. Raises `ConfigError` for a value with a line break.
    """
    by_hand = shlex.join(wanted.argv(script))
    refuse_line_breaks((remark, by_hand))
    number = "" if wanted.count is None else ".$FLUX_JOB_CC"
    told = [
        "trap '' USR1  # --signal may come before the agent listens",
        "unset HPCML_ARRAY_INDEX HPCML_PACK HPCML_JOB_START",  # of a job that submitted this one
        "export HPCML_JOB_ID=${FLUX_JOB_ID//\u0192/f} HPCML_NODE_RANK=$FLUX_TASK_RANK",
        f"export HPCML_JOB_NAME={shlex.quote(wanted.name)}{number}",
    ]
    if wanted.count is not None:
        told.append("export HPCML_PACK=$FLUX_JOB_CC")
    start = body(request, command, requeue=requeue, time_limit=time_limit)
    shell = [*told, *(_RENDEZVOUS if request.nodes > 1 else ()), *start]
    return "\n".join(["#!/bin/bash", f"# {remark}", f"# {by_hand}", "", *shell, ""])


# The first of gpu[001-2,7].site is gpu001.site: what stands before the bracket, the first number, what stands behind it
_RENDEZVOUS = (
    "nodes=$(flux jobs -n -o '{nodelist}' \"$FLUX_JOB_ID\")",
    "if [[ $nodes =~ ^([^][,]+)\\[([0-9]+)[^]]*\\]([^][,]*) ]]; then",
    "    HPCML_MASTER_ADDR=${BASH_REMATCH[1]}${BASH_REMATCH[2]}${BASH_REMATCH[3]}",
    "else",
    "    HPCML_MASTER_ADDR=${nodes%%,*}",
    "fi",
    "export HPCML_MASTER_ADDR",
)
