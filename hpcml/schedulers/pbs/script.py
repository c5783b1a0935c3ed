"""What PBS is asked for, as options of qsub and as a job script; pure text, nothing is started here.

Sources: man qsub and man pbs_resources. An `Ask` is what both forms are made from: the options that `qsub_argv`
gives, and the ``#PBS`` lines that `render` writes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import require
from hpcml.model.cluster import LAUNCHERS
from hpcml.schedulers.request import Request, fill
from hpcml.schedulers.script import body, refuse_line_breaks, words_of_directive
from hpcml.units import format_walltime

LONGEST_NAME = 230  # qsub refuses 231: "Job name is too long"
FIRST_LINES = (  # of every job: where and as if it had been typed
    'cd "${PBS_O_WORKDIR:-.}"',  # PBS starts jobs in the home directory
    'export PATH="${PBS_O_PATH:-$PATH}"  # PBS gives /bin:/usr/bin only; this is where it was submitted',
)
GPU_REQUEST = ":ngpus={gpus}"  # unless the site says it otherwise
_FOLLOW_S = 60  # within which all nodes have to leave at a checkpoint at which the first has left
_LAST_WORDS_S = 30  # of an agent, after the grace of its program
_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_.+-]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:=,@%+\[\]^-]+")
_DEPENDENCY = re.compile(r"(?:after|afterok|afternotok|afterany|before|beforeok|beforenotok|beforeany|on):\S+")
_CHUNK_RESOURCES = re.compile(r"[A-Za-z_]\w*=[^\s:=+]+(?::[A-Za-z_]\w*=[^\s:=+]+)*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAIL_POINTS = {"NONE": "n", "BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "abe"}
_HATCH = "; what PBS itself has for it can be given by resources.extra_directives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What qsub is told of a job, in PBS's words; None is not said.

    The backend makes it from a `Request` (`ask`), the plugin for submitit from its own parameters. `select` is what
    follows ``-l select=``, `walltime_s` is in seconds, `parallelism` is how many jobs of an array run at once, and
    `extra` are options as a user writes them.
    """

    name: str
    select: str | None  # None: a site without, where `limits` has the totals
    log_dir: Path
    queue: str | None = None
    account: str | None = None
    account_by: tuple[str, str] | None = None  # another option than -A, and its value
    place: str | None = None
    limits: tuple[tuple[str, str], ...] = ()  # resources of the whole job: -l NAME=VALUE
    walltime_s: int | None = None
    array_size: int | None = None  # None: a plain job
    parallelism: int | None = None
    depend: str | None = None
    mail_user: str | None = None
    mail_points: str | None = "n"
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # qsub: "illegal -J value" for 0-0
        assert self.array_size is None or self.array_size > 1, "PBS has no array of one"


def ask(request: Request, *, name: str, log_dir: Path, array_size: int | None = None) -> Ask:
    """Say *request* in PBS's words, or raise `ConfigError` for what PBS has no word for.

    PBS lacks quality of service, a list of nodes to avoid, and features of nodes without a value. An array needs two
    elements or more: *array_size* None is a plain job.
    """
    require(
        request.qos is None,
        f"resources.qos={request.qos}: PBS has queues and no quality of service; give resources.partition{_HATCH}",
    )
    require(
        request.exclude is None,
        f"resources.exclude={request.exclude}: PBS cannot be told which nodes to avoid{_HATCH}",
    )
    refuse_line_breaks(request.extra_directives)
    site, pbs = request.cluster.pbs, request.pbs
    _check_site(request)
    return Ask(
        name=job_name(name),
        select=_select(request) if site.has_select else None,
        log_dir=log_dir,
        # A reservation of PBS is a queue; its id may carry the server's name: R123.server.
        queue=request.reservation.partition(".")[0] if request.reservation else request.partition,
        account=request.account if site.account == "-A" else None,
        account_by=None if site.account == "-A" or request.account is None else site.account_option(request.account),
        place=_place(request),
        limits=(*(() if site.has_select else _totals(request)), *pbs.whole_job().items()),
        walltime_s=request.walltime_s,
        array_size=array_size,
        parallelism=request.array_parallelism if array_size else None,
        depend=_depend(request.dependency),
        mail_user=request.mail_user,
        mail_points=_mail_points(request),
        extra=request.extra_directives,
    )


def chunk_of(*, cpus: int | None, gpus: str = "", mem_mb: int | None, more: str | None = None) -> str:
    """Return what follows the number of nodes in `-l select=` (man pbs_resources), as ``:ncpus=4:ngpus=1:mem=512mb``.

    *gpus* and *more* are resources in PBS's own words, as ``ngpus=1`` or ``mpiprocs=4``.

    >>> chunk_of(cpus=4, gpus="ngpus=1", mem_mb=512)
    ':ncpus=4:ngpus=1:mem=512mb'
    """
    words = [
        None if cpus is None else f"ncpus={cpus}",
        gpus.removeprefix(":"),
        None if mem_mb is None else f"mem={mem_mb}mb",
        more,
    ]
    return "".join(f":{word}" for word in words if word)


def placement(nodes: int, *, exclusive: bool = False) -> str | None:
    """Return what `-l place=` is told, or None for nothing: without scatter, PBS puts several chunks on one node.

    >>> placement(2, exclusive=True)
    'scatter:excl'
    """
    words = [*(["scatter"] if nodes > 1 else []), *(["excl"] if exclusive else [])]
    return ":".join(words) or None


def job_name(text: str) -> str:
    """Return *text* as a name that every PBS takes: no blanks, ASCII, and a letter first as old ones want it.

    >>> job_name("50 epochs")
    'j50_epochs'
    """
    name = _NAME_CHARACTERS.sub("_", text)
    return (name if name[:1].isalpha() else f"j{name}")[:LONGEST_NAME]


def options(wanted: Ask) -> list[tuple[str, ...]]:
    """Return the options of qsub, each as its words, unquoted.

    Raises `ConfigError` where a directive of the user cannot be split into words.
    """
    extra = [tuple(words_of_directive(text)) for text in wanted.extra if text]
    # The name is last, where nothing can replace it: a job whose id got lost is found again by it.
    return [*_own_options(wanted), *extra, ("-N", wanted.name)]


def _own_options(wanted: Ask) -> list[tuple[str, str]]:
    limit = f"%{wanted.parallelism}" if wanted.parallelism else ""
    said: list[tuple[str, str | None]] = [
        ("-q", wanted.queue),
        ("-A", wanted.account),
        *([] if wanted.account_by is None else [wanted.account_by]),
        ("-l", None if wanted.select is None else f"select={wanted.select}"),
        *(("-l", f"{name}={value}") for name, value in wanted.limits),
        ("-l", None if wanted.place is None else f"place={wanted.place}"),
        ("-l", None if wanted.walltime_s is None else f"walltime={format_walltime(wanted.walltime_s)}"),
        ("-J", None if wanted.array_size is None else f"0-{wanted.array_size - 1}{limit}"),
        ("-W", None if wanted.depend is None else f"depend={wanted.depend}"),
        ("-W", "umask=022"),  # PBS's own is 077, for everything that the job creates
        ("-j", "oe"),
        ("-k", "oed"),  # written at once to the place of -o, not copied there at the end
        ("-o", log_place(wanted.log_dir)),
        ("-m", wanted.mail_points),
        ("-M", wanted.mail_user),
        ("-r", "y"),
    ]
    return [(flag, value) for flag, value in said if value is not None]


def log_place(folder: Path) -> str:
    """Return what `-o` may be told: the folder, or nowhere if qsub would refuse its name (it takes ASCII only)."""
    text = f"{folder}/"
    return text if text.isascii() and text.isprintable() and not set(text) & set("\"'\\`$^") else "/dev/null"


def qsub_argv(qsub: str, wanted: Ask, script: Path) -> list[str]:
    """Return the recommended submission: no login shell stands between PBS and *script*.

    Such a shell dies of signals meant for the job, and its exit status hides the job's. `#PBS` lines are not read in
    this form, which is why every option is said here again.
    """
    return [qsub, *(word for option in options(wanted) for word in option), "--", "/bin/bash", str(script)]


def render(
    request: Request,
    wanted: Ask,
    *,
    remark: str,
    script: Path,
    command: Sequence[str],
    requeue: Sequence[str] = (),
    time_limit: Sequence[str] = (),
) -> str:
    """Return the whole job script, which lies at *script*; `qsub SCRIPT` by hand asks for the same as we do.

    *remark* is one line for who opens the file. *command* starts the agent and *requeue* is what it runs to go back
    into the queue, *time_limit* to hear how long the job may run. On several nodes the script starts itself on each of
    them (`_on_every_node`). Raises `ConfigError` where a value cannot be written as a ``#PBS`` line.
    """
    lines = ["#!/bin/bash", f"# {remark}", *(f"#PBS {directive}" for directive in directives(wanted)), ""]
    lines += FIRST_LINES
    if log_place(wanted.log_dir) == "/dev/null":
        log = f'{shlex.quote(str(wanted.log_dir))}/"${{PBS_JOBID:-by-hand}}".OU'
        lines.append(f"exec >>{log} 2>&1  # not by -o: qsub takes ASCII paths only")
    if request.nodes > 1:
        lines += _on_every_node(script, request.cluster.launcher, request.grace_s + _LAST_WORDS_S)
    return "\n".join([*lines, *body(request, command, requeue=requeue, time_limit=time_limit)]) + "\n"


def _on_every_node(script: Path, launcher: str | None, grace_s: int) -> list[str]:
    """Return the lines for *script*, with what starts a program on another node: *launcher*, or what is found there.

    The first shell starts the script on each node as one of a rank, and waits for all of them; theirs go on below. The
    first that fails, or is killed, ends the others as with srun: SIGTERM, with the reason in a file that their agents
    read, after *grace_s* seconds SIGKILL, and at last the end of this shell, with which PBS ends the job.
    """
    return [*_launcher_found(script, launcher), *_ON_NODES, *_watched(grace_s), *_LATER_NODES]


def _launcher_found(script: Path, launcher: str | None) -> list[str]:
    """Return the lines that look for what reaches other nodes, and decide what these are told."""
    return f"""
script={shlex.quote(str(script))}
if [ -z "$HPCML_NODE_RANK" ]; then
    PATH="$PATH:$(. /etc/pbs.conf 2>/dev/null; echo "${{PBS_EXEC:-/opt/pbs}}")/bin"
    for launcher in {launcher or " ".join(LAUNCHERS)}; do
        command -v "$launcher" >/dev/null && break
        launcher=
    done
    if [ -z "$launcher" ]; then
        echo "no {launcher or ", ".join(LAUNCHERS)} on this node to reach the others: see cluster.launcher" >&2
        exit 127
    fi
    mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE")  # it names a node once for each of its MPI slots
    export HPCML_MASTER_ADDR=${{nodes[0]}}
    words=$script.$PBS_JOBID  # what the nodes of this job have to tell each other lies in files that begin so
    export HPCML_JOB_END=$words.end
    HPCML_JOB_START=$(date +%s%N).$$  # a job that is requeued keeps its id
    export HPCML_JOB_START
    told=()  # what is exported here does not reach the other nodes
    for name in HPCML_MASTER_ADDR HPCML_JOB_START HPCML_JOB_END \\
        PBS_JOBID PBS_JOBNAME PBS_ARRAY_ID PBS_ARRAY_INDEX PBS_O_PATH PBS_O_WORKDIR; do
        [ -z "${{!name}}" ] || told+=("$name=${{!name}}")
    done
""".splitlines()


# How the first shell reaches the agents: it becomes a launcher for each, and passes signals on.
_ON_NODES = """\
    on_node() {  # RANK WORDS: become the launcher that runs WORDS there
        node=${nodes[$1]}
        shift
        trap '' USR1 USR2  # else the launcher dies of a signal that is meant for the agents
        case $launcher in
            pbs_tmrsh) exec pbs_tmrsh "$node" "$@" ;;
            # -tt: the agent there is hung up on if this end is killed; PBS itself does not reach it
            ssh) exec ssh -tt -o BatchMode=yes -o ServerAliveInterval=30 "$node" "$(printf '%q ' "$@")" ;;
            # the variables: Open MPI and Intel MPI would bind the agent, and all that it starts, to one core
            mpiexec) OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none I_MPI_PIN=off \\
                exec mpiexec -n 1 -host "$node" "$@" ;;
            # It always succeeds: the exit status is left in a file, and one that is not there was killed
            pbsdsh)
                left=$words.left.$BASHPID
                pbsdsh -h "$node" -- /bin/bash -c 'trap : TERM; "${@:2}"; echo $? >"$1"' - "$left" "$@"
                exit "$(cat "$left" 2>/dev/null || echo 137)" ;;
        esac
    }
    signal_all() {  # SIGNAL RANKS: to the agents of these nodes; a signal to the job does not reach the other nodes
        local number=$1 rank
        shift
        for rank in "$@"; do
            if [ "$rank" -eq 0 ]; then
                kill -s "$number" "${agents[0]}" 2>/dev/null
            else
                on_node "$rank" /bin/bash -c 'kill -s "$1" "$(<"$2")"' - "$number" "$words.$rank" &
            fi
        done
    }
    ending=  # by PBS, which signals each process of the job, and the tasks on its other nodes: no failure of theirs
    others=("${!nodes[@]}")
    unset "others[0]"
    trap 'signal_all USR1 "${others[@]}"' USR1
    trap 'ending=1' TERM  # this shell has to outlive the agents
    trap : USR2
    HPCML_NODE_RANK=0 /bin/bash "$script" &
    agents=($!)
    for rank in "${!nodes[@]}"; do
        [ "$rank" -eq 0 ] && continue
        on_node "$rank" /usr/bin/env HPCML_NODE_RANK="$rank" "${told[@]}" /bin/bash "$script" &
        agents+=($!)
    done
""".splitlines()
# Below what the first shell does alone.
_LATER_NODES = """\
elif [ "$HPCML_NODE_RANK" -gt 0 ]; then
    echo $$ >"$script.$PBS_JOBID.$HPCML_NODE_RANK"  # this shell becomes the agent
fi
""".splitlines()


def _watched(grace_s: int) -> list[str]:
    """Return the lines with which the first shell waits for all agents, and ends the others once one has failed."""
    return f"""\
    status=0 why= term_at= kill_at= leave_at=  # seconds of this shell; not set: never
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
                    [ -n "$why" ] || term_at=$((SECONDS + 1))  # one second, to hear whether it is PBS that ends us
                    : "${{why:=node $rank (${{nodes[rank]}}) ended first, with exit status $code}}" ;;
            esac
        done
        if [ -n "$ending" ]; then
            term_at=
        elif [ -n "$term_at" ] && [ "$SECONDS" -ge "$term_at" ]; then
            [ -z "$why" ] || echo "$why" >"$HPCML_JOB_END"
            signal_all TERM "${{!agents[@]}}"
            term_at= kill_at=$((SECONDS + {grace_s}))
        elif [ -n "$kill_at" ] && [ "$SECONDS" -ge "$kill_at" ]; then
            signal_all KILL "${{!agents[@]}}"
            kill_at= leave_at=$((SECONDS + 10))
        elif [ -n "$leave_at" ] && [ "$SECONDS" -ge "$leave_at" ]; then
            break  # a node does not answer: PBS ends what is left of a job whose first process is gone
        fi
    done
    rm -f "$words".*
    exit "$status"
""".splitlines()


def directives(wanted: Ask) -> list[str]:
    """Return the options as `#PBS` lines want them; what the user wrote as a directive stays as it was written.

    Raises `ConfigError` for a value with a double quote or a line break.
    """
    own = [f"{flag} {_quoted(value)}" for flag, value in _own_options(wanted)]
    return [*own, *(text for text in wanted.extra if text), f"-N {wanted.name}"]


def _select(request: Request) -> str:
    site, cpus = request.cluster, _cores(request)
    gpus = ""
    if request.gpus_per_node > 0:
        gpus = fill(GPU_REQUEST if site.gpu_request is None else site.gpu_request, request)
    if request.constraint is not None:
        require(
            _CHUNK_RESOURCES.fullmatch(request.constraint) is not None,
            f"resources.constraint={request.constraint}: PBS knows no features; write name=value for a resource that "
            "the nodes must have",
        )
    more = ":".join(filter(None, [*_of_every_chunk(request), request.constraint]))
    chunk = chunk_of(cpus=cpus, gpus=gpus, mem_mb=request.mem_mb, more=more or None)
    if request.nodelist is None:
        return "+".join([f"{request.nodes}{chunk}", *request.pbs.chunks])
    hosts = request.nodelist.split(",")
    require(
        len(hosts) == request.nodes and all(_HOST.fullmatch(host) for host in hosts),
        f"resources.nodelist={request.nodelist}: PBS wants exactly one name for each of resources.nodes="
        f"{request.nodes}, separated by commas and without brackets",
    )
    return "+".join(f"1{chunk}:host={host}" for host in hosts)


def _place(request: Request) -> str | None:
    """Return what the run, or else its site, says of the nodes' place; sites of whole nodes see to that themselves."""
    site, asked = request.cluster.pbs, request.pbs.place
    if asked is not None or not site.has_select:  # place stands beside select only
        return asked
    if site.place is None or not request.exclusive:
        return site.place or placement(request.nodes, exclusive=request.exclusive)
    return ":".join([*(word for word in site.place.split(":") if word not in ("shared", "excl", "exclhost")), "excl"])


def _cores(request: Request) -> int | None:
    return request.cores_per_node if request.cluster.pbs.says_cores else None


def _of_every_chunk(request: Request) -> Iterator[str]:
    """Yield what else a chunk says: ranks and threads where they are asked for, and what the site wants."""
    site, wanted = request.cluster.pbs, request.pbs
    ranks = wanted.mpiprocs if wanted.mpiprocs is not None else request.ranks_per_node
    threads = wanted.ompthreads
    if site.says_ranks:
        ranks = ranks or max(1, request.gpus_per_node)
        threads = threads or max(1, (_cores(request) or ranks) // ranks)
    if ranks is not None:
        yield f"mpiprocs={ranks}"
    if threads is not None:
        yield f"ompthreads={threads}"
    for name, template in site.chunk.items():
        yield f"{name}={fill(template, request)}"


def _totals(request: Request) -> Iterator[tuple[str, str]]:
    """Yield what a site without select is asked for: sums over all nodes (NCI, Gadi)."""
    cores = _cores(request)
    if cores is not None:
        yield "ncpus", str(cores * request.nodes)
    if request.gpus_per_node:
        yield "ngpus", str(request.gpus_per_node * request.nodes)
    if request.mem_mb is not None:
        yield "mem", f"{request.mem_mb * request.nodes}mb"


def _check_site(request: Request) -> None:
    """Raise `ConfigError` for what the site has no word for."""
    site, cores = request.cluster, _cores(request)
    if not site.pbs.has_select:
        chunks = {
            "resources.constraint": request.constraint,
            "resources.nodelist": request.nodelist,
            "resources.pbs.chunks": request.pbs.chunks or None,
            "resources.pbs.mpiprocs": request.pbs.mpiprocs,
            "resources.pbs.ompthreads": request.pbs.ompthreads,
            "resources.pbs.place": request.pbs.place,
        }
        for name, value in chunks.items():
            require(
                value is None,
                f"{name}={value}: cluster={site.name} has no select, and is asked for totals of all nodes{_HATCH}",
            )
    if site.pbs.exact_cores and request.gpus_per_node and site.cores_per_gpu:
        wanted = site.cores_per_gpu * request.gpus_per_node
        require(
            cores == wanted,
            f"ncpus={cores}: cluster={site.name} wants {site.cores_per_gpu} cores for each GPU, {wanted} a node: "
            "set resources.cpus_per_task",
        )


def _depend(text: str | None) -> str | None:
    if text is None:
        return None
    require(
        all(_DEPENDENCY.fullmatch(part) for part in text.split(",")),
        f"resources.dependency={text}: PBS has after, afterok, afternotok, afterany and before*, each as WORD:ID[:ID]",
    )
    return text


def _mail_points(request: Request) -> str | None:
    if request.mail_type is None:
        return "n" if request.mail_user is None else None  # None: PBS's own rule, which is to mail when a job is killed
    words = request.mail_type.upper().split(",")
    known = ", ".join(_MAIL_POINTS)
    require(set(words) <= set(_MAIL_POINTS), f"resources.mail_type={request.mail_type}: PBS has {known}")
    return "".join(sorted({letter for word in words for letter in _MAIL_POINTS[word]} - {"n"})) or "n"


def _quoted(value: str) -> str:
    if _PLAIN_WORD.fullmatch(value):
        return value
    require(not set(value) & set('"\n\r\0'), f"{value!r} cannot be written as a #PBS line")
    return f'"{value}"'
