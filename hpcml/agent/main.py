"""What happens on the node, in order: claim an attempt, tell the facts, run the workload, tell how it ended.

``python -m hpcml.agent.main RUN_DIR`` needs run.json and nothing else: no Hydra, no database, no network. In a job
array, ``--batch FILE`` stands for the run directory that FILE lists for this array index.
"""

from __future__ import annotations

import os
import socket
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hpcml.agent import gpu, host
from hpcml.agent.stdout_metrics import StdoutScanner
from hpcml.agent.supervise import Inbox, Outcome, Rank, supervise
from hpcml.cluster import SchedulerName
from hpcml.errors import HpcmlError
from hpcml.manifest import Manifest, read_manifest, read_raw
from hpcml.resources import client_dir
from hpcml.rundir import RunDir
from hpcml.states import State
from hpcml_client.journal import JournalWriter

_USAGE = 2
_FIRST_PORT, _PORTS = 20_000, 10_000  # below the range from which Linux takes ports by itself


def main(arguments: list[str] | None = None) -> int:
    """Run the agent on the run directory given as the only word; return the exit status of the workload."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        run_dir = _run_dir(words, os.environ)
        manifest = read_manifest(run_dir.manifest)
        node = _node(os.environ)
        attempt = _claim_attempt(run_dir, node)
    except (HpcmlError, OSError) as error:
        sys.stderr.write(f"hpcml agent: {error}\n")
        return _USAGE
    inbox = Inbox()
    with inbox.listening():
        return _attempt(run_dir, manifest, attempt, node, inbox).exit_status


def _run_dir(words: list[str], environ: Mapping[str, str]) -> RunDir:
    if len(words) == 1:
        return RunDir(Path(words[0]).absolute())
    if len(words) != 2 or words[0] != "--batch":
        raise HpcmlError("usage: python -m hpcml.agent.main RUN_DIR | --batch FILE")
    index = _array_index(environ)
    run_dirs = read_raw(Path(words[1])).get("run_dirs")
    if not isinstance(run_dirs, list) or index is None or not 0 <= int(index) < len(run_dirs):
        raise HpcmlError(f"{words[1]} lists no run for array index {index}")
    return RunDir(Path(run_dirs[int(index)]))


def _claim_attempt(run_dir: RunDir, node: int) -> int:
    """Return the first number whose log file of this node did not exist; creating it makes the number ours.

    The agents of a job's nodes start once in every attempt each, so that they count alike.
    """
    attempt = 0
    run_dir.agent_log(0, node).parent.mkdir(exist_ok=True)
    while True:
        try:
            with run_dir.agent_log(attempt, node).open("x"):
                return attempt
        except FileExistsError:
            attempt += 1


def _attempt(run_dir: RunDir, manifest: Manifest, attempt: int, node: int, inbox: Inbox) -> Outcome:
    writer = "agent" if node == 0 else f"agent{node}"
    journal = JournalWriter.open(str(run_dir.journals), run=manifest.uid, attempt=attempt, writer=writer)

    def tell(name: str, **details: object) -> None:
        journal.event(name, details)

    tell(
        "attempt_started",
        pid=os.getpid(),
        create_time=psutil.Process().create_time(),
        hostname=socket.gethostname(),
        walltime_s=manifest.plan.walltime_s,
        node=node,
        **_job(manifest, os.environ),
    )
    if run_dir.cancel_mark.exists():
        outcome = _cancelled()
    else:
        outcome = _work(run_dir, manifest, attempt, node, inbox, journal, tell)
    if run_dir.cancel_mark.exists() and outcome.state is State.FAILED:
        outcome = _cancelled(outcome)  # it was killed because somebody wanted that
    tell(
        "attempt_ended",
        state=outcome.state.value,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        wall_s=outcome.wall_s,
    )
    journal.close()
    run_dir.cancel_mark.unlink(missing_ok=True)  # obeyed: whoever submits job.sh again wants it to run
    return outcome


class _Unharmed:
    """Keeps our own trouble away from the workload: it is journalled, once for each kind, and life goes on."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._told: set[str] = set()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the workload must not die of it
            if what not in self._told:
                self._told.add(what)
                self._tell("agent_trouble", what=what, error=repr(error))


def _work(
    run_dir: RunDir,
    manifest: Manifest,
    attempt: int,
    node: int,
    inbox: Inbox,
    journal: JournalWriter,
    tell: Callable[..., None],
) -> Outcome:
    _provide_client(run_dir)
    unharmed = _Unharmed(tell)
    with unharmed("facts"):
        visible = gpu.visible_gpus(gpu.list_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        tell("facts", **host.facts(visible if manifest.plan.device == "cuda" else []))
    ranks = _ranks(run_dir, manifest, attempt, node, os.environ)
    scanner = StdoutScanner(path=ranks[0].stdout, rules=manifest.run.workload.metrics)

    def pick(*, to_the_end: bool = False) -> None:
        with unharmed("metrics from stdout"):
            for found in scanner.scan(to_the_end=to_the_end):
                journal.metrics(found.step, {found.name: found.value})

    outcome = supervise(
        ranks,
        inbox,
        walltime_s=manifest.plan.stop_after_s,
        grace_s=manifest.plan.stop_grace_s,
        tell=tell,
        on_tick=pick,
    )
    if ranks[0].stdout.exists():
        pick(to_the_end=True)
    return outcome


def _provide_client(run_dir: RunDir) -> None:
    """Give the workload a folder for its PYTHONPATH with `hpcml_client` in it, and nothing else of our environment."""
    run_dir.client_path.mkdir(exist_ok=True)
    link = run_dir.client_path / "hpcml_client"
    with suppress(FileExistsError):  # an attempt before, or the agent of another node
        link.symlink_to(client_dir())


def _cancelled(outcome: Outcome | None = None) -> Outcome:
    return Outcome(
        state=State.CANCELLED,
        exit_code=outcome.exit_code if outcome else None,
        signal=outcome.signal if outcome else None,
        reason="cancelled" if outcome else "cancelled before it started",
        wall_s=outcome.wall_s if outcome else 0.0,
    )


def _node(environ: Mapping[str, str]) -> int:
    """Return which of the job's nodes this is: srun numbers its tasks, our PBS script sets the other."""
    return int(environ.get("HPCML_NODE_RANK") or environ.get("SLURM_NODEID") or 0)


def _ranks(run_dir: RunDir, manifest: Manifest, attempt: int, node: int, environ: Mapping[str, str]) -> list[Rank]:
    plan, nodes = manifest.plan, manifest.run.resources.nodes
    base = {name: value for name, value in environ.items() if name not in plan.environment}
    base |= {name: value for name, value in plan.environment.items() if value is not None}
    base |= {
        "HPCML_RUN_ID": manifest.uid,
        "HPCML_RUN_DIR": str(run_dir.path),
        "HPCML_CONFIG": str(run_dir.manifest),
        "HPCML_ATTEMPT": str(attempt),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(run_dir.client_path), environ.get("PYTHONPATH")])),
        "WORLD_SIZE": str(plan.processes_per_node * nodes),
    }
    if plan.processes_per_node * nodes > 1:
        base |= _rendezvous(manifest.uid, attempt, nodes, environ)
    first = node * plan.processes_per_node
    return [
        Rank(
            argv=plan.argv,
            environ={**base, "RANK": str(first + local), "LOCAL_RANK": str(local)},
            cwd=Path(plan.cwd),
            stdout=run_dir.stdout(attempt, first + local),
            stderr=run_dir.stderr(attempt, first + local),
        )
        for local in range(plan.processes_per_node)
    ]


def _job(manifest: Manifest, environ: Mapping[str, str]) -> dict[str, str | int | None]:
    """Return the scheduler's name for this job: a run may be submitted again by hand, as another one."""
    if manifest.run.cluster.scheduler is SchedulerName.local:  # perhaps inside somebody's interactive job
        return {"job_id": None, "array_index": None}
    array_id = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("PBS_ARRAY_ID")
    if array_id:
        return {"job_id": array_id, "array_index": int(_array_index(environ) or 0)}
    return {"job_id": environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID"), "array_index": None}


def _array_index(environ: Mapping[str, str]) -> str | None:
    return environ.get("SLURM_ARRAY_TASK_ID") or environ.get("PBS_ARRAY_INDEX")


def _rendezvous(uid: str, attempt: int, nodes: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return where the ranks meet: a free port on one node; on several, one that all compute alike."""
    if nodes == 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    port = _FIRST_PORT + zlib.crc32(f"{uid}/{attempt}".encode()) % _PORTS
    return {"MASTER_ADDR": environ.get("HPCML_MASTER_ADDR", "127.0.0.1"), "MASTER_PORT": str(port)}


if __name__ == "__main__":
    sys.exit(main())
