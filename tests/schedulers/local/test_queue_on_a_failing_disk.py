"""A queue of this machine whose file system is away for a moment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.runs.state import read_fold
from hpcml.schedulers.local.jobs import QueuedBatch, QueuedJob, batch_files, new_file, read_batch, write_batch
from hpcml.schedulers.local.runtime import Pool, RuntimeFolder
from tests.cluster.disk.building import build_failing_disk

SERVE = """
import sys
from pathlib import Path
from hpcml.schedulers.local.queue import serve
from hpcml.schedulers.local.runtime import RuntimeFolder
serve(sys.argv[1], RuntimeFolder(Path(sys.argv[1])).try_lock())
"""


def test_a_queue_outlives_a_moment_in_which_its_files_cannot_be_seen(tmp_path: Path) -> None:
    _, second = queued(tmp_path)
    away = tmp_path / "away"
    away.touch()

    queue = serve(tmp_path, FAILS_STAT=str(second / "run.json"), FAILS_WHILE=str(away))
    time.sleep(3.0)
    before = queue.poll()
    away.unlink()

    assert before is None
    assert queue.wait(300) == 0
    assert (tmp_path / "executed").read_text() == "a\nb\n"


def test_a_queue_takes_no_run_for_removed_while_its_home_is_away_and_serves_the_others(tmp_path: Path) -> None:
    """A home that is mounted again, or renamed: what waits is not seen, and neither is the folder of all runs."""
    queued(tmp_path, program="sleep 2")
    queue = serve(tmp_path)
    wait_for((tmp_path / "executed").exists)

    (tmp_path / "disk").rename(tmp_path / "away")
    queued(tmp_path, home="other", names=("c", "d"))
    time.sleep(4.0)  # the first ends meanwhile
    before, meanwhile = queue.poll(), (tmp_path / "executed").read_text()
    (tmp_path / "away").rename(tmp_path / "disk")

    assert (queue.wait(300), before) == (0, None)
    assert meanwhile == "a\nc\nd\n"
    assert (tmp_path / "executed").read_text() == "a\nc\nd\nb\n"


def test_what_hides_the_files_of_one_run_holds_up_no_other(tmp_path: Path) -> None:
    first, _ = queued(tmp_path)
    away = tmp_path / "away"
    away.touch()

    queue = serve(tmp_path, FAILS_STAT=str(first / "run.json"), FAILS_WHILE=str(away))
    wait_for((tmp_path / "executed").exists)
    meanwhile = (tmp_path / "executed").read_text()
    away.unlink()

    assert meanwhile == "b\n"
    assert queue.wait(300) == 0
    assert (tmp_path / "executed").read_text() == "b\na\n"


def test_a_run_whose_files_are_hidden_when_it_is_started_waits_behind_the_others(tmp_path: Path) -> None:
    first, _ = queued(tmp_path)
    away = tmp_path / "away"
    away.touch()

    queue = serve(tmp_path, FAILS_OPEN=str(first / "queue.log"), FAILS_WHILE=str(away))
    wait_for((tmp_path / "executed").exists)
    before, meanwhile = queue.poll(), (tmp_path / "executed").read_text()
    away.unlink()

    assert (before, meanwhile) == (None, "b\n")
    assert queue.wait(300) == 0
    assert (tmp_path / "executed").read_text() == "b\na\n"


def test_a_queue_that_fails_by_itself_says_so_in_the_runs_that_wait_and_is_not_started_again(tmp_path: Path) -> None:
    runs = queued(tmp_path)
    (path,) = batch_files(tmp_path / "disk" / "home" / "submissions")
    write_batch(path, replace(read_batch(path), environ={"DAMAGED": "\0"}))
    for run in runs:
        (run / "journal").mkdir()

    ended = serve(tmp_path).wait(60)

    assert ended != 0
    assert batch_files(tmp_path / "disk" / "home" / "submissions") == []
    said = [read_fold(RunDir(run)) for run in runs]
    assert {one.state for one in said} == {State.FAILED}
    assert str(said[0].reason).startswith(
        "it was not started: the queue of this machine failed: ValueError: embedded null byte (see "
    )


def test_a_queue_ends_with_the_home_that_was_removed(tmp_path: Path) -> None:
    queued(tmp_path, program="sleep 2")
    queue = serve(tmp_path)
    wait_for((tmp_path / "executed").exists)

    shutil.rmtree(tmp_path / "disk" / "home")

    assert queue.wait(60) == 0
    assert (tmp_path / "executed").read_text() == "a\n"
    assert RuntimeFolder(tmp_path / "runtime").homes() == []


def queued(
    tmp_path: Path, *, program: str = "", home: str = "disk/home", names: tuple[str, str] = ("a", "b")
) -> tuple[Path, Path]:
    """Leave a batch of two runs, one after the other, for the queue; return their directories.

    Each writes its name into `executed`, and goes on with *program*.
    """
    first, second = (tmp_path / home / "runs" / "default" / name for name in names)
    submissions, runtime = tmp_path / home / "submissions", RuntimeFolder(tmp_path / "runtime")
    for place in (first, second, submissions / "token"):
        place.mkdir(parents=True, mode=0o700)
    for run in (first, second):
        (run / "run.json").touch()
        (run / "logs").mkdir()
        begins = f"touch {run}/logs/0-agent.log; echo {run.name} >> {tmp_path}/executed"
        (run / "job.sh").write_text(f"{begins}\n{program}")
    jobs = [
        QueuedJob(
            sources=[str(run / "run.json")],
            command=["/bin/bash", str(run / "job.sh")],
            cores=1,
            gpus=0,
            dependency=None,
            begun={},
        )
        for run in (first, second)
    ]
    runtime.make()
    runtime.add_home(submissions)
    write_batch(
        new_file(submissions, "token"),
        QueuedBatch(
            jobs=jobs,
            max_parallel=1,
            pool=Pool(cores=1, gpus=[]),
            runtime=str(runtime.path),
            environ=dict(os.environ),
        ),
    )
    return first, second


def serve(tmp_path: Path, **fails: str) -> subprocess.Popen[bytes]:
    """Start the queue on a disk that *fails* so."""
    environ = {**os.environ, **({"LD_PRELOAD": str(build_failing_disk(tmp_path)), **fails} if fails else {})}
    words = [sys.executable, "-c", SERVE, str(tmp_path / "runtime")]
    return subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL)


def wait_for(holds: Callable[[], bool], timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
