"""The processes (ranks) of a run on this node, and the environment of each: torchrun's variables and hpcml's."""

from __future__ import annotations

import os
import random
import re
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from functools import cache
from pathlib import Path, PurePath

from hpcml.agent.assignment import Turn
from hpcml.agent.processes import JOBS
from hpcml.agent.supervise import Rank
from hpcml.agent.time_limit import TIME_LIMIT
from hpcml.model.run import Observe, ProfileTool, Run
from hpcml.model.strategy import StrategyName
from hpcml.runs.layout import RunDir, program_packages
from hpcml.runs.plan import INSIDE_NAMES, INSIDE_PREFIX, OF_THE_RUN, Plan, Staging
from hpcml.runs.private import make_folder
from hpcml_client.client import Ranks

REQUEUE = "HPCML_REQUEUE"  # how this job has a run queued again: said by the job script
JOB_END = "HPCML_JOB_END"  # the file in which the job script says why it ends the agents of all nodes
PROFILE = "HPCML_PROFILE"  # where a profiler writes, without the end of the file's name
_OURS = frozenset({REQUEUE, JOB_END, TIME_LIMIT, INSIDE_NAMES, PROFILE})  # an hpcml inside must not use our job
_FIRST_PORT, _PORTS = 20_000, 10_000  # below the range from which Linux takes ports by itself
_TRIES = 100
# What torchrun tells each process, and programs take for "there are several": none of it where there is one.
_TORCHRUN = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*"),
)
# Which task of the step that started the agent this is: the agent's own place, and no process's of the program.
_SLURM_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE")
# The folder that a job was submitted in, to which job scripts go: of a program with a copy of it, the copy.
_SUBMITTED_IN = ("PBS_O_WORKDIR", "SLURM_SUBMIT_DIR", "LS_SUBCWD")
_MPI = ("PMI_*", "PMIX_*", "OMPI_COMM_WORLD_*", "MV2_COMM_WORLD_*", "PALS_*", "HOROVOD_RANK", "HOROVOD_SIZE")


def provide_client(run_dir: RunDir) -> None:
    """Make the folder for the workload's PYTHONPATH, with links to hpcml_client and hpcml_train only.

    So a program imports these two packages, but none of hpcml's own dependencies. Where the submission kept copies of
    them, the folder is a link to these.
    """
    if run_dir.client_path.is_symlink():
        return
    make_folder(run_dir.client_path)
    for package in program_packages():
        with suppress(FileExistsError):  # an attempt before, or the agent of another node
            (run_dir.client_path / package.name).symlink_to(package)


def overrides_env(run: Run, name: str, *, processes: int) -> bool:
    """Tell whether the variable *name* is set for each of all *processes* of *run*, whatever ``workload.env`` says."""
    if name in OF_THE_RUN:
        return True
    is_own = run.workload.command is not None
    if not is_own or processes > 1:
        return _any_of(*_TORCHRUN, *(_SLURM_TASK if is_own else ()))(name)
    return False


def ranks_of(turn: Turn, attempt: int, environ: Mapping[str, str]) -> list[Rank]:
    """Return the processes to start on this node, in the order of their local ranks.

    Their environment is *environ* as changed by the plan, plus HPCML_RUN_ID, HPCML_RUN_DIR, HPCML_CONFIG,
    HPCML_ATTEMPT, HPCML_CLUSTER and, for a recipe or several processes, torchrun's RANK, LOCAL_RANK, WORLD_SIZE,
    LOCAL_WORLD_SIZE, NODE_RANK, GROUP_RANK, MASTER_ADDR and MASTER_PORT. One process of the user's own command has none
    of these. For a run in a container, only the variables that the plan passes on reach the program.
    """
    plan, run_dir, local_size = turn.plan, turn.run_dir, turn.plan.processes_per_node
    nodes = turn.run.resources.nodes
    base = _base(turn, attempt, environ, _misleading(turn.run, local_size * nodes))
    if turn.run.workload.command is None or local_size * nodes > 1:
        base |= _rendezvous(turn.uid, nodes, environ, suffix=turn.run.cluster.rendezvous_suffix)
    first = turn.node * local_size
    profiled = _profiled(turn, attempt)
    return [
        Rank(
            argv=plan.profiled if plan.profiled and first + local in profiled else plan.argv,
            environ=_environ(
                base | _place(turn, local, attempt, environ) | profiled.get(first + local, {}), plan, environ
            ),
            cwd=Path(plan.cwd),
            stdout=run_dir.stdout(attempt, first + local),
            stderr=run_dir.stderr(attempt, first + local),
        )
        for local in range(local_size)
    ]


def _base(turn: Turn, attempt: int, environ: Mapping[str, str], misleading: Sequence[str]) -> dict[str, str]:
    """Return what all processes find, whatever their place: *environ* without *misleading*, the plan's, and hpcml's."""
    plan, run_dir = turn.plan, turn.run_dir
    not_theirs, misleads = plan.environment.keys() | _OURS, _any_of(*misleading)
    base = {name: value for name, value in environ.items() if name not in not_theirs and not misleads(name)}
    if plan.image is not None:
        base = {name: value for name, value in base.items() if _any_of(*plan.passed_on)(name)}
    if plan.staging is not None:
        base |= {name: plan.cwd for name in _SUBMITTED_IN if name in base}
    base |= {name: value for name, value in plan.environment.items() if value is not None}
    base |= {
        "HPCML_RUN_ID": turn.uid,
        "HPCML_RUN_DIR": str(run_dir.path),
        "HPCML_CONFIG": str(turn.source),
        "HPCML_ATTEMPT": str(attempt),
        "HPCML_CLUSTER": turn.run.cluster.name,
    }
    if plan.image is None:  # else argv sets it, before the image's own
        is_observed = turn.run.precision.observe is Observe.always
        ours = [*run_dir.python_path(is_observed=is_observed), *plan.python_path]
        base["PYTHONPATH"] = os.pathsep.join(filter(None, [*ours, base.get("PYTHONPATH")]))
    if plan.staging is not None and ("UV_PROJECT_ENVIRONMENT" in base or _shares_venv(plan.staging)):
        base.setdefault("UV_NO_SYNC", "1")  # `uv run` would install this copy of the project for all who share it
    return base


def _shares_venv(staging: Staging) -> bool:
    return any(PurePath(place).name == ".venv" for place in staging.shared)


def marks_of(turn: Turn, attempt: int, environ: Mapping[str, str]) -> list[str]:
    """Return variables that all processes of this attempt on this node have, and none of another run, attempt or job.

    Two nodes may be one machine (as of a scheduler's simulated nodes), where the other's ranks are still at work. The
    agent's *environ* says in which job of a scheduler they are, if any: what the program has submitted is in another.
    """
    marks = [f"HPCML_RUN_DIR={turn.run_dir.path}", f"HPCML_ATTEMPT={attempt}"]
    if turn.run.resources.nodes > 1:
        marks.append(f"NODE_RANK={turn.node}")
    told = [name for name in JOBS if name in environ]
    return [*marks, *(f"{name}={environ.get(name, '')}" for name in told or JOBS)]


def mpi_rank_of(turn: Turn, attempt: int, environ: Mapping[str, str], place: Ranks) -> Rank:
    """Return the process of the rank at *place* in an MPI job, in whose launcher's environment *environ* this is.

    It gets what `ranks_of` gives, and keeps what the launcher says: the program needs it to find the others. Where they
    meet outside of MPI (MASTER_ADDR) has been decided by the first node's agent. Into a container goes where PMIx has
    its files, which the program inside must see.
    """
    plan, run_dir = turn.plan, turn.run_dir
    each = plan.processes_per_node
    base = _base(turn, attempt, environ, ("TORCHELASTIC_*",))
    base |= {name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environ}
    base |= {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(each),
        "NODE_RANK": str(place.rank // each),
        "GROUP_RANK": str(place.rank // each),
    }
    around = dict(environ)
    if plan.image is not None:
        around |= _pmi_seen_inside(environ)
    profiled = _profiled(turn, attempt)
    return Rank(
        argv=plan.profiled if plan.profiled and place.rank in profiled else plan.argv,
        environ=_environ(base | profiled.get(place.rank, {}), plan, around),
        cwd=Path(plan.cwd),
        stdout=run_dir.stdout(attempt, place.rank),
        stderr=run_dir.stderr(attempt, place.rank),
    )


def started_once(turn: Turn, attempt: int, environ: Mapping[str, str]) -> Rank:
    """Return the program as a single process on the first node, which starts the ranks of all nodes itself."""
    plan, run_dir = turn.plan, turn.run_dir
    return Rank(
        argv=plan.argv,
        environ=_environ(_base(turn, attempt, environ, _TORCHRUN), plan, environ),
        cwd=Path(plan.cwd),
        stdout=run_dir.stdout(attempt, 0),
        stderr=run_dir.stderr(attempt, 0),
    )


def job_environment(turn: Turn, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the job's variables for a launcher of ranks: with the run's own settings, which it hands on."""
    plan = turn.plan
    found = {name: value for name, value in environ.items() if name not in plan.environment and name not in _OURS}
    return {**found, **{name: value for name, value in plan.environment.items() if value is not None}}


def mpi_meeting(turn: Turn, environ: Mapping[str, str]) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT for all ranks of an MPI job, as its first node decides them."""
    run = turn.run
    return _rendezvous(turn.uid, run.resources.nodes, environ, suffix=run.cluster.rendezvous_suffix)


def _pmi_seen_inside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the runtime's list of binds with the folders in which PMIx, outside, has its files (PMIX_SERVER_TMPDIR).

    Those of the scheduler lie in no folder that a runtime binds by itself, as the spool of slurmd.
    """
    places = [environ[name].rstrip("/") for name in ("PMIX_SERVER_TMPDIR", "PMIX_SYSTEM_TMPDIR") if environ.get(name)]
    seen = [place for place in dict.fromkeys(places) if os.path.isdir(place) and place not in ("/tmp", "/var/tmp")]  # noqa: PTH112, S108
    if not seen:
        return {}
    names = ("APPTAINER_BIND", "SINGULARITY_BIND")
    return {name: ",".join(filter(None, [environ.get(name), *seen])) for name in names}


def _profiled(turn: Turn, attempt: int) -> dict[int, dict[str, str]]:
    """Return what the ranks that are profiled are told besides: where the profiler is to write."""
    profile = turn.run.profile
    if profile.tool is ProfileTool.none:
        return {}
    make_folder(turn.run_dir.profile(attempt, 0).parent)
    return {rank: {PROFILE: str(turn.run_dir.profile(attempt, rank))} for rank in profile.ranks}


def _misleading(run: Run, processes: int) -> Sequence[str]:
    """Return patterns of what a program must not find in its environment, unless the user or hpcml sets it.

    A launcher finds all that the scheduler has given: it starts the processes, and tells each of them.
    """
    if run.workload.command is None:
        return ()
    starts_them = run.workload.own_launcher is not None or run.strategy.name is StrategyName.horovod
    if processes > 1:
        return () if starts_them else (*_MPI, "TORCHELASTIC_*")
    return _TORCHRUN if starts_them else (*_TORCHRUN, *_SLURM_TASK, *_MPI)


def _place(turn: Turn, local: int, attempt: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what tells a process which of how many it is; empty for one process of the user's own command.

    For several of them it is all that torchrun sets, since programs look for parts of it, and Slurm's words for the
    same where the job is Slurm's: Lightning believes these, and JAX.
    """
    workload, each = turn.run.workload, turn.plan.processes_per_node
    count, rank = each * turn.run.resources.nodes, turn.node * each + local
    is_own = workload.command is not None
    if is_own and count == 1:
        return {}
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(each),
        "NODE_RANK": str(turn.node),
        "GROUP_RANK": str(turn.node),  # torchrun's word for it
    }
    if not is_own or workload.own_launcher is not None:
        return place
    place |= {
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(count),
        "TORCHELASTIC_RUN_ID": turn.uid,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
    if "SLURM_JOB_ID" in environ:
        place |= {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(turn.node),
            "SLURM_NTASKS": str(count),
            "SLURM_NPROCS": str(count),
            "SLURM_NTASKS_PER_NODE": str(each),
        }
    return place


@cache
def _any_of(*patterns: str) -> Callable[[str], bool]:
    """Return what tells whether a name matches any of *patterns*."""
    matches = re.compile("|".join(map(translate, patterns)) or "(?!)").match
    return lambda name: matches(name) is not None


def _environ(wanted: Mapping[str, str], plan: Plan, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of the process that we start, so that its program finds *wanted*.

    For a container each variable gets the prefix by which the runtime passes it on to the program inside; where that is
    hpcml's own, the names are told as well.
    """
    if plan.image is None:
        return wanted
    ours = {name: value for name, value in environ.items() if name not in _OURS}
    inside = {prefix + name: value for name, value in wanted.items() for prefix in plan.env_prefixes}
    if INSIDE_PREFIX in plan.env_prefixes:
        known = [name for name in inside if name.isascii() and name.isidentifier()]
        inside = {name: inside[name] for name in known} | {INSIDE_NAMES: " ".join(known)}
    return {**ours, **plan.runtime_environment, **inside}


def _rendezvous(uid: str, nodes: int, environ: Mapping[str, str], *, suffix: str) -> dict[str, str]:
    """Return where the ranks meet: a free port on one node; on several, one that all compute alike.

    That is another one for each run, job and start of the job, since a port may be held for minutes after its use. All
    lie below those that the kernel hands out by itself, so that no connection takes it before the ranks do. *suffix* is
    what a site adds to a node's name for its fast network.
    """
    if nodes == 1:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    job = [environ.get(name, "") for name in ("SLURM_JOB_ID", "PBS_JOBID", "SLURM_RESTART_COUNT", "HPCML_JOB_ID")]
    port = _FIRST_PORT + zlib.crc32("/".join([uid, *job]).encode()) % _PORTS
    if not (first := environ.get("HPCML_MASTER_ADDR")):
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    host, dot, domain = first.partition(".")
    return {"MASTER_ADDR": f"{host}{suffix}{dot}{domain}", "MASTER_PORT": str(port)}


def _free_port() -> int:
    """Return a port of this node on which nobody listens now; `OSError` where none of 100 is free.

    It is tried in random order, so that runs which start at the same time do not choose the same.
    """
    for port in random.sample(range(_FIRST_PORT, _FIRST_PORT + _PORTS), _TRIES):  # of runs that start at once, too
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of {_TRIES} ports of this node is free")
