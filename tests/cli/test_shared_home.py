"""A home in a project's folder: what a colleague of the group can reach, exchange, and have executed: nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.command_line import HPCML, Hpcml, program, said_in_one_line
from tests.cli.test_wait import submit
from tests.runs.two_users import EVE, GROUP, folder_of_the_group, let_in_by_acl, needs_root

pytestmark = needs_root()
FAILS_ONCE = "import os, sys; sys.exit(3 if os.environ['HPCML_ATTEMPT'] == '0' else 0)"


@dataclass(frozen=True)
class InAGroup(Hpcml):
    """A user whose files are for the group: umask 002."""

    def __call__(self, *words: str, timeout_s: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HPCML, *words],
            env={**self.environ, **variables},
            cwd=self.cwd,
            timeout=timeout_s,
            umask=0o002,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def project() -> Iterator[Path]:
    """A project's folder, in which each of a group may do everything, and everything is the group's."""
    with folder_of_the_group() as folder:
        yield folder


@pytest.fixture
def ada(hpcml: Hpcml, project: Path) -> InAGroup:
    return InAGroup(environ={**hpcml.environ, "HPCML_HOME": str(project / "ada")}, cwd=hpcml.cwd)


@pytest.fixture
def owner(ada: InAGroup) -> Hpcml:
    """The same user, where the umask is not what counts."""
    return Hpcml(environ=ada.environ, cwd=ada.cwd)


def open_up(home: Path) -> None:
    """Open a home to the group, all but the run directories."""
    for path in (home, *home.rglob("*")):
        if not path.is_symlink() and "runs" not in path.relative_to(home).parts[:1]:
            path.chmod(0o2775 if path.is_dir() else 0o664)
    for path in (home / "runs", *(home / "runs").iterdir()):
        path.chmod(0o2775)


def reachable(home: Path) -> list[str]:
    """Return what in *home* lets others do anything, but for the agents' own logs."""
    ours = [home, *(path for path in home.rglob("*") if not path.name.endswith("agent.log"))]
    return [
        f"{path.relative_to(home)} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in ours
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


@pytest.mark.parametrize("parent", ["of a group", "with an ACL"])
def test_nothing_that_hpcml_makes_is_for_others(ada: InAGroup, project: Path, parent: str) -> None:
    if parent == "with an ACL":
        let_in_by_acl(project, EVE)
    subprocess.run(["git", "init", "-q"], cwd=ada.cwd, check=True)
    (ada.cwd / "lib").mkdir()
    (ada.cwd / "lib" / "train.py").write_text("raise SystemExit(0)")
    one, *_ = submit(ada, program(FAILS_ONCE), "-m", "seed=1,2,3")
    ada("wait")
    assert ada("retry", one, "--cause", "program", "-y").returncode in (0, 1)
    ada("run", "workload.command='python3 lib/train.py'", "schedule.snapshot=copy")
    ada("tag", one, "kept")

    assert reachable(ada.home) == []
    for reach in (os.listdir, lambda home: (home / "runs").stat(), lambda home: home.joinpath("x").touch()):
        with pytest.raises(PermissionError):
            EVE.does(reach, ada.home)


def her_run(run: Path) -> Path:
    """Leave what she wants to be executed where *run* was."""
    theirs = run.parents[3] / "hers"
    theirs.mkdir()
    theirs.chmod(0o755)
    text = f"#!/bin/bash\nid > {run.parents[3]}/executed\n"
    (theirs / "job.sh").write_text(text)
    (theirs / "run.json").write_text("{}")
    return theirs


def exchange_run(home: Path) -> None:
    (run,) = home.glob("runs/default/2*")
    theirs = her_run(run)
    run.rename(run.with_name("away"))
    theirs.rename(run)


def exchange_experiment(home: Path) -> None:
    (run,) = home.glob("runs/default/2*")
    theirs = her_run(run)
    run.parent.rename(run.parent.with_name("away"))
    run.parent.mkdir()
    theirs.rename(run)


def exchange_by_a_link(home: Path) -> None:
    (run,) = home.glob("runs/default/2*")
    theirs = her_run(run)
    run.rename(run.with_name("away"))
    run.symlink_to(theirs)


def put_a_submission(home: Path) -> None:
    """What `hpcml sync` would take for one that was never sent, whose directories are to be removed."""
    place = home / "submissions" / "open"
    place.mkdir(parents=True, exist_ok=True)
    words = f'{{"submission": "s", "host": "h", "batches": [], "run_dirs": ["{home}/runs/default"]}}'
    (place / "20260101-000000-aaaaa.planning.-.0.0.json").write_text(words)


def put_code(home: Path) -> None:
    (home / "code" / "0123456789abcdef").mkdir(parents=True)


EXCHANGES = [exchange_run, exchange_experiment, exchange_by_a_link, put_a_submission, put_code]
ACTS = [["retry", "--cause", "program", "-y"], ["sync"], ["cancel", "--state", "RUNNING"]]


def test_a_home_in_which_a_colleague_left_something_is_refused(owner: Hpcml, project: Path) -> None:
    owner("run", program("raise SystemExit(3)"))
    for number, exchange in enumerate(EXCHANGES):
        home = shutil.copytree(owner.home, project / f"home{number}", symlinks=True)
        open_up(home)
        EVE.does(exchange, home)

        for words in ACTS:
            done = owner(*words, HPCML_HOME=str(home))
            assert done.returncode == 2, (exchange, words)
            said = said_in_one_line(done)
            assert f"HPCML_HOME={home} is shared: " in said
            assert f"belongs to user {EVE.uid}: choose one of your own, as {home}/root; results are shared by " in said
            assert list(home.glob("runs/*/*")), "nothing was removed"


def test_a_home_that_everybody_shares_is_refused_before_anything_is_written(owner: Hpcml, project: Path) -> None:
    EVE.does((project / "results").mkdir)
    there = {"HPCML_HOME": str(project / "results")}

    for words in (["run"], ["run", "--dry-run"]):
        done = owner(*words, program("pass"), **there)
        assert done.returncode == 2
        assert f"belongs to user {EVE.uid}" in said_in_one_line(done)
    doctor = owner("doctor", **there)

    assert list((project / "results").iterdir()) == []
    assert doctor.returncode == 1
    assert any("HPCML_HOME" in line and f"belongs to user {EVE.uid}" in line for line in doctor.stdout.splitlines())


def test_an_open_home_is_closed_at_the_next_submission_and_works(ada: InAGroup) -> None:
    (first,) = submit(ada, program(FAILS_ONCE))
    ada("wait")
    open_up(ada.home)
    doctor = ada("doctor")
    assert any("open to others; the next submission closes it" in line for line in doctor.stdout.splitlines())

    again = ada("retry", first, "--cause", "program", "-y")
    ada("wait")
    more = ada("run", program("pass"))

    assert again.returncode == 0, again.stderr
    assert f"warning: {ada.home} was open to others and is yours alone from now on" in again.stderr
    assert "open to others" not in more.stderr
    assert {run["state"] for run in ada.runs()} == {"COMPLETED"}
    with pytest.raises(PermissionError):
        EVE.does(os.listdir, ada.home)


def test_a_colleagues_copy_is_read_as_before(owner: Hpcml, hpcml: Hpcml, project: Path) -> None:
    owner("run", program("pass"))
    (run,) = owner.runs()
    copy = project / "shared" / run["uid"]
    shutil.copytree(run["path"], copy)
    for path in (copy.parent, *copy.parent.rglob("*")):
        os.chown(path, EVE.uid, GROUP, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)

    assert hpcml("sync", "--add", str(project / "shared")).returncode == 0
    assert [found["uid"] for found in hpcml.runs()] == [run["uid"]]


def test_a_store_that_others_may_write_to_says_nothing_of_what_to_cancel(owner: Hpcml, project: Path) -> None:
    store = project / "store.db"
    owner("run", program("pass"), HPCML_STORE=str(store))
    EVE.does(store.rename, project / "away")
    EVE.does(shutil.copyfile, "/dev/null", store)

    for words in (["cancel", "--state", "RUNNING", "-y"], ["run", program("pass")]):
        done = owner(*words, HPCML_STORE=str(store))
        assert done.returncode == 2
        assert f"{store} belongs to user {EVE.uid}" in said_in_one_line(done)
    assert owner("runs", HPCML_STORE=str(project / "away")).returncode == 0
