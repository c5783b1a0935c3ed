"""The command that starts all ranks of an MPI program on all nodes, as one job; run by the first node's agent.

The command starts `hpcml.agent.mpi.rank` for each rank, and that the program. On Slurm it is ``srun`` with the site's
``--mpi=``, as a step beside that of the agents (``--overlap``, man srun); elsewhere, or where it is asked for, the
``mpirun`` or ``mpiexec`` of the MPI that the job finds, of which two families are known: Open MPI's, and those that
take ``-n``, ``--ppn`` and ``--hostfile`` (MPICH's Hydra, Intel's, HPE's PALS). Open MPI built without PBS's library
(Debian's is) reaches other nodes by `hpcml.agent.mpi.reach`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hpcml.runs.plan import MpiStart

_ANSWERS_WITHIN_S = 60.0
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
REACH = "HPCML_MPI_REACH"  # by what `reach` starts a program on another node; unset: the first that is there
# What belongs to a node, a step or a process: the ranks' own, which other nodes set.
_OF_A_NODE = (
    *(
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURMD_NODENAME",
        "SLURM_TASK_PID",
        "SLURM_STEP*",
        "SLURM_SRUN_*",
    ),
    *("SLURM_LAUNCH_*", "SLURM_TOPOLOGY_*", "SLURM_GTIDS", "SLURM_CPU_BIND*", "SLURM_OVERLAP", "SLURM_UMASK"),
    *(
        "PBS_NODENUM",
        "PBS_TASKNUM",
        "PBS_MOMPORT",
        "HOSTNAME",
        "TMPDIR",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    ),
    *(
        "GPU_DEVICE_ORDINAL",
        "OMPI_*",
        "PMIX_*",
        "PMI_*",
        "PMI2_*",
        "PALS_*",
        "HYDRA_*",
        "HPCML_NODE_RANK",
        "SHLVL",
        "_",
    ),
    *("PWD", "OLDPWD"),
)
# The agents' step holds the memory of the job, by the core where the site gives it so: what is started beside it shares
# that (srun --mem=0, man srun), and cores.
_BESIDE = {"SLURM_OVERLAP": "1", "SLURM_MEM_PER_NODE": "0"}
# Of the agents' own step, which tells srun and mpirun other numbers than those of the ranks
_OF_THE_STEP = (
    *(
        "PMI_*",
        "PMI2_*",
        "PMIX_*",
        "OMPI_COMM_WORLD_*",
        "PALS_*",
        "SLURM_CPU_BIND*",
        "SLURM_DISTRIBUTION",
        "SLURM_STEP*",
    ),
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK"),
    *("SLURM_MPI_TYPE", "SLURM_KILL_BAD_EXIT", "SLURM_PROCID", "SLURM_LOCALID"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many ranks there are to be, and what each has."""

    nodes: int
    each: int  # ranks of a node
    cpus: int | None = None  # cores of each rank

    @property
    def count(self) -> int:
        """All ranks."""
        return self.nodes * self.each


def hosts_of(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the job's nodes as PBS lists them (PBS_NODEFILE), each once, in its order; else []."""
    try:
        lines = Path(environ["PBS_NODEFILE"]).read_text(encoding="utf-8").splitlines()
    except (KeyError, OSError):
        return []
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def host_file(hosts: Sequence[str], each: int) -> str:
    """Return the text of a host file in Open MPI's words, which Horovod's launcher reads too."""
    return "".join(f"{host} slots={each}\n" for host in hosts)


def asked(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what a program prints, for a question about itself; empty where it is not there or does not answer."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWERS_WITHIN_S,
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def command(
    start: MpiStart,
    size: Size,
    rank: Sequence[str],
    environ: Mapping[str, str],
    *,
    hosts: Path | None,
    ask: Callable[[Sequence[str]], str],
) -> list[str]:
    """Return the command line that starts *rank* once for each rank, a block of `size.each` on each node.

    *hosts* is the host file where the launcher does not hear of the nodes by itself; *ask* starts a launcher to hear
    what it is (`asked`).
    """
    if start.launcher == "srun":
        return [*_srun(start, size), *rank]
    program = "mpirun" if start.launcher == "pbsdsh" else start.launcher
    if "open mpi" in ask([program, "--version"]).lower() or "openrte" in ask([program, "--version"]).lower():
        has_tm = "ras:tm" in ask(["ompi_info", "--parsable"]) if hosts is not None else True
        return [*_open_mpi(program, size, environ, hosts, is_reached=not has_tm), *rank]
    named = [] if hosts is None else ["--hostfile", environ.get("PBS_NODEFILE", str(hosts))]
    return [program, "-n", str(size.count), "--ppn", str(size.each), *named, *rank]


def environment(environ: Mapping[str, str], start: MpiStart, size: Size) -> dict[str, str]:
    """Return the variables for the launcher: those of the job, without what is the agent's own place in it.

    ``mpirun`` in a job of Slurm reads from them how many ranks a node takes, and starts its daemons by srun. A program
    that is a launcher itself (``none``) finds what a script does whose job was asked for one task for each rank.
    """
    found = {name: value for name, value in environ.items() if not _is_any(name, _OF_THE_STEP)}
    is_slurm = "SLURM_JOB_ID" in environ
    if is_slurm and size.nodes > 1:  # on one node the agent is in no step
        found = {name: value for name, value in found.items() if not name.startswith("SLURM_MEM_PER_")} | _BESIDE
    if is_slurm and start.launcher != "srun":
        per_node = str(size.each) if size.nodes == 1 else f"{size.each}(x{size.nodes})"
        found |= {
            "SLURM_NTASKS": str(size.count),
            "SLURM_NPROCS": str(size.count),
            "SLURM_NTASKS_PER_NODE": str(size.each),
            "SLURM_TASKS_PER_NODE": per_node,
        }
    if is_slurm and start.launcher == "none" and size.cpus is not None:
        found["SLURM_CPUS_PER_TASK"] = str(size.cpus)
    if start.launcher == "pbsdsh":
        found[REACH] = "pbsdsh"
    return found


def _srun(start: MpiStart, size: Size) -> list[str]:
    pmi = [] if start.pmi is None else [f"--mpi={start.pmi}"]
    cpus = [] if size.cpus is None else [f"--cpus-per-task={size.cpus}"]
    return [
        *("srun", "--overlap", *pmi, f"--nodes={size.nodes}", f"--ntasks={size.count}"),
        *(f"--ntasks-per-node={size.each}", *cpus, "--distribution=block"),
        *("--kill-on-bad-exit=1", "--export=ALL"),
    ]


def _open_mpi(
    program: str, size: Size, environ: Mapping[str, str], hosts: Path | None, *, is_reached: bool
) -> list[str]:
    """Return Open MPI's words; they are those of versions 4 and 5 (man mpirun).

    Nothing is bound to a core: a process with threads would have one for all of them. Variables reach other nodes only
    by name (``-x``).
    """
    names = sorted(name for name in environ if _NAME.fullmatch(name) and not _is_any(name, _OF_A_NODE))
    reach = [sys.executable, "-P", "-m", "hpcml.agent.mpi.reach"]
    where = [] if hosts is None else ["--hostfile", str(hosts)]
    if hosts is not None and is_reached:
        where += ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", " ".join(reach)]
    by_node = f"ppr:{size.each}:node" if size.nodes > 1 else "slot:OVERSUBSCRIBE"
    return [
        *(program, "-np", str(size.count), *where, "--map-by", by_node, "--bind-to", "none"),
        *(word for name in names for word in ("-x", name)),
    ]


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def rank_command(source: str, attempt: int) -> list[str]:
    """Return what each rank is started by: *source* is the run's manifest."""
    return [sys.executable, "-P", "-m", "hpcml.agent.main", "--rank", source, str(attempt)]
