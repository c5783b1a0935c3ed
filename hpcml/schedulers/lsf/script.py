"""What LSF is asked for, as a job script with ``#BSUB`` lines; pure text, nothing is started here.

Sources: IBM's pages of bsub(1), and for jsrun and -nnodes OLCF's guide to Summit. How a site differs from another is
said by its profile, in `hpcml.model.cluster.Lsf`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcml.errors import require
from hpcml.schedulers.request import Request, fill
from hpcml.schedulers.script import body, refuse_line_breaks

GPU_REQUEST = '-gpu "num={gpus}:mode=shared:j_exclusive=yes"'  # of each host; unless the site says it otherwise
_WAITS = {"afterok": "done", "afterany": "ended", "afternotok": "exit", "after": "started"}
_JOB = re.compile(r"\d+(?:\[\d*\])?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAIL = {"NONE": "", "BEGIN": "-B", "END": "-N"}
_FOLLOW_S = 60  # within which all nodes have to leave at a checkpoint at which the first has left
_LAST_WORDS_S = 30  # of an agent, after the grace of its program
_HATCH = "; what LSF itself has for it can be given by resources.extra_directives"


def render(
    request: Request,
    *,
    name: str,
    remark: str,
    folder: Path,
    command: Sequence[str],
    requeue: Sequence[str] = (),
    time_limit: Sequence[str] = (),
    array_size: int | None = None,
) -> str:
    """Return the whole script; it starts in *folder*, where LSF leaves what the job prints.

    *command* starts the agent, one on each node; *requeue* is what it runs to go back into the queue, *time_limit* to
    hear how long the job may run. *array_size* None is a plain job. Raises `ConfigError` for what LSF has no word for,
    and for a value that cannot stand in a ``#BSUB`` line.
    """
    lines = list(_directives(request, folder, is_array=array_size is not None))
    limit = f"%{request.array_parallelism}" if request.array_parallelism else ""
    title = name if array_size is None else f"{name}[1-{array_size}]{limit}"
    lines.append(f"-J {_quoted(title)}")  # last, where nothing replaces it: the job is found again by it
    refuse_line_breaks((remark, *lines))
    job = "$LSB_JOBID" if array_size is None else "$LSB_JOBID[]"
    told = [
        "unset HPCML_ARRAY_INDEX HPCML_PACK HPCML_NODE_RANK",  # of a job that submitted this one
        f"export HPCML_JOB_ID={job} HPCML_JOB_NAME={shlex.quote(name)}",
        "HPCML_JOB_START=$(date +%s%N).$$  # a job that is started once more keeps its id",
        "export HPCML_JOB_START",
    ]
    if array_size is not None:
        told.append("export HPCML_ARRAY_INDEX=$LSB_JOBINDEX HPCML_PACK=$((LSB_JOBINDEX - 1))  # LSF counts from 1")
    start = body(request, command, requeue=requeue, time_limit=time_limit, launcher=_launcher(request))
    if request.cluster.lsf.launcher == "blaunch" and request.nodes > 1:
        start = [*start[:-1], *_on_every_node(start[-1].removeprefix("exec "), folder, request.grace_s + _LAST_WORDS_S)]
    shell = [*told, *_rendezvous(request), *start]
    return "\n".join(["#!/bin/bash", f"# {remark}", *(f"#BSUB {line}" for line in lines), "", *shell, ""])


def _directives(request: Request, folder: Path, *, is_array: bool) -> Iterator[str]:
    site = request.cluster.lsf
    _refuse(request)
    said = {
        site.account: request.account,
        "-q": request.partition,
        "-W": None if request.walltime_s is None else format_minutes(request.walltime_s),
        "-U": request.reservation,
        "-w": None if request.dependency is None else _condition(request.dependency),
    }
    yield from (f"{flag} {_quoted(value)}" for flag, value in said.items() if value is not None)
    yield from _whole_nodes(request) if site.nodes == "nnodes" else _slots(request)
    if request.gpus_per_node > 0:
        template = request.cluster.gpu_request
        if words := fill(GPU_REQUEST if template is None else template, request):
            yield words
    if request.nodelist is not None:
        yield f"-m {_quoted(' '.join(_hosts('nodelist', request.nodelist)))}"
    if request.exclusive:
        yield "-x"
    if request.mail_user is not None:
        yield f"-u {_quoted(request.mail_user)}"
    for word in (request.mail_type or "NONE").upper().split(","):
        require(word in _MAIL, f"resources.mail_type={request.mail_type}: LSF has {', '.join(_MAIL)}")
        if _MAIL[word]:
            yield _MAIL[word]
    yield f"-cwd {_quoted(str(folder))}"
    yield f"-o {_quoted(f'{folder}/job-%I.log' if is_array else f'{folder}/job.log')}"  # appended to; else it is mailed
    yield "-r"  # started once more where its host dies: the agent counts it as another attempt
    yield from request.extra_directives


def _refuse(request: Request) -> None:
    """Raise `ConfigError` for what LSF, or this site's, has no word for."""
    require(
        request.qos is None,
        f"resources.qos={request.qos}: LSF has queues and no quality of service; give resources.partition{_HATCH}",
    )
    if request.cluster.lsf.nodes != "nnodes":
        return
    for name in ("mem_mb", "constraint", "exclude", "nodelist"):
        value, key = getattr(request, name), name.removesuffix("_mb")
        require(
            value is None,
            f"resources.{key}: cluster={request.cluster.name} gives whole nodes by -nnodes, beside which LSF takes no "
            "resource string (-R): leave it out",
        )


def _whole_nodes(request: Request) -> Iterator[str]:
    yield f"-nnodes {request.nodes}"
    if (flags := request.cluster.lsf.alloc_flags) is not None:
        yield f'-alloc_flags "{flags}"'


def _slots(request: Request) -> Iterator[str]:
    """Yield slots, which are cores, and the resource strings: memory of each host, and which hosts."""
    cores, site = request.cores_per_node or 1, request.cluster
    yield f"-n {request.nodes * cores}"
    yield '-R "span[hosts=1]"' if request.nodes == 1 else f'-R "span[ptile={cores}]"'
    if request.mem_mb is not None:
        share = -(-request.mem_mb // cores) if site.lsf.memory == "per_slot" else request.mem_mb
        yield f"-M {request.mem_mb}MB"  # with units: what a bare number means is the site's LSF_UNIT_FOR_LIMITS
        yield f'-R "rusage[mem={share}MB]"'
    avoided = [] if request.exclude is None else [f"hname!='{host}'" for host in _hosts("exclude", request.exclude)]
    chosen = " && ".join([*([] if request.constraint is None else [request.constraint]), *avoided])
    if chosen:
        yield f"-R {_quoted(f'select[{chosen}]')}"


def _hosts(key: str, text: str) -> list[str]:
    hosts = text.split(",")
    good = all(_HOST.fullmatch(host) for host in hosts)
    require(good, f"resources.{key}={text}: LSF wants names of hosts, separated by commas and without brackets")
    return hosts


def _condition(text: str) -> str:
    """Return a dependency in LSF's words (bsub -w): ``afterok:12,afterany:13`` is ``done(12) && ended(13)``."""
    parts: list[str] = []
    for clause in text.split(","):
        word, *jobs = clause.split(":")
        require(
            word in _WAITS and bool(jobs) and all(_JOB.fullmatch(job) or job.startswith("<") for job in jobs),
            f"resources.dependency={text}: LSF has {', '.join(_WAITS)}, each as WORD:ID[:ID]",
        )
        parts += [f"{_WAITS[word]}({job.removesuffix('[]')})" for job in jobs]
    return " && ".join(parts)


def format_minutes(seconds: int) -> str:
    """Return H:MM, rounded up: LSF has no seconds (bsub -W [hour:]minute).

    >>> format_minutes(7200), format_minutes(90)
    ('2:00', '0:02')
    """
    minutes = -(-seconds // 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def _launcher(request: Request) -> list[str]:
    """Return what starts one agent on each node, where the script itself is on none of them."""
    if request.cluster.lsf.launcher != "jsrun":
        return []
    site = request.cluster  # resource sets of a whole node, one task each, bound to nothing: the agent starts the rest
    cores = ["-c", str(site.cores_per_gpu * site.gpus_per_node)] if site.cores_per_gpu and site.gpus_per_node else []
    gpus = ["-g", str(site.gpus_per_node)] if site.gpus_per_node else []
    return ["jsrun", "-n", str(request.nodes), "-r", "1", "-a", "1", *cores, *gpus, "-b", "none"]


def _rendezvous(request: Request) -> list[str]:
    if request.nodes == 1:
        return []
    hosts = "mapfile -t nodes < <(awk '!seen[$0]++' \"$LSB_DJOB_HOSTFILE\")"
    if request.cluster.lsf.launcher == "jsrun":  # the first is the launch node, on which the script runs
        hosts = "mapfile -t nodes < <(grep -v -e batch -e login \"$LSB_DJOB_HOSTFILE\" | awk '!seen[$0]++')"
    return [hosts, "export HPCML_MASTER_ADDR=${nodes[0]}"]


def _on_every_node(command: str, folder: Path, grace_s: int) -> list[str]:
    """Return the lines that start *command* on each host: by blaunch, but for the first, where this shell is.

    The first that fails ends the others: SIGTERM, with the reason in a file that their agents read, after *grace_s*
    seconds SIGKILL. Signals to the job are handed on.
    """
    return f"""
export HPCML_JOB_END={shlex.quote(str(folder))}/job.$LSB_JOBID.$LSB_JOBINDEX.end
told=()  # blaunch need not hand on what is exported here
for name in HPCML_JOB_ID HPCML_JOB_NAME HPCML_JOB_START HPCML_JOB_END HPCML_ARRAY_INDEX HPCML_PACK \\
    HPCML_MASTER_ADDR HPCML_REQUEUE HPCML_TIME_LIMIT; do
    [ -z "${{!name}}" ] || told+=("$name=${{!name}}")
done
agents=()
for rank in "${{!nodes[@]}}"; do
    there=(blaunch "${{nodes[rank]}}" -no-shell)  # else the words are a line for a shell, as rsh's are
    [ "$rank" -gt 0 ] || there=()
    "${{there[@]}}" /usr/bin/env HPCML_NODE_RANK="$rank" "${{told[@]}}" {command} &
    agents+=($!)
done
signal_all() {{ kill -s "$1" "${{agents[@]}}" 2>/dev/null; }}
set +e
ending=  # by LSF, which signals each process of the job: no failure of theirs
trap 'signal_all USR1' USR1
trap 'ending=1; signal_all TERM' TERM INT
trap : USR2
status=0 why= term_at= kill_at=  # seconds of this shell; not set: never
# Nothing is ever read from this: bash loses the status of what ends at the moment at which a signal ends a `wait`.
exec {{never}}<> <(:)
while [ "${{#agents[@]}}" -gt 0 ]; do
    read -rt 1 -u "$never"
    [ $? -gt 1 ] || sleep 1  # it could not be opened
    for rank in "${{!agents[@]}}"; do
        kill -0 "${{agents[rank]}}" 2>/dev/null && continue
        wait "${{agents[rank]}}"
        code=$?
        unset "agents[rank]"
        [ "$status" -ne 0 ] || status=$code
        case $code in
            0) ;;
            {os.EX_TEMPFAIL}) : "${{term_at:=$((SECONDS + {_FOLLOW_S}))}}" ;;  # left at a checkpoint
            *)
                [ -n "$why" ] || term_at=$SECONDS
                : "${{why:=node $rank (${{nodes[rank]}}) ended first, with exit status $code}}" ;;
        esac
    done
    [ "${{#agents[@]}}" -gt 0 ] || break
    if [ -z "$ending" ] && [ -n "$term_at" ] && [ "$SECONDS" -ge "$term_at" ]; then
        [ -z "$why" ] || echo "$why" >"$HPCML_JOB_END"
        signal_all TERM
        term_at= kill_at=$((SECONDS + {grace_s}))
    elif [ -n "$kill_at" ] && [ "$SECONDS" -ge "$kill_at" ]; then
        signal_all KILL
        kill_at=
    fi
done
rm -f "$HPCML_JOB_END"
exit "$status"
""".strip("\n").splitlines()


def _quoted(value: str) -> str:
    """Return *value* as a word of a ``#BSUB`` line, which LSF reads with double quotes and no escapes in them."""
    require(
        not set(value) & set('"\n\r\0'), f"{value!r} cannot be written as a #BSUB line: it holds a quote or a line end"
    )
    return value if re.fullmatch(r"[A-Za-z0-9_./:=,@%+-]+", value) else f'"{value}"'
