"""``hpcml sync`` and ``hpcml sync --add`` as they are typed."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from hpcml.runs.atomic import draft_of
from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.store.building import Journal, make_run_dir

UID = "20260528-202640-aaaaaa"
OTHER = "20260528-202640-bbbbbb"


def a_run(root: Path, uid: str = UID, *, ended: bool = True) -> RunDir:
    """Write a run of this machine whose agent is no more."""
    run_dir = make_run_dir(root, uid)
    launch = Journal(run_dir, writer="launch", attempt=0)
    launch.event("submitted", scheduler="local", job_id="123")
    agent = Journal(run_dir, writer="agent", attempt=0)
    agent.event("attempt_started", pid=2**22 + 1, create_time=1.0, hostname=socket.gethostname())
    rank = Journal(run_dir, attempt=0)
    for step in range(5):
        rank.metrics(step, loss=1 / (step + 1))
    if ended:
        agent.event("attempt_ended", 9.0, state="COMPLETED", exit_code=0, wall_s=8.5)
    return run_dir


def answers(hpcml: Hpcml) -> str:
    shown = [hpcml("show", run["uid"], "--json").stdout for run in hpcml.runs()]
    return "".join([hpcml("runs", "--json").stdout, *shown])


@pytest.fixture
def runs(hpcml: Hpcml) -> Path:
    return hpcml.home / "runs"


def test_runs_from_elsewhere_are_read_where_they_lie_and_found_again_without_a_store(
    hpcml: Hpcml, runs: Path, tmp_path: Path
) -> None:
    a_run(runs)
    copied = a_run(tmp_path / "copied", OTHER)

    done = hpcml("sync", "--add", str(tmp_path / "copied"))
    before = answers(hpcml)
    for path in hpcml.home.glob("store.db*"):
        path.unlink()
    again = hpcml("sync")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'copied'}: 1 runs\n10 new points\n"
    assert again.stdout == "2 runs, 10 new points, 0 unreadable lines, 0 lost records\n"
    assert answers(hpcml) == before
    assert {run["uid"]: run["path"] for run in hpcml.runs()}[OTHER] == str(copied.path)
    assert f"  reads {tmp_path / 'copied'}, too" in hpcml("sync", "--check").stdout


def test_a_run_from_elsewhere_is_never_found_lost_or_tried_again(hpcml: Hpcml, runs: Path, tmp_path: Path) -> None:
    own, copied = a_run(runs, ended=False), a_run(tmp_path / "copied", OTHER, ended=False)
    files = sorted(copied.journals.iterdir())
    hpcml("sync", "--add", str(tmp_path / "copied"))

    hpcml("sync")
    hpcml("wait")

    assert {run["uid"]: run["state"] for run in hpcml.runs()} == {own.uid: "LOST", OTHER: "RUNNING"}
    assert sorted(copied.journals.iterdir()) == files
    for words in (("cancel", OTHER, "-y"), ("retry", OTHER, "-y")):
        done = hpcml(*words)
        assert done.returncode == 2, (words, done.stdout)
        said_in_one_line(done)


def test_a_folder_that_is_let_go_takes_its_runs_out_of_the_store(hpcml: Hpcml, runs: Path, tmp_path: Path) -> None:
    a_run(runs)
    a_run(tmp_path / "copied", OTHER)
    hpcml("sync", "--add", str(tmp_path / "copied"))

    done = hpcml("sync", "--forget", str(tmp_path / "copied"))
    again = hpcml("sync", "--forget", str(tmp_path / "copied"))
    own = hpcml("sync", "--forget", str(runs))

    assert done.stdout == f"{tmp_path / 'copied'}: read no more; 1 runs taken out of the store\n"
    assert [run["uid"] for run in hpcml.runs()] == [UID]
    assert (again.returncode, own.returncode) == (2, 2)
    assert "was not given" in said_in_one_line(again)
    assert "always read" in said_in_one_line(own)
    assert (tmp_path / "copied" / "default" / OTHER / "run.json").exists()


def test_what_holds_no_run_is_refused_and_nothing_is_noted_down(hpcml: Hpcml, tmp_path: Path) -> None:
    a_run(tmp_path / "good")
    (tmp_path / "empty").mkdir()

    done = hpcml("sync", "--add", str(tmp_path / "good"), str(tmp_path / "empty"))

    assert done.returncode == 2
    assert "no run directory" in said_in_one_line(done)
    assert "reads" not in hpcml("sync", "--check").stdout
    assert hpcml.runs() == []


def test_a_copy_of_a_run_is_left_out_and_said(hpcml: Hpcml, runs: Path, tmp_path: Path) -> None:
    own = a_run(runs)
    shutil.copytree(runs, tmp_path / "copied")

    done = hpcml("sync", "--add", str(tmp_path / "copied"))

    assert done.returncode == 0
    assert "remove the copy" in said_in_one_line(done)
    assert [run["path"] for run in hpcml.runs()] == [str(own.path)]


def test_what_is_missing_is_counted_shown_and_said(hpcml: Hpcml, runs: Path) -> None:
    run_dir = a_run(runs)
    a_run(runs, OTHER)
    with (run_dir.journals / "0-node7-rank0.jsonl").open("ab") as file:
        file.write(b"\0" * 300 + b'\n{"s":9,"t":1.5,"k":"m","i":9,"v":{"loss":0.5}}\n')

    first, second = hpcml("sync"), hpcml("sync")

    assert first.stdout == "2 runs, 11 new points, 1 unreadable lines, 4 lost records\n"
    assert second.stdout == "2 runs, 0 new points, 0 unreadable lines, 0 lost records\n"
    expected = f"lost records: 4, unreadable lines: 1, in all journals of 1 run ({UID})"
    assert expected in said_in_one_line(first)
    assert expected in said_in_one_line(second)
    shown = json.loads(hpcml("show", UID, "--json").stdout)
    assert (shown["lost_records"], shown["bad_lines"]) == (4, 1)
    words = hpcml("show", UID).stdout
    assert "lost records      4" in words
    assert "unreadable lines  1" in words
    assert "lost records" not in hpcml("show", OTHER).stdout


def test_runs_whose_directories_are_gone_are_said_with_what_to_do(hpcml: Hpcml, runs: Path, tmp_path: Path) -> None:
    run_dir = a_run(runs)
    a_run(runs, OTHER)
    a_run(tmp_path / "copied", UID[:-1] + "c")
    hpcml("sync", "--add", str(tmp_path / "copied"))
    shutil.rmtree(run_dir.path)
    shutil.rmtree(tmp_path / "copied")

    done = hpcml("sync")

    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert f"1 run ({UID}) are gone: hpcml rm --gone" in lines[0].replace("the directories of ", "")
    assert f"{tmp_path / 'copied'} is not there: its 1 runs are kept" in lines[1]
    assert len(hpcml.runs()) == 3


def test_all_reads_again_what_was_changed_without_a_trace(hpcml: Hpcml, runs: Path) -> None:
    run_dir = a_run(runs)
    hpcml("sync")
    journal = run_dir.journals / "0-node7-rank0.jsonl"
    journal.write_text(journal.read_text().replace('"loss": 0.5', '"loss": 0.7'))

    without, with_all = hpcml("sync"), hpcml("sync", "--all")

    assert "0 new points" in without.stdout
    assert "5 new points" in with_all.stdout


def test_sync_removes_what_killed_writers_left(hpcml: Hpcml, runs: Path) -> None:
    run_dir = a_run(runs)
    (hpcml.home / "submissions" / "open").mkdir(parents=True)
    places = [run_dir.path / "run.json", hpcml.home / "config.yaml", hpcml.home / "submissions" / "open" / "x.json"]
    left = [draft_of(path) for path in places]
    ours = draft_of(run_dir.path / "run.json")
    for path in (*left, ours):
        path.touch()
    for path in left:  # a day ago
        os.utime(path, (0, 0))

    done = hpcml("sync")

    assert "3 unfinished files of killed processes removed" in done.stdout.splitlines()
    assert not any(path.exists() for path in left)
    assert ours.exists()
