"""What a user of a PBS site types and sees; for tests of whole commands."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.command_line import Hpcml, program
from tests.cluster.pbs.double import PbsDouble

SALOMON = ["cluster=salomon", "resources.walltime=00:10:00", "resources.account=OPEN-0-0"]
SLEEPS = program("import time; time.sleep(60)")


def user_of(pbs: PbsDouble, folder: Path) -> Hpcml:
    """Return a user with a project in *folder* who may ask PBS as often as they like."""
    cwd = folder / "project"
    cwd.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "XDG_", "SUBMITIT_"))}
    home = folder / "home"
    environ = {**kept, "HOME": str(home), "HPCML_HOME": str(home / "hpcml"), "PATH": f"{pbs.bin}:{kept['PATH']}"}
    return Hpcml(environ={**environ, "HPCML_POLL_INTERVAL_S": "0"}, cwd=cwd)


def submit(hpcml: Hpcml, *words: str) -> list[dict[str, Any]]:
    done = hpcml("run", *SALOMON, *words, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def status(hpcml: Hpcml, *words: str, **variables: str) -> list[dict[str, Any]]:
    done = hpcml("status", "--json", *words, **variables)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def until(
    hpcml: Hpcml, holds: Callable[[list[dict[str, Any]]], bool], *, timeout_s: float = 300
) -> list[dict[str, Any]]:
    """Ask PBS again and again until *holds* of all runs."""
    deadline = time.monotonic() + timeout_s
    while True:
        status(hpcml)
        if holds(runs := hpcml.runs()):
            return runs
        assert time.monotonic() < deadline, [(run["state"], run["attempt"], run["reason"]) for run in runs]
        time.sleep(0.3)


def until_running(hpcml: Hpcml) -> list[dict[str, Any]]:
    return until(hpcml, lambda runs: all(run["state"] == "RUNNING" for run in runs))


def age(run: dict[str, Any], seconds: float = 3600) -> None:
    """Make the run's journals, and the signs of life of its agents, as old as if there had been none for so long."""
    age_journals(run, seconds)
    past = time.time() - seconds
    for log in Path(run["path"]).glob("logs/*-agent*.log"):
        os.utime(log, (past, past))


def age_journals(run: dict[str, Any], seconds: float = 3600) -> None:
    """Make the run's journals as old as if nothing had been written for so long."""
    past = time.time() - seconds
    for file in Path(run["path"]).glob("journal/*.jsonl"):
        os.utime(file, (past, past))


@contextmanager
def stopped_agent(run: dict[str, Any]) -> Iterator[None]:
    """Stop the process of the run's only agent, which so gives no sign of life; it goes on afterwards."""
    lines = [line for file in Path(run["path"]).glob("journal/*.jsonl") for line in file.read_text().splitlines()]
    (pid,) = {said["d"]["pid"] for said in map(json.loads, lines) if said.get("n") == "attempt_started"}
    os.kill(int(pid), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(int(pid), signal.SIGCONT)
