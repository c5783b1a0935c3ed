"""One store on a server, filled by two users: each sees the runs of both, and acts on his own alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.cli.test_run import SLEEPS, wait_for
from tests.cli.test_wait import submit
from tests.cluster.postgres.server import Server

FAILS = "import sys; sys.exit(3)"


@pytest.fixture
def url(postgres: Server, new_database: Callable[..., str]) -> Iterator[str]:
    """A database that has nothing in it yet, for somebody with a password in the URL."""
    name = new_database()
    yield postgres.url(name).replace("postgres@", "postgres:hush-hush@")
    postgres.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def two(url: str, hpcml: Hpcml, tmp_path: Path) -> tuple[Hpcml, Hpcml]:
    """Two users with a home each, and one store."""
    users = []
    for name in ("ada", "bob"):
        cwd, runtime = tmp_path / name, tmp_path / f"runtime-{name}"  # each with all cores to himself
        cwd.mkdir()
        runtime.mkdir(mode=0o700)
        own = {"HPCML_HOME": str(tmp_path / "homes" / name), "XDG_RUNTIME_DIR": str(runtime)}
        environ = {**hpcml.environ, **own, "HPCML_STORE": url}
        users.append(Hpcml(environ=environ, cwd=cwd))
    return users[0], users[1]


@pytest.mark.story
def test_each_sees_the_runs_of_both_and_acts_on_his_own(two: tuple[Hpcml, Hpcml]) -> None:
    ada, bob = two
    (hers,) = submit(ada, program(SLEEPS))
    wait_for(ada.cwd / "started")
    (his,) = submit(bob, program("print('done')"))
    assert bob("wait", his).returncode == 0

    assert {run["uid"] for run in ada.runs()} == {hers, his}  # which reads hers in
    assert {run["uid"]: run["state"] for run in bob.runs()} == {hers: "RUNNING", his: "COMPLETED"}
    assert json.loads(bob("status", "--json").stdout) == []
    assert bob("sync").returncode == 0
    bob("cancel", "--state", "RUNNING", "-y")
    refused = bob("cancel", hers, "-y")
    assert refused.returncode == 2
    assert f"run {hers} is not below {bob.home / 'runs'}: whoever submitted it can cancel it" in refused.stderr
    assert [run["state"] for run in ada.runs() if run["uid"] == hers] == ["RUNNING"]
    assert ada("cancel", hers, "-y").returncode == 0
    assert ada("wait", hers).returncode != 2
    assert [run["state"] for run in bob.runs() if run["uid"] == hers] == ["CANCELLED"]


def test_nobody_retries_what_is_anothers(two: tuple[Hpcml, Hpcml]) -> None:
    ada, bob = two
    (hers,) = submit(ada, program(FAILS))
    ada("wait")
    (before,) = [run["attempt"] for run in ada.runs()]

    refused = bob("retry", hers, "--cause", "program", "-y")

    assert refused.returncode == 2
    assert "whoever submitted it can retry it" in said_in_one_line(refused)
    assert ada("retry", hers, "--cause", "program", "-y").returncode == 0
    ada("wait")
    assert [run["attempt"] for run in bob.runs()] == [before + 1]


def test_the_password_is_in_no_output_and_in_no_file(two: tuple[Hpcml, Hpcml], tmp_path: Path) -> None:
    ada, _ = two
    said = [ada("run", program("print('x')")), ada("wait"), ada("doctor"), ada("runs")]
    assert said[0].returncode == 0, said[0].stderr
    said += [ada("runs", HPCML_STORE=ada.environ["HPCML_STORE"].replace("?host=", "_nowhere?host="))]

    for done in said:
        assert "hush-hush" not in done.stdout + done.stderr, done.args
    assert "postgresql://postgres@" in said[-1].stderr
    for path in (tmp_path / "homes").rglob("*"):
        if path.is_file():
            assert b"hush-hush" not in path.read_bytes(), path


def test_a_url_of_the_command_line_is_written_down_without_its_password(two: tuple[Hpcml, Hpcml], url: str) -> None:
    ada, _ = two
    environ = {name: value for name, value in ada.environ.items() if name != "HPCML_STORE"}
    user = Hpcml(environ=environ, cwd=ada.cwd)

    done = user("--store", url, "run", program("print('x')"))

    assert done.returncode == 0, done.stderr
    for path in user.home.rglob("*"):
        if path.is_file():
            assert b"hush-hush" not in path.read_bytes(), path
