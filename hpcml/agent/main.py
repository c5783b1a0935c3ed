"""What happens on the node, in order: claim an attempt, tell the facts, run the workload, tell how it ended.

``python -m hpcml.agent.main RUN_DIR`` needs run.json and nothing else: no Hydra, no database, no network.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from hpcml.agent import gpu, host
from hpcml.agent.stdout_metrics import StdoutScanner
from hpcml.agent.supervise import Inbox, Outcome, Rank, supervise
from hpcml.errors import HpcmlError
from hpcml.manifest import Manifest, read_manifest
from hpcml.rundir import RunDir
from hpcml.states import State
from hpcml_client.journal import JournalWriter

_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the agent on the run directory given as the only word; return the exit status of the workload."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        sys.stderr.write("usage: python -m hpcml.agent.main RUN_DIR\n")
        return _USAGE
    run_dir = RunDir(Path(words[0]).absolute())
    try:
        manifest = read_manifest(run_dir.manifest)
        attempt = _claim_attempt(run_dir)
    except (HpcmlError, OSError) as error:
        sys.stderr.write(f"hpcml agent: {error}\n")
        return _USAGE
    inbox = Inbox()
    with inbox.listening():
        return _attempt(run_dir, manifest, attempt, inbox).exit_status


def _claim_attempt(run_dir: RunDir) -> int:
    """Return the first number whose log file did not exist; creating it makes the number ours."""
    attempt = 0
    run_dir.agent_log(0).parent.mkdir(exist_ok=True)
    while True:
        try:
            with run_dir.agent_log(attempt).open("x"):
                return attempt
        except FileExistsError:
            attempt += 1


def _attempt(run_dir: RunDir, manifest: Manifest, attempt: int, inbox: Inbox) -> Outcome:
    journal = JournalWriter.open(str(run_dir.journals), run=manifest.uid, attempt=attempt, writer="agent")

    def tell(name: str, **details: object) -> None:
        journal.event(name, details)

    tell(
        "attempt_started",
        pid=os.getpid(),
        create_time=psutil.Process().create_time(),
        hostname=socket.gethostname(),
        walltime_s=manifest.plan.walltime_s,
    )
    outcome = _cancelled() if run_dir.cancel_mark.exists() else _work(run_dir, manifest, attempt, inbox, journal, tell)
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
    return outcome


def _work(
    run_dir: RunDir, manifest: Manifest, attempt: int, inbox: Inbox, journal: JournalWriter, tell: Callable[..., None]
) -> Outcome:
    visible = gpu.visible_gpus(gpu.list_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    tell("facts", **host.facts(visible if manifest.plan.device == "cuda" else []))
    scanner = StdoutScanner(path=run_dir.stdout(attempt, 0), rules=manifest.run.workload.metrics)

    def pick(*, to_the_end: bool = False) -> None:
        for found in scanner.scan(to_the_end=to_the_end):
            journal.metrics(found.step, {found.name: found.value})

    outcome = supervise(
        _ranks(run_dir, manifest, attempt, os.environ),
        inbox,
        walltime_s=manifest.plan.walltime_s,
        grace_s=manifest.plan.stop_grace_s,
        tell=tell,
        on_tick=pick,
    )
    if run_dir.stdout(attempt, 0).exists():
        pick(to_the_end=True)
    return outcome


def _cancelled(outcome: Outcome | None = None) -> Outcome:
    return Outcome(
        state=State.CANCELLED,
        exit_code=outcome.exit_code if outcome else None,
        signal=outcome.signal if outcome else None,
        reason="cancelled" if outcome else "cancelled before it started",
        wall_s=outcome.wall_s if outcome else 0.0,
    )


def _ranks(run_dir: RunDir, manifest: Manifest, attempt: int, environ: Mapping[str, str]) -> list[Rank]:
    plan = manifest.plan
    base = {name: value for name, value in environ.items() if name not in plan.environment}
    base |= {name: value for name, value in plan.environment.items() if value is not None}
    base |= {
        "HPCML_RUN_ID": manifest.uid,
        "HPCML_RUN_DIR": str(run_dir.path),
        "HPCML_CONFIG": str(run_dir.manifest),
        "HPCML_ATTEMPT": str(attempt),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(run_dir.client_path), environ.get("PYTHONPATH")])),
        "WORLD_SIZE": str(plan.processes_per_node),
    }
    if plan.processes_per_node > 1:
        base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return [
        Rank(
            argv=plan.argv,
            environ={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=Path(plan.cwd),
            stdout=run_dir.stdout(attempt, rank),
            stderr=run_dir.stderr(attempt, rank),
        )
        for rank in range(plan.processes_per_node)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
