"""`hpcml run` killed with SIGKILL at every point of a submission to this machine, then `hpcml sync`."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcml.commands.submit.submission import (
    Phase,
    Submission,
    TakenOverError,
    interrupted,
    manifests_under_way,
    open_submission,
    take_over,
    this_host,
)
from hpcml.errors import HpcmlError
from hpcml.runs import liveness
from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, program

# Python reads this module when it starts: the program that starts a local queue is where hpcml can be hit exactly.
KILLS_ITS_PARENT = """
import atexit, os, pathlib, signal, sys, time
def kill_parent():
    os.kill(os.getppid(), signal.SIGKILL)
if "hpcml.schedulers.local.start" in sys.orig_argv:
    here = pathlib.Path(os.environ["KILL_FOLDER"])
    call = len(list(here.glob("call-*")))
    (here / f"call-{call}").touch()
    when = os.environ["KILL_WHEN"] if call == int(os.environ.get("KILL_AT_CALL", 0)) else "never"
    if when == "before":
        kill_parent()
        os._exit(1)
    if when == "meanwhile":
        kill_parent()
        time.sleep(1)
    if when == "after":
        atexit.register(kill_parent)
"""
COUNTS = program("import os; open(os.environ['HPCML_RUN_ID'], 'a').write('x')")


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ=hpcml_environ, cwd=cwd)


@pytest.fixture
def killer(tmp_path: Path) -> Callable[..., dict[str, str]]:
    folder = tmp_path / "killer"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(KILLS_ITS_PARENT)

    def variables(when: str, *, at_call: int = 0) -> dict[str, str]:
        own = {"KILL_FOLDER": str(folder), "KILL_WHEN": when, "KILL_AT_CALL": str(at_call)}
        return {**own, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}

    return variables


def open_files(hpcml: Hpcml) -> list[Path]:
    return list((hpcml.home / "submissions" / "open").glob("*"))


def events(path: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for file in RunDir(path).journal_files() for line in file.read_text().splitlines()]
    return [line["d"] for line in lines if line.get("n") == name]


def until_all_completed(hpcml: Hpcml, count: int) -> list[dict[str, Any]]:
    end = time.monotonic() + 300
    while [run["state"] for run in hpcml.runs()] != ["COMPLETED"] * count:
        runs = hpcml.runs()
        assert time.monotonic() < end, [(run["state"], run["reason"]) for run in runs]
        time.sleep(0.3)
    return hpcml.runs()


def assert_ran_once_each(hpcml: Hpcml, count: int) -> None:
    for run in until_all_completed(hpcml, count):
        assert len(events(Path(run["path"]), "submitted")) == 1
        assert len(events(Path(run["path"]), "attempt_started")) == 1
        assert (hpcml.cwd / run["uid"]).read_text() == "x"


def synced(hpcml: Hpcml) -> str:
    done = hpcml("sync")
    assert done.returncode == 0, done.stderr
    assert open_files(hpcml) == []
    return done.stdout


def test_killed_while_it_wrote_run_directories_nothing_of_it_remains(hpcml: Hpcml) -> None:
    folder = hpcml.home / "runs" / "default"
    writing = hpcml.start("run", "-m", COUNTS, "seed=range(300)", "--detach")
    end = time.monotonic() + 300
    while not (folder.is_dir() and len(list(folder.iterdir())) > 5):
        assert time.monotonic() < end
        time.sleep(0.001)
    writing.kill()
    writing.communicate()

    (left,) = open_files(hpcml)
    assert ".planning." in left.name
    assert hpcml.runs() != []  # the store has seen them

    assert "1 interrupted submission never began and removed" in synced(hpcml)
    assert list(folder.iterdir()) == []
    assert hpcml.runs() == []


@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
@pytest.mark.parametrize("seeds", ["seed=1", "seed=1,2,3"])
def test_killed_before_while_or_after_the_queue_was_started_each_run_runs_once(
    hpcml: Hpcml, killer: Callable[..., dict[str, str]], when: str, seeds: str
) -> None:
    done = hpcml("run", "-m", COUNTS, seeds, "--detach", **killer(when))

    assert done.returncode == -signal.SIGKILL
    (left,) = open_files(hpcml)
    assert ".submitting." in left.name
    assert "1 interrupted submission finished" in synced(hpcml)
    assert_ran_once_each(hpcml, len(seeds.split(",")))


def test_killed_between_two_batches_the_second_is_submitted_and_the_first_is_not_again(
    hpcml: Hpcml, killer: Callable[..., dict[str, str]]
) -> None:
    words = ("-m", COUNTS, "seed=1,2", "cluster.max_parallel=1,2", "--detach")
    done = hpcml("run", *words, **killer("after"))

    assert done.returncode == -signal.SIGKILL
    synced(hpcml)
    assert_ran_once_each(hpcml, 4)


def test_a_second_sync_finds_nothing_to_do(hpcml: Hpcml, killer: Callable[..., dict[str, str]]) -> None:
    hpcml("run", COUNTS, "--detach", **killer("before"))

    both = [hpcml.start("sync") for _ in range(2)]
    said = [one.communicate(timeout=300)[0] for one in both]

    assert [one.returncode for one in both] == [0, 0]
    assert sum("interrupted submission finished" in text for text in said) == 1
    assert "interrupted" not in synced(hpcml)
    assert_ran_once_each(hpcml, 1)


def test_a_sync_that_is_killed_leaves_the_rest_to_the_next(hpcml: Hpcml, killer: Callable[..., dict[str, str]]) -> None:
    hpcml("run", COUNTS, "--detach", **killer("before"))
    assert hpcml("sync", **killer("after", at_call=1)).returncode == -signal.SIGKILL

    synced(hpcml)

    assert_ran_once_each(hpcml, 1)


def test_what_was_cancelled_meanwhile_is_not_submitted(hpcml: Hpcml, killer: Callable[..., dict[str, str]]) -> None:
    hpcml("run", COUNTS, "--detach", **killer("before"))
    (run,) = hpcml.runs()
    assert hpcml("cancel", run["uid"], "-y").returncode == 0

    synced(hpcml)

    (run,) = hpcml.runs()
    assert run["state"] == "CANCELLED"
    assert list(hpcml.cwd.iterdir()) == []


def test_missing_waits_for_an_interrupted_submission(hpcml: Hpcml, killer: Callable[..., dict[str, str]]) -> None:
    hpcml("run", COUNTS, "--detach", **killer("before"))

    refused = hpcml("run", COUNTS, "--detach", "--missing")
    assert refused.returncode == 2
    assert "hpcml sync finishes it first" in refused.stderr
    synced(hpcml)

    assert "nothing to submit" in hpcml("run", COUNTS, "--detach", "--missing").stdout
    assert_ran_once_each(hpcml, 1)


def test_a_submission_that_ends_well_leaves_nothing_open(hpcml: Hpcml) -> None:
    submitted = json.loads(hpcml("run", "-m", COUNTS, "seed=1,2", "--json").stdout)

    assert open_files(hpcml) == []
    assert len({entry["submission"] for entry in submitted}) == 1
    (said,) = events(Path(submitted[0]["path"]), "submitted")
    assert (said["scheduler"], said["job_id"], said["pack"]) == ("local", submitted[0]["job_id"], None)
    assert_ran_once_each(hpcml, 2)


def intent() -> Submission:
    return Submission(submission="20261121-101508-7wz9k", host=this_host(), batches=[])


def test_a_submission_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    open_submission(tmp_path, intent(), Phase.SUBMITTING)

    assert interrupted(tmp_path, now=time.time()) == []
    assert interrupted(tmp_path, now=time.time() + 1e9) == []  # seen to live, it may take as long as it likes


def test_a_clock_that_was_set_meanwhile_changes_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_submission(tmp_path, intent(), Phase.SUBMITTING)
    booted_at = liveness._booted_at()
    monkeypatch.setattr(liveness, "_booted_at", lambda: booted_at + 3600)

    assert interrupted(tmp_path, now=time.time() + 3600) == []


def test_a_recycled_process_id_is_not_its_process(tmp_path: Path) -> None:
    opened = open_submission(tmp_path, intent(), Phase.SUBMITTING)
    submission, phase, host, pid, start, _ = opened.path.name.split(".")
    older = opened.path.with_name(f"{submission}.{phase}.{host}.{pid}.{int(start) - 100_00}.json")
    opened.path.rename(older)

    assert interrupted(tmp_path, now=time.time()) == [older]


def test_another_hosts_submission_is_dead_once_it_was_silent_for_an_hour(tmp_path: Path) -> None:
    opened = open_submission(tmp_path, intent(), Phase.SUBMITTING)
    elsewhere = opened.path.with_name(opened.path.name.replace(this_host(), "login9"))
    opened.path.rename(elsewhere)
    now = time.time()

    assert interrupted(tmp_path, now=now + 3500) == []
    assert interrupted(tmp_path, now=now + 3700) == [elsewhere]


def test_whoever_lost_a_submission_to_another_stops(tmp_path: Path) -> None:
    opened = open_submission(tmp_path, intent(), Phase.SUBMITTING)
    opened.path.rename(opened.path.with_name(opened.path.name.replace(str(os.getpid()), "1")))

    with pytest.raises(TakenOverError, match="taken over by another hpcml"):
        opened.touch()


def test_of_several_that_want_it_one_gets_it(tmp_path: Path) -> None:
    opened = open_submission(tmp_path, intent(), Phase.PLANNING)
    before = opened.path
    opened.leave_to_sync()
    assert interrupted(tmp_path, now=time.time()) == [opened.path]

    taken = take_over(opened.path)

    assert taken is not None
    assert (taken[0].submission, taken[0].path, taken[1]) == (opened.submission, before, Phase.PLANNING)
    assert take_over(opened.path) is None


def test_a_file_that_is_none_of_ours_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")

    assert interrupted(tmp_path, now=time.time()) == []


def test_what_only_another_machine_can_finish_waits(hpcml: Hpcml, killer: Callable[..., dict[str, str]]) -> None:
    hpcml("run", COUNTS, "--detach", **killer("before"))
    (left,) = open_files(hpcml)
    said = json.loads(left.read_text())
    left.write_text(json.dumps({**said, "host": "login9"}))

    done = hpcml("sync")

    assert done.returncode == 3
    assert "login9" in done.stderr
    assert len(open_files(hpcml)) == 1


@pytest.mark.parametrize(
    "damage", [os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.write_text("[]")]
)
def test_no_file_among_the_open_submissions_holds_up_who_reads_them(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path = tmp_path / f"20260528-202640-sub2.{Phase.PLANNING.value}.-.0.0.json"
    damage(path)

    if path.is_symlink():
        assert manifests_under_way(tmp_path) == set()
    else:
        with pytest.raises(HpcmlError):
            manifests_under_way(tmp_path)
