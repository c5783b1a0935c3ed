"""What lives in one PID namespace, looked at from another one of the same host name, as from a container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcml.commands.submit.submission import Phase, Submission, open_submission, this_host
from hpcml.runs.layout import RunDir
from hpcml.runs.liveness import Liveness, ProcessIdentity, liveness_of, pid_here
from hpcml.runs.lock import Lock, try_lock
from tests.cli.command_line import HPCML, Hpcml
from tests.runs.namespaces import inside

PATIENCE_S = 300.0


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Iterator[Hpcml]:
    cwd = tmp_path / "project"
    cwd.mkdir()
    user = Hpcml(environ=hpcml_environ, cwd=cwd)
    yield user
    for path in user.home.glob("runs/*/*/journal/*.jsonl"):
        for agent in agents(path.parent.parent):
            number = pid_here(agent)
            if number is not None:
                os.kill(number, signal.SIGKILL)


def from_inside(hpcml: Hpcml, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*inside(), *HPCML, *words],
        env=hpcml.environ,
        cwd=hpcml.cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def states(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(run["state"] for run in json.loads(done.stdout))


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for file in RunDir(run_dir).journal_files() for line in file.read_text().splitlines()]
    return [line["d"] for line in lines if line.get("n") == name]


def agents(run_dir: Path) -> list[ProcessIdentity]:
    found = [ProcessIdentity.from_details(details) for details in events(run_dir, "attempt_started")]
    return [agent for agent in found if agent is not None]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def started(hpcml: Hpcml, *words: str) -> list[Path]:
    done = hpcml("run", "workload.command=sleep 600", "--detach", *words)
    assert done.returncode == 0, done.stderr
    until(lambda: "RUNNING" in {run["state"] for run in hpcml.runs()})
    return [Path(run["path"]) for run in hpcml.runs()]


def test_a_live_run_is_neither_lost_nor_removed_nor_retried_and_can_be_cancelled(hpcml: Hpcml) -> None:
    (path,) = started(hpcml)

    assert states(from_inside(hpcml, "runs", "--json")) == ["RUNNING"]
    assert from_inside(hpcml, "sync").returncode == 0
    assert from_inside(hpcml, "rm", path.name, "--yes").returncode != 0
    from_inside(hpcml, "retry", path.name)
    assert states(hpcml("runs", "--json")) == ["RUNNING"]
    assert events(path, "lost") == []
    assert len(events(path, "submitted")) == 1

    assert from_inside(hpcml, "cancel", "-y", path.name).returncode == 0
    until(lambda: states(hpcml("runs", "--json")) == ["CANCELLED"])
    (agent,) = agents(path)
    until(lambda: liveness_of(agent) is Liveness.DEAD)


def test_a_run_that_waits_in_a_live_queue_is_not_lost(hpcml: Hpcml) -> None:
    paths = started(hpcml, "-m", "seed=1,2", "cluster.max_parallel=1")

    assert states(from_inside(hpcml, "runs", "--json")) == ["PENDING", "RUNNING"]

    assert [events(path, "lost") for path in paths] == [[], []]
    assert hpcml("cancel", "-y", *(path.name for path in paths)).returncode == 0


def test_a_live_submission_is_left_to_its_owner(hpcml: Hpcml) -> None:
    folder = hpcml.home / "submissions" / "open"
    opened = open_submission(folder, Submission(submission="s", host=this_host(), batches=[]), Phase.PLANNING)

    done = from_inside(hpcml, "sync")

    assert done.returncode == 0, done.stderr
    opened.touch()  # raises where another has taken it over
    opened.begin_submitting()
    assert list(folder.iterdir()) == [opened.path]


def test_the_lock_of_a_live_process_is_not_taken(tmp_path: Path) -> None:
    lock = try_lock(tmp_path, "x")
    assert isinstance(lock, Lock)
    code = (
        "from pathlib import Path; from hpcml.runs.lock import clear_dead, try_lock; "
        f"folder = Path({str(tmp_path)!r}); clear_dead(folder); print(type(try_lock(folder, 'x')).__name__)"
    )

    done = subprocess.run([*inside(), sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["Owner"]
    assert lock.is_ours
