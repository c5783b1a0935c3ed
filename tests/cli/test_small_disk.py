"""A disk that is full, a real one: what is lost is said, and all goes on once there is room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.command_line import Hpcml, program

# Reports three steps, fills the disk, reports more, and ends once it may. With "its end" the agent, which picks
# metrics from what is printed, has no room for how it ended either: the last page of its journal is nearly full.
FILLS = """
import glob, os, sys, time
from hpcml_client import connect
filled, may_end, whose = sys.argv[1:]
run_dir = os.environ["HPCML_RUN_DIR"]
def left():
    (journal,) = glob.glob(run_dir + "/journal/*-agent.jsonl")
    return -os.path.getsize(journal) % 4096
with connect() as run:
    for step in range(3):
        run.metric("val_accuracy", step / 60, step=step)
    while whose == "agent" and not 0 < left() < 200:
        print("".join(f"printed={n}\\n" for n in range(max(1, left() // 120))), flush=True)
        time.sleep(1.5)
    with open(run_dir + "/fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)): pass
        except OSError: pass
    open(filled, "w").close()
    for step in range(3, 300):
        run.metric("val_accuracy", step / 60, step=step)
    while not os.path.exists(may_end): time.sleep(0.1)
"""
# Fills the disk where its seed is 0, but for what is left of a page in which its agent writes
FILLS_AND_ENDS = """
import os, sys
if sys.argv[1] == "0":
    with open(os.environ["HPCML_RUN_DIR"] + "/fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)): pass
        except OSError: pass
"""
QUESTIONS = (["runs"], ["status"], ["query", "SELECT state FROM runs"])


@pytest.fixture
def small(hpcml_environ: dict[str, str], tmp_path: Path) -> Iterator[Hpcml]:
    """A user whose HPCML_HOME is on a disk of three megabytes."""
    disk, cwd = tmp_path / "disk", tmp_path / "project"
    disk.mkdir()
    cwd.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk is mounted by root, where the system lets it")
    yield Hpcml(environ={**hpcml_environ, "HPCML_HOME": str(disk / "hpcml")}, cwd=cwd)
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def start_filling(hpcml: Hpcml, whose: str = "program") -> str:
    """Start a run that fills the disk; return its uid once it has."""
    words = [str(hpcml.cwd / name) for name in ("filled", "may_end")]
    printed = ["workload.metrics=[{name: printed, pattern: '^printed=(?P<value>\\d+)'}]"] if whose == "agent" else []
    done = hpcml("run", "--detach", program(FILLS, *words, whose), *printed)
    assert done.returncode == 0, done.stderr
    until((hpcml.cwd / "filled").exists)
    assert shutil.disk_usage(hpcml.home).free == 0
    (run_dir,) = hpcml.home.glob("runs/*/*/")
    return run_dir.name


def until(holds: Callable[[], bool], timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.3)


def the_run(hpcml: Hpcml) -> dict[str, Any]:
    (run,) = hpcml.runs()
    return run


def fill_up(hpcml: Hpcml) -> None:
    (run_dir,) = hpcml.home.glob("runs/*/*/")
    with (run_dir / "fill").open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def make_room(hpcml: Hpcml) -> None:
    for fill in hpcml.home.glob("runs/*/*/fill"):
        fill.unlink()


def agent_of(hpcml: Hpcml) -> int:
    """Return the process id of the agent of the only run."""
    (journal,) = hpcml.home.glob("runs/*/*/journal/*-agent.jsonl")
    return int(json.loads(journal.read_text().splitlines()[1])["d"]["pid"])


def test_on_a_full_disk_a_question_ends_in_one_line_and_a_run_that_lost_its_last_values_is_marked(small: Hpcml) -> None:
    uid = start_filling(small)
    agent = agent_of(small)

    for words in QUESTIONS:
        asked = small(*words)
        assert (asked.returncode, len(asked.stderr.splitlines())) == (2, 1), (words, asked.stderr)
        assert "no room is left for the store" in asked.stderr
    (small.cwd / "may_end").touch()
    until(lambda: not psutil.pid_exists(agent))
    make_room(small)

    for words in (*QUESTIONS, ["show", uid], ["logs", uid], ["sync"], ["run", program("pass"), "seed=7"]):
        asked = small(*words)
        assert (asked.returncode, "is full" in asked.stderr) == (0, False), (words, asked.stderr)
    run = next(run for run in small.runs() if run["uid"] == uid)
    assert (run["state"], run["metrics"]["val_accuracy"]["last"] < 299 / 60) == ("COMPLETED", True)
    assert "what rank 0 reported last may be missing" in run["incomplete"]


def test_an_end_that_there_is_no_room_for_is_written_once_there_is(small: Hpcml) -> None:
    start_filling(small, whose="agent")

    (small.cwd / "may_end").touch()
    time.sleep(8)  # the agent ends after its program, and waits for room
    make_room(small)

    until(lambda: the_run(small)["state"] != "RUNNING")
    assert the_run(small)["state"] == "COMPLETED"
    assert "may be missing" in the_run(small)["incomplete"]


def test_an_end_that_there_never_was_room_for_is_no_success(small: Hpcml) -> None:
    uid = start_filling(small, whose="agent")
    agent = agent_of(small)
    (small.cwd / "may_end").touch()
    until(lambda: not psutil.pid_exists(agent))
    make_room(small)

    asked = small("status")
    run = the_run(small)

    assert asked.returncode == 0, asked.stderr
    assert (run["uid"], run["state"]) == (uid, "LOST")
    assert small("retry", "-n", uid).returncode == 0


def test_a_run_that_waits_while_the_disk_is_full_starts_once_there_is_room(small: Hpcml) -> None:
    """No job can be started then, since that it is has to be written down; none of them has failed for that."""
    fills = program(FILLS_AND_ENDS, "{seed}")

    done = small("run", "-m", "--detach", fills, "seed=range(3)", "resources.array_parallelism=1")
    assert done.returncode == 0, done.stderr
    until(lambda: shutil.disk_usage(small.home).free == 0)
    time.sleep(8.0)  # the first has ended by then, and the others cannot start
    make_room(small)
    waited = small("wait")

    assert (waited.returncode, [run["state"] for run in small.runs()]) == (0, ["COMPLETED"] * 3), waited.stderr


def test_code_for_which_the_disk_has_no_room_is_refused_with_the_folder_that_is_full(small: Hpcml) -> None:
    (small.cwd / "train.py").write_text("print('never')")
    (small.cwd / "weights.bin").write_bytes(bytes(6_000_000))

    done = small("run", "--", "python", "train.py")

    assert done.returncode == 2
    assert f"the code cannot be kept: {small.home / 'code'}: No space left on device" in done.stderr
    assert small.runs() == []


def test_runs_that_completed_are_counted_though_the_store_has_no_room(small: Hpcml) -> None:
    fills = program(
        """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)): pass
    except OSError: pass
""",
        str(small.home / "fill"),
    )

    done = small("run", fills)

    assert "1 of 1 runs completed" in done.stdout
    assert "no room is left for the store" in done.stderr
    assert done.returncode == 0


def test_what_is_read_of_an_ended_run_is_there_whole_or_not_at_all(small: Hpcml) -> None:
    printed = "for n in range(9000): print('step', n, 'loss', 1 / (n + 1))"
    assert small("run", program(printed)).returncode == 0
    rule = "workload.metrics=[{pattern: 'step (?P<step>\\d+) loss (?P<loss>\\S+)'}]"
    uid = str(the_run(small)["uid"])
    (run_dir,) = small.home.glob("runs/*/*/")
    before = sorted(path.name for path in run_dir.rglob("*"))
    fill_up(small)
    with (run_dir / "fill").open("ab") as file:
        file.truncate(file.tell() - (300 << 10))

    failed = small("read", uid, rule)
    make_room(small)

    assert (failed.returncode, "is the disk full?" in failed.stderr) == (1, True), failed.stderr
    assert sorted(path.name for path in run_dir.rglob("*")) == before
    assert small("read", uid, rule).stdout == "1 of 1 runs: 9000 values of loss\n"
