"""Removing runs: what is asked, what refuses, what is gone afterwards, and that nothing is ever half there."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpcml.commands.rm import find_unused
from hpcml.paths import locate
from hpcml.runs.layout import RunDir
from tests.cli.command_line import HPCML, Hpcml, program, said_in_one_line
from tests.cli.terminal import OnTerminal
from tests.cli.test_run import SLEEPS, wait_for, wait_until_ended
from tests.cli.test_wait import submit
from tests.store.building import Journal, make_run_dir

UIDS = [f"20260528-202640-{letter * 8}" for letter in "abc"]


def a_run(root: Path, uid: str, state: str = "COMPLETED") -> RunDir:
    run_dir = make_run_dir(root, uid)
    agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir)
    agent.event("attempt_started")
    rank0.metrics(1, loss=0.5)
    agent.event("attempt_ended", 10.0, state=state, exit_code=0, wall_s=10.0)
    (run_dir.checkpoints / "step_1").mkdir(parents=True)
    (run_dir.checkpoints / "step_1" / "weights").write_bytes(bytes(5000))
    return run_dir


@pytest.fixture
def recorded(hpcml: Hpcml) -> list[RunDir]:
    """Return three runs that were recorded, the last of which failed."""
    runs = hpcml.home / "runs"
    return [a_run(runs, uid, state) for uid, state in zip(UIDS, ("COMPLETED", "COMPLETED", "FAILED"), strict=True)]


def known(hpcml: Hpcml) -> list[str]:
    return [run["uid"] for run in hpcml.runs()]


@pytest.mark.parametrize(
    "words", [("--where", "name="), ("--where", "name=''"), ("--where", "tag!="), ("--submission", "")]
)
def test_a_variable_that_is_not_set_chooses_no_run(
    hpcml: Hpcml, recorded: list[RunDir], words: tuple[str, str]
) -> None:
    done = hpcml("rm", "-y", "--state", "COMPLETED", *words)

    assert done.returncode == 2
    assert "=none is what has none" in said_in_one_line(done)
    assert all(run_dir.path.exists() for run_dir in recorded)


def test_a_removed_run_is_gone_from_the_disk_and_from_the_store(hpcml: Hpcml, recorded: list[RunDir]) -> None:
    done = hpcml("rm", "--state", "FAILED", "-y")

    assert (done.returncode, done.stdout) == (0, f"{UIDS[2]}  removed\n")
    assert f"{UIDS[2]}  default  digits_cnn  FAILED  " in done.stderr
    assert "KiB" in done.stderr
    assert not recorded[2].path.exists()
    assert sorted(path.name for path in recorded[2].path.parent.iterdir()) == UIDS[:2]
    assert known(hpcml) == UIDS[:2]
    assert "nothing to remove" in hpcml("rm", "--state", "FAILED", "-y").stderr


def test_without_a_yes_nothing_is_removed(hpcml: Hpcml, recorded: list[RunDir]) -> None:
    done = hpcml("rm", UIDS[0])
    assert done.returncode == 2
    assert "Remove 1 run? There is nobody here to ask: -y removes without a question" in done.stderr

    assert hpcml("rm", UIDS[0], "-n").returncode == 0
    asked = OnTerminal(hpcml, "rm", *UIDS[:2])
    asked.until("Remove 2 runs?")
    asked.type("n\n")

    assert asked.end() == 1
    assert "nothing was removed" in asked.said
    assert known(hpcml) == UIDS
    assert all(run_dir.manifest.exists() for run_dir in recorded)


def test_a_run_that_has_not_ended_refuses_all(hpcml: Hpcml, recorded: list[RunDir]) -> None:
    (uid,) = submit(hpcml, program(SLEEPS))
    wait_for(hpcml.cwd / "started")

    done = hpcml("rm", UIDS[0], uid, "-y")

    assert done.returncode == 2
    assert f"run {uid} has not ended (RUNNING): hpcml cancel {uid} ends it; nothing was removed" in done.stderr
    assert recorded[0].manifest.exists()
    hpcml("cancel", uid, "-y")
    wait_until_ended(hpcml, 4)
    deadline = time.monotonic() + 300
    while "its agent is still at work" in (done := hpcml("rm", uid, "-y")).stderr and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (done.returncode, done.stdout) == (0, f"{uid}  removed\n")
    assert known(hpcml) == UIDS


def test_a_run_that_may_be_queued_again_at_this_moment_stays(hpcml: Hpcml) -> None:
    run_dir = make_run_dir(hpcml.home / "runs", UIDS[0])
    agent = Journal(run_dir, writer="agent")
    agent.event("attempt_started")
    agent.event("attempt_ended", 10.0, state="PREEMPTED", checkpointed=True)

    done = hpcml("rm", UIDS[0], "-y")

    assert done.returncode == 2
    assert "may be queued again" in done.stderr
    os.utime(agent.path, (1, 1))
    assert hpcml("rm", UIDS[0], "-y").returncode == 0


def test_folders_that_a_program_made_read_only_go_and_what_links_point_to_stays(
    hpcml: Hpcml, recorded: list[RunDir], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "data").write_text("precious")
    (recorded[0].path / "link").symlink_to(kept)
    (recorded[0].checkpoints / "step_1").chmod(0o500)
    recorded[0].checkpoints.chmod(0o500)

    assert hpcml("rm", UIDS[0], "-y").stdout == f"{UIDS[0]}  removed\n"

    assert not recorded[0].path.exists()
    assert (kept / "data").read_text() == "precious"


def test_a_run_whose_directory_is_gone_is_forgotten(hpcml: Hpcml, recorded: list[RunDir]) -> None:
    assert known(hpcml) == UIDS
    shutil.rmtree(recorded[1].path)

    done = hpcml("rm", "--gone", "-y")

    assert (done.returncode, done.stdout) == (0, f"{UIDS[1]}  forgotten\n")
    assert "its directory is gone" in done.stderr
    assert known(hpcml) == [UIDS[0], UIDS[2]]
    shutil.rmtree(recorded[0].path)
    assert hpcml("rm", UIDS[0], "-y").stdout == f"{UIDS[0]}  forgotten\n"


def test_runs_that_lie_elsewhere_keep_their_files(hpcml: Hpcml, recorded: list[RunDir], tmp_path: Path) -> None:
    store = str(tmp_path / "shared.db")
    hpcml("runs", HPCML_STORE=store)
    others = {"HPCML_STORE": store, "HPCML_HOME": str(tmp_path / "other")}

    refused = hpcml("rm", UIDS[0], "-y", **others)
    assert refused.returncode == 2
    assert "--forget takes it out of the store" in said_in_one_line(refused)
    assert "nothing to remove" in hpcml("rm", "--gone", "-y", **others).stderr

    assert hpcml("rm", UIDS[0], "--forget", "-y", **others).stdout == f"{UIDS[0]}  forgotten\n"
    assert recorded[0].manifest.exists()
    assert hpcml("runs", "--csv", **others).stdout.count(UIDS[0]) == 0
    mine = hpcml("rm", UIDS[1], "--forget", "-y")
    assert mine.returncode == 2
    assert "whose runs are always read: give no --forget" in said_in_one_line(mine)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rm", "-y"], "say what goes"),
        (["rm", "nosuchrun", "-y"], "nosuchrun"),
        (["rm", "--gone", "--forget", "-y"], "exclude each other"),
    ],
)
def test_a_mistake_is_one_line(hpcml: Hpcml, words: list[str], says: str) -> None:
    a_run(hpcml.home / "runs", UIDS[0])

    done = hpcml(*words)

    assert done.returncode == 2
    assert says in said_in_one_line(done)


def test_a_removal_that_was_killed_anywhere_is_finished_by_the_next_sync(hpcml: Hpcml, tmp_path: Path) -> None:
    chance = random.Random(6)  # noqa: S311 - which moment, and the same ones the next time
    runs = hpcml.home / "runs"
    for round_ in range(6):
        uids = [f"20260528-20264{round_}-{index:08d}" for index in range(12)]
        for uid in uids:
            a_run(runs, uid)
        kept = [*uids[:2]]
        assert set(uids) <= set(known(hpcml))
        removing = subprocess.Popen([*HPCML, "rm", *uids[2:], "-y"], env=hpcml.environ, cwd=tmp_path)
        if chance.random() < 0.7:  # as soon as there is something to interrupt
            deadline = time.monotonic() + 300
            while not list(runs.glob("*/.removed-*")) and removing.poll() is None and time.monotonic() < deadline:
                time.sleep(0.0005)
        time.sleep(chance.random() * 0.05)
        removing.send_signal(signal.SIGKILL)
        removing.wait(timeout=300)

        assert hpcml("sync").returncode == 0

        on_disk = {path.parent.name for path in runs.glob("*/*/run.json")}
        assert set(known(hpcml)) == on_disk
        assert set(kept) <= on_disk
        assert list(runs.glob("*/.*")) == []
        assert all((runs / "default" / uid / "checkpoints/step_1/weights").exists() for uid in on_disk)


def test_only_code_that_no_run_names_and_nobody_wanted_lately_is_removed(hpcml: Hpcml) -> None:
    (hpcml.cwd / "train.py").write_text("print('first')")
    subprocess.run(["git", "init", "-q", str(hpcml.cwd)], check=True)
    (first,) = submit(hpcml, "workload.command=python train.py")
    (hpcml.cwd / "train.py").write_text("print('second')")
    (second,) = submit(hpcml, "workload.command=python train.py")
    assert hpcml("wait", first, second).returncode == 0
    copies = set((hpcml.home / "code").iterdir())
    code = {uid: (hpcml.home / "runs" / "default" / uid / "code").readlink() for uid in (first, second)}

    recent = hpcml("rm", first, "--unused-code", "-n")
    assert str(code[first]) not in recent.stderr
    for copy in copies:
        os.utime(copy, (1, 1))
    done = hpcml("rm", first, "--unused-code", "-y")

    assert done.returncode == 0, done.stderr
    assert f"{code[first]}  removed" in done.stdout
    assert set((hpcml.home / "code").iterdir()) == copies - {code[first]}
    assert code[second].is_dir()
    assert find_unused(locate(hpcml.environ)) == []


def test_code_that_is_wanted_again_stays(hpcml: Hpcml) -> None:
    (hpcml.cwd / "train.py").write_text("print('again')")
    subprocess.run(["git", "init", "-q", str(hpcml.cwd)], check=True)
    (uid,) = submit(hpcml, "workload.command=python train.py")
    assert hpcml("wait", uid).returncode == 0
    code = (hpcml.home / "runs" / "default" / uid / "code").readlink()
    shutil.rmtree(hpcml.home / "runs" / "default" / uid)
    os.utime(code, (1, 1))

    (again,) = submit(hpcml, "workload.command=python train.py")

    assert hpcml("wait", again).returncode == 0
    assert time.time() - code.stat().st_mtime < 3600


def test_two_at_once_remove_each_run_once_and_leave_nothing(hpcml: Hpcml, recorded: list[RunDir]) -> None:
    assert known(hpcml) == UIDS
    at_work = [hpcml.start("rm", *UIDS[:2], "-y") for _ in range(3)]

    said = [process.communicate(timeout=300)[1] for process in at_work]

    for process, error in zip(at_work, said, strict=True):
        # who came last found a run that was gone, or none of that name
        assert process.returncode == 0 or "no run is called" in error, error
    assert 0 in [process.returncode for process in at_work]
    assert [path.name for path in recorded[2].path.parent.iterdir()] == [UIDS[2]]
    assert known(hpcml) == [UIDS[2]]
