"""The queue of this machine and its agents killed with SIGKILL: what waits is started again, once, by `hpcml sync`."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, program
from tests.cli.kills import processes_of
from tests.commands.journals import tell

T = TypeVar("T")
# It notes its start, and goes on once there is a file "go"
WAITS = program(
    "import os, pathlib, time\n"
    "open('starts-' + os.environ['HPCML_RUN_ID'], 'a').write('x')\n"
    "while not pathlib.Path('go').exists(): time.sleep(0.05)"
)


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ=hpcml_environ, cwd=cwd)


def until(is_so: Callable[[], T]) -> T:
    end = time.monotonic() + 300
    while not (found := is_so()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def submit(hpcml: Hpcml, *words: str) -> None:
    done = hpcml("run", "-m", WAITS, *words, "cluster.max_parallel=1", "--detach")
    assert done.returncode == 0, done.stderr
    until(lambda: list(hpcml.cwd.glob("starts-*")))


def queues(hpcml: Hpcml) -> list[int]:
    """Return the process of the queue; none where it has ended or was killed."""
    return [pid for pid, does in processes_of(hpcml.home).items() if does == "queue" and not is_gone(pid)]


def kill_queue(hpcml: Hpcml) -> None:
    for pid in queues(hpcml):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not queues(hpcml))


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def states(hpcml: Hpcml) -> list[str]:
    return sorted(run["state"] for run in hpcml.runs())


def starts(hpcml: Hpcml) -> list[str]:
    return sorted(path.read_text() for path in hpcml.cwd.glob("starts-*"))


def events(run: dict[str, Any], name: str) -> list[dict[str, Any]]:
    files = RunDir(Path(run["path"])).journal_files()
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [line["d"] for line in lines if line.get("n") == name]


def test_what_waited_in_a_killed_queue_is_started_again_by_sync_which_whoever_looks_says(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=1,2,3")
    kill_queue(hpcml)
    assert states(hpcml) == ["PENDING", "PENDING", "RUNNING"]  # nobody judges them lost

    for words in (("status",), ("wait", "--timeout", "1s")):
        said = hpcml(*words)
        assert "the local queue was killed with 2 runs left: hpcml sync starts it again" in said.stdout + said.stderr
        assert queues(hpcml) == []
    said = hpcml("sync")

    assert "the local queue was killed with 2 runs left, and was started again" in said.stdout
    assert len(queues(hpcml)) == 1
    (hpcml.cwd / "go").touch()
    until(lambda: set(states(hpcml)) == {"COMPLETED"})
    assert starts(hpcml) == ["x", "x", "x"]  # none twice


def test_an_agent_whose_queue_was_killed_keeps_its_cores(hpcml: Hpcml) -> None:
    cores = str(os.cpu_count())
    submit(hpcml, "seed=1", f"resources.cpus_per_task={cores}")
    kill_queue(hpcml)

    assert hpcml("run", program("pass"), f"resources.cpus_per_task={cores}", "--detach").returncode == 0

    time.sleep(1)  # were its cores free, the second would begin now
    assert states(hpcml) == ["PENDING", "RUNNING"]
    (hpcml.cwd / "go").touch()
    until(lambda: set(states(hpcml)) == {"COMPLETED"})


def test_several_that_look_at_once_start_one_queue(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=range(4)")
    kill_queue(hpcml)

    looking = [hpcml.start("sync") for _ in range(3)]
    assert [one.communicate(timeout=300) and one.returncode for one in looking] == [0, 0, 0]
    (hpcml.cwd / "go").touch()

    until(lambda: set(states(hpcml)) == {"COMPLETED"})
    assert starts(hpcml) == ["x"] * 4


def test_a_queue_that_is_killed_again_and_again_starts_each_run_once(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=range(4)")
    (hpcml.cwd / "go").touch()
    while set(states(hpcml)) != {"COMPLETED"}:
        kill_queue(hpcml)
        assert hpcml("sync").returncode == 0

    assert starts(hpcml) == ["x"] * 4
    assert [len(events(run, "attempt_started")) for run in hpcml.runs()] == [1] * 4


def test_a_killed_agent_has_a_cause_of_its_own_and_leaves_no_program(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=1")
    (run,) = hpcml.runs()
    pids = until(lambda: events(run, "workload_started"))[0]["pids"]

    os.kill(events(run, "attempt_started")[0]["pid"], signal.SIGKILL)

    until(lambda: all(map(is_gone, pids)))
    until(lambda: states(hpcml) == ["LOST"])
    (run,) = hpcml.runs()
    assert run["cause"] == "agent_killed"
    (hpcml.cwd / "go").touch()
    assert hpcml("retry", "--cause", "agent_killed", "-y").returncode == 0
    until(lambda: states(hpcml) == ["COMPLETED"])


def test_a_killed_agent_is_missed_where_nobody_noted_that_its_run_was_submitted(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=1")
    (run_dir,) = map(RunDir, (hpcml.home / "runs" / "default").iterdir())
    for launch in run_dir.journals.glob("*-launch.jsonl"):
        launch.unlink()
    tell(run_dir, "0-launch", ("submission_failed", {"reason": "the local queue did not start"}))
    (agent,) = run_dir.journals.glob("0-*-agent.jsonl")
    lines = map(json.loads, agent.read_text().splitlines())
    (start,) = [line["d"] for line in lines if line.get("n") == "attempt_started"]
    assert states(hpcml) == ["RUNNING"]

    os.kill(start["pid"], signal.SIGKILL)

    until(lambda: states(hpcml) == ["LOST"])
    assert "no run is waiting or running" in hpcml("wait").stderr


def test_the_others_of_a_pack_whose_agent_was_killed_still_run(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=1,2,3", "schedule.pack=all")
    (first,) = [run for run in hpcml.runs() if run["state"] == "RUNNING"]

    os.kill(until(lambda: events(first, "attempt_started"))[0]["pid"], signal.SIGKILL)
    (hpcml.cwd / "go").touch()

    until(lambda: states(hpcml) == ["COMPLETED", "COMPLETED", "LOST"])
    assert starts(hpcml) == ["x"] * 3


def test_what_was_cancelled_in_a_killed_queue_is_not_started(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=1,2,3")
    kill_queue(hpcml)
    waiting = [run["uid"] for run in hpcml.runs() if run["state"] == "PENDING"]

    assert hpcml("cancel", waiting[0], "-y").returncode == 0
    assert hpcml("sync").returncode == 0
    (hpcml.cwd / "go").touch()

    until(lambda: states(hpcml) == ["CANCELLED", "COMPLETED", "COMPLETED"])
    assert starts(hpcml) == ["x", "x"]


def test_what_was_submitted_anew_after_its_queue_was_killed_is_not_started_by_that_too(hpcml: Hpcml) -> None:
    submit(hpcml, "seed=1,2")
    kill_queue(hpcml)
    (waiting,) = [run["uid"] for run in hpcml.runs() if run["state"] == "PENDING"]
    assert hpcml("cancel", waiting, "-y").returncode == 0
    assert hpcml("retry", waiting, "--cause", "cancelled", "-y").returncode == 0

    assert hpcml("sync").returncode == 0
    (hpcml.cwd / "go").touch()

    until(lambda: states(hpcml) == ["COMPLETED", "COMPLETED"])
    until(lambda: not list((hpcml.home / "submissions" / "queues").glob("[!.]*")))
    assert starts(hpcml) == ["x", "x"]
