"""The agent as a job starts it, and what it then has written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcml.runs.journal import Event, read_journal
from hpcml.runs.layout import RunDir

LEAVES_ONCE = "import os, sys; sys.exit(75 if os.environ['HPCML_ATTEMPT'] == '0' else 0)"
LEAVES = "raise SystemExit(75)"
ON_SLURM = ("cluster.scheduler=slurm", "cluster.name=testslurm")
WAITS = "import os, time; open(os.environ['HPCML_RUN_DIR'] + '/began', 'w').close(); time.sleep(60)"
COUNTS = "import os; open('ran', 'a').write(os.environ['HPCML_RUN_ID'] + ' ')"
MakeRun = Callable[..., RunDir]
Requeue = Callable[..., str]  # makes a program that stands where the scheduler is; returns its words
_OF_A_JOB = ("SLURM_", "PBS_", "HPCML_")


def environ(**variables: str) -> dict[str, str]:
    """Return this environment without what a job or a run around these tests has set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_JOB)} | variables


BEGINS = (sys.executable, "-P", "-c", "from hpcml.agent.main import begin; begin()")  # as job scripts start it


def agent(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BEGINS, *words],
        env=environ(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def start_agent(*words: str, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*BEGINS, *words], env=environ(**variables), start_new_session=True)


def agents_of(run_dir: RunDir, nodes: int, **variables: str) -> list[int]:
    """Run the agents of a job on so many nodes to their ends; return their exit statuses."""
    started = [start_agent(str(run_dir.path), SLURM_NODEID=str(node), **variables) for node in range(nodes)]
    return [one.wait(timeout=300) for one in started]


def told_with_attempts(run_dir: RunDir, name: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the events called *name*, in the order of their journals."""
    found = []
    for path in run_dir.journal_files():
        chunk = read_journal(path)
        if chunk.header is None:
            continue  # it is being begun
        number = chunk.header.attempt
        found += [(number, record.details) for record in chunk.records if is_event(record, name)]
    return found


def told(run_dir: RunDir, name: str) -> list[dict[str, Any]]:
    return [details for _, details in told_with_attempts(run_dir, name)]


def is_event(record: object, name: str) -> bool:
    return isinstance(record, Event) and record.name == name


def wait_for(holds: Callable[[], object], what: str, timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"{what}: waited {timeout_s:g} s for it"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def began(run_dir: RunDir) -> bool:
    return (run_dir.path / "began").exists()
