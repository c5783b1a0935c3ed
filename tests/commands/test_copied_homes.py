"""A home that was copied while its runs were at work: what the copy tells of is left to its original."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml, program
from tests.cli.kills import processes_of

# It notes its start, and fails once there is a file "go"
FAILS = program(
    "import os, pathlib, sys, time\n"
    "open('starts-' + os.environ['HPCML_RUN_ID'], 'a').write('x')\n"
    "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
    "sys.exit(3)"
)


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ={**hpcml_environ, "HPCML_HOME": str(tmp_path / "home" / "my home")}, cwd=cwd)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def copied(hpcml: Hpcml) -> Hpcml:
    """Submit two runs, of which one is at work and one waits, and return a user of a copy of their home."""
    done = hpcml("run", "-m", FAILS, "seed=1,2", "cluster.max_parallel=1", "--detach")
    assert done.returncode == 0, done.stderr
    until(lambda: bool(list(hpcml.cwd.glob("starts-*"))))
    copy = hpcml.home.with_name("copy of it")
    shutil.copytree(hpcml.home, copy, symlinks=True)
    copy.chmod(0o700)
    return Hpcml(environ={**hpcml.environ, "HPCML_HOME": str(copy)}, cwd=hpcml.cwd)


def starts(hpcml: Hpcml) -> list[str]:
    return [path.read_text() for path in hpcml.cwd.glob("starts-*")]


def test_runs_of_a_copied_home_are_not_executed_again_by_whoever_looks_at_the_copy(hpcml: Hpcml) -> None:
    copy = copied(hpcml)
    (hpcml.cwd / "go").touch()
    assert hpcml("wait").returncode in {0, 1}  # 0: both had failed before it looked
    until(lambda: not any((hpcml.home / "submissions" / "queues").iterdir()))

    looked, repaired = copy("status"), copy("sync")
    time.sleep(2.0)

    assert "hpcml sync starts it again" in looked.stderr
    assert f"its runs were made in {hpcml.home}, which their plans name" in repaired.stdout
    assert starts(hpcml) == ["x", "x"]
    assert {run["state"] for run in hpcml.runs()} == {"FAILED"}
    assert {run["state"] for run in copy.runs()} == {"LOST"}


def test_what_is_cancelled_in_a_copied_home_does_not_end_the_run_that_it_is_a_copy_of(hpcml: Hpcml) -> None:
    copy = copied(hpcml)
    running, waiting = (run["uid"] for run in hpcml.runs())

    for uid in (running, waiting):
        refused = copy("cancel", "-y", uid)
        assert refused.returncode == 2
        assert f"run {uid} is a copy, whose job is that of: hpcml --home '{hpcml.home}'\n" in refused.stderr

    assert [run["state"] for run in hpcml.runs()] == ["RUNNING", "PENDING"]
    assert hpcml("cancel", "-y", running, waiting).returncode == 0


def test_a_copied_run_is_tried_again_where_it_was_made(hpcml: Hpcml) -> None:
    (hpcml.cwd / "go").touch()
    assert hpcml("run", FAILS).returncode == 1
    (run,) = hpcml.runs()
    copy = hpcml.home.with_name("copy")
    shutil.copytree(hpcml.home, copy, symlinks=True)
    copy.chmod(0o700)
    elsewhere = Hpcml(environ={**hpcml.environ, "HPCML_HOME": str(copy)}, cwd=hpcml.cwd)

    in_copy = elsewhere("retry", "-n", "--cause", "program", run["uid"])

    assert in_copy.returncode == 2
    assert f"run {run['uid']} is a copy: try it again by hpcml --home '{hpcml.home}'" in in_copy.stderr


def test_a_home_that_was_moved_while_its_queue_was_dead_starts_nothing_where_it_was(
    hpcml: Hpcml,
) -> None:
    done = hpcml("run", "-m", FAILS, "seed=1,2", "cluster.max_parallel=1", "--detach")
    assert done.returncode == 0, done.stderr
    until(lambda: bool(list(hpcml.cwd.glob("starts-*"))))
    (queue,) = [pid for pid, does in processes_of(hpcml.home).items() if does == "queue"]
    os.kill(queue, signal.SIGKILL)
    (hpcml.cwd / "go").touch()
    until(lambda: {run["state"] for run in hpcml.runs()} >= {"FAILED"})
    moved, another = hpcml.home.with_name("moved"), hpcml.home
    hpcml.home.rename(moved)
    another.mkdir(mode=0o700)

    looked = Hpcml(environ={**hpcml.environ, "HPCML_HOME": str(moved)}, cwd=hpcml.cwd)("sync")

    assert looked.returncode == 0
    assert f"its runs were made in {another}, which their plans name" in looked.stdout
    assert list(another.iterdir()) == []
