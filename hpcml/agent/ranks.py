"""The processes of a run on this node: what each finds in its environment, which is torchrun's and hpcml's."""

from __future__ import annotations

import os
import random
import socket
import zlib
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from hpcml.agent.supervise import Rank
from hpcml.agent.turn import Turn
from hpcml.manifest import Plan
from hpcml.resources import client_dir
from hpcml.rundir import RunDir

REQUEUE = "HPCML_REQUEUE"  # how this job has a run queued again: said by the job script
_FIRST_PORT, _PORTS = 20_000, 10_000  # below the range from which Linux takes ports by itself
_TRIES = 100


def provide_client(run_dir: RunDir) -> None:
    """Give the workload a folder for its PYTHONPATH with `hpcml_client` in it, and nothing else of our environment."""
    run_dir.client_path.mkdir(exist_ok=True)
    link = run_dir.client_path / "hpcml_client"
    with suppress(FileExistsError):  # an attempt before, or the agent of another node
        link.symlink_to(client_dir())


def ranks_of(turn: Turn, attempt: int, environ: Mapping[str, str]) -> list[Rank]:
    """Return the processes of this node, with what is left of *environ* after the plan."""
    plan, run_dir, local_size = turn.manifest.plan, turn.run_dir, turn.manifest.plan.processes_per_node
    nodes = turn.manifest.run.resources.nodes
    not_theirs = plan.environment.keys() | {REQUEUE}  # an hpcml that the workload starts must not use our job
    base = {name: value for name, value in environ.items() if name not in not_theirs}
    if plan.image is not None:
        base = {name: value for name, value in base.items() if _is_passed_on(name, plan)}
    base |= {name: value for name, value in plan.environment.items() if value is not None}
    base |= {
        "HPCML_RUN_ID": turn.manifest.uid,
        "HPCML_RUN_DIR": str(run_dir.path),
        "HPCML_CONFIG": str(turn.source),
        "HPCML_ATTEMPT": str(attempt),
        "HPCML_CLUSTER": turn.manifest.run.cluster.name,
        "WORLD_SIZE": str(local_size * nodes),
        "LOCAL_WORLD_SIZE": str(local_size),
        "NODE_RANK": str(turn.node),
        "GROUP_RANK": str(turn.node),  # torchrun's word for it
        **_rendezvous(turn.manifest.uid, nodes, environ),
    }
    if plan.image is None:  # else argv sets it, before the image's own
        base["PYTHONPATH"] = os.pathsep.join(filter(None, [str(run_dir.client_path), environ.get("PYTHONPATH")]))
    first = turn.node * local_size
    return [
        Rank(
            argv=plan.argv,
            environ=_environ({**base, "RANK": str(first + local), "LOCAL_RANK": str(local)}, plan, environ),
            cwd=Path(plan.cwd),
            stdout=run_dir.stdout(attempt, first + local),
            stderr=run_dir.stderr(attempt, first + local),
        )
        for local in range(local_size)
    ]


def _is_passed_on(name: str, plan: Plan) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in plan.passed_on)


def _environ(wanted: Mapping[str, str], plan: Plan, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of the process that we start, so that its program finds *wanted*."""
    if plan.image is None:
        return wanted
    ours = {name: value for name, value in environ.items() if name != REQUEUE}
    inside = {prefix + name: value for name, value in wanted.items() for prefix in plan.env_prefixes}
    return {**ours, **plan.runtime_environment, **inside}


def _rendezvous(uid: str, nodes: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return where the ranks meet: a free port on one node; on several, one that all compute alike.

    That is another one for each run, job and start of the job, since a port may be held for minutes after its use. All
    lie below those that the kernel hands out by itself, so that no connection takes it before the ranks do.
    """
    if nodes == 1:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    job = [environ.get(name, "") for name in ("SLURM_JOB_ID", "PBS_JOBID", "SLURM_RESTART_COUNT")]
    port = _FIRST_PORT + zlib.crc32("/".join([uid, *job]).encode()) % _PORTS
    return {"MASTER_ADDR": environ.get("HPCML_MASTER_ADDR", "127.0.0.1"), "MASTER_PORT": str(port)}


def _free_port() -> int:
    for port in random.sample(range(_FIRST_PORT, _FIRST_PORT + _PORTS), _TRIES):  # of runs that start at once, too
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of {_TRIES} ports of this node is free")
