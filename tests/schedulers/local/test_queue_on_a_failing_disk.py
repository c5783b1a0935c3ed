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
from hpcml.runs.cancellation import mark_cancelled
from hpcml.runs.layout import RunDir, queues_of
from hpcml.runs.lock import owners
from hpcml.runs.state import read_fold
from hpcml.schedulers.local.queue import TICKET, LocalBatch, Queued, read_batch, write_batch
from hpcml.schedulers.local.slots import Need, Pool
from tests.cluster.disk.building import build_failing_disk

DRAIN = "import sys; from hpcml.schedulers.local.queue import drain; drain(sys.argv[1])"


def test_a_queue_outlives_a_moment_in_which_its_files_cannot_be_seen(tmp_path: Path) -> None:
    (_, second), folder = queued(tmp_path)
    away = tmp_path / "away"
    away.touch()

    queue = drain(folder, tmp_path, FAILS_STAT=str(second / "run.json"), FAILS_WHILE=str(away))
    time.sleep(3.0)
    before = queue.poll()
    away.unlink()

    assert before is None
    assert queue.wait(300) == 0
    assert (tmp_path / "executed").read_text() == "a\nb\n"


def test_a_queue_whose_runs_wait_outlives_a_moment_in_which_its_ticket_cannot_be_read(tmp_path: Path) -> None:
    (_, second), folder = queued(tmp_path, dependency="afterok:a")
    away = tmp_path / "away"

    queue = drain(folder, tmp_path, FAILS_OPEN=str(folder / TICKET), FAILS_WHILE=str(away))
    wait_for((tmp_path / "executed").exists)
    away.touch()
    time.sleep(3.0)
    before = queue.poll()
    mark_cancelled(RunDir(second))

    assert before is None
    assert queue.wait(300) == 0


def test_a_queue_takes_no_run_for_removed_while_its_home_is_away(tmp_path: Path) -> None:
    """A home that is mounted again, or renamed: what waits is not seen, and neither is the folder of all runs."""
    _, folder = queued(tmp_path, program="sleep 2")
    home = tmp_path / "home"
    queue = subprocess.Popen([sys.executable, "-c", DRAIN, str(folder)], stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "executed").exists)

    home.rename(tmp_path / "away")
    home.mkdir(mode=0o700)  # the place where it is mounted
    time.sleep(4.0)  # the first ends meanwhile
    before = queue.poll()
    home.rmdir()
    (tmp_path / "away").rename(home)

    _, said = queue.communicate(timeout=300)
    assert (before, queue.returncode) == (None, 0)
    assert (tmp_path / "executed").read_text() == "a\nb\n"
    assert "was not started" not in said


def test_a_queue_that_ends_since_its_files_stay_away_is_started_again_by_who_looks_next(tmp_path: Path) -> None:
    _, folder = queued(tmp_path)
    queues = queues_of(folder.parent)

    ended = drain(folder, tmp_path, FAILS_OPEN=str(folder / "job-0.json")).wait(60)
    left = owners(queues)[folder.name]
    again = drain(folder, tmp_path).wait(300)

    assert (ended != 0, left.is_gone) == (True, True)
    assert (again, owners(queues)) == (0, {})
    assert (tmp_path / "executed").read_text() == "a\nb\n"


def test_what_hides_the_files_of_one_run_holds_up_no_other(tmp_path: Path) -> None:
    (first, _), folder = queued(tmp_path)
    away = tmp_path / "away"
    away.touch()

    queue = drain(folder, tmp_path, FAILS_STAT=str(first / "run.json"), FAILS_WHILE=str(away))
    wait_for((tmp_path / "executed").exists)
    meanwhile = (tmp_path / "executed").read_text()
    away.unlink()

    assert meanwhile == "b\n"
    assert queue.wait(300) == 0
    assert (tmp_path / "executed").read_text() == "b\na\n"


def test_a_run_whose_files_are_hidden_when_it_is_started_waits_behind_the_others(tmp_path: Path) -> None:
    (first, _), folder = queued(tmp_path)
    away = tmp_path / "away"
    away.touch()

    queue = drain(folder, tmp_path, FAILS_OPEN=str(first / "queue.log"), FAILS_WHILE=str(away))
    wait_for((tmp_path / "executed").exists)
    before, meanwhile = queue.poll(), (tmp_path / "executed").read_text()
    away.unlink()

    assert (before, meanwhile) == (None, "b\n")
    assert queue.wait(300) == 0
    assert (tmp_path / "executed").read_text() == "b\na\n"


def test_a_queue_that_fails_by_itself_says_so_in_the_runs_that_wait_and_is_not_started_again(tmp_path: Path) -> None:
    runs, folder = queued(tmp_path)
    write_batch(folder, replace(read_batch(folder), lock_dir="damaged\0"))
    for run in runs:
        (run / "journal").mkdir()

    ended = drain(folder, tmp_path).wait(60)

    assert ended != 0
    assert owners(queues_of(folder.parent)) == {}
    said = [read_fold(RunDir(run)) for run in runs]
    assert {one.state for one in said} == {State.FAILED}
    assert str(said[0].reason).startswith(
        "it was not started: the queue of this machine failed: ValueError: embedded null byte (see "
    )


def test_a_queue_ends_with_the_home_that_was_removed(tmp_path: Path) -> None:
    _, folder = queued(tmp_path, program="sleep 2")
    queue = subprocess.Popen([sys.executable, "-c", DRAIN, str(folder)], stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "executed").exists)

    shutil.rmtree(tmp_path / "home")
    _, said = queue.communicate(timeout=60)

    assert queue.returncode != 0
    assert "the queue waits for its files" in said
    assert (tmp_path / "executed").read_text() == "a\n"


def queued(tmp_path: Path, *, dependency: str | None = None, program: str = "") -> tuple[list[Path], Path]:
    """Return two runs, of which the second has this *dependency*, and the folder of the batch that they are.

    Each writes its name into `executed`, and goes on with *program*.
    """
    home = tmp_path / "home"
    runs, folder = [home / "runs" / "default" / name for name in ("a", "b")], home / "submissions" / "token"
    for place in (*runs, folder):
        place.mkdir(parents=True, mode=0o700)
    for run in runs:
        (run / "run.json").touch()
        (run / "job.sh").write_text(f"echo {run.name} >> {tmp_path}/executed\n{program}")
    jobs = [
        Queued(
            sources=[str(run / "run.json")],
            script=str(run / "job.sh"),
            need=Need(cores=1, gpus=0),
            dependency=of_run,
        )
        for run, of_run in zip(runs, (None, dependency), strict=True)
    ]
    write_batch(
        folder, LocalBatch(jobs=jobs, lock_dir=str(tmp_path / "locks"), pool=Pool(cores=1, gpus=[]), max_parallel=1)
    )
    return runs, folder


def drain(folder: Path, tmp_path: Path, **fails: str) -> subprocess.Popen[bytes]:
    """Start a queue of the batch in *folder*, on a disk that *fails* so."""
    environ = {**os.environ, "LD_PRELOAD": str(build_failing_disk(tmp_path)), **fails}
    return subprocess.Popen([sys.executable, "-c", DRAIN, str(folder)], env=environ, stderr=subprocess.DEVNULL)


def wait_for(holds: Callable[[], bool], timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
