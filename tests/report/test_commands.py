"""What the commands that show runs print, typed as a user types them: no tail of blanks, no traceback, no guess."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from hpcml.model.training import Training
from tests.cli.command_line import HPCML, Hpcml, said_in_one_line
from tests.store.building import T0, Journal, make_run_dir


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with two runs that were recorded."""
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    for seed, letter in enumerate("ab"):
        run_dir = make_run_dir(user.home / "runs", f"20260528-202640-{letter * 8}", seed=seed)
        agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir, t0=T0 + 1)
        agent.event("attempt_started")
        rank0.metrics(1, val_accuracy=0.9 + seed / 100)
        agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)
    return user


@pytest.mark.parametrize("words", [["runs"], ["show", "aaaaaaaa"], ["compare", "--by", "training.steps"]])
def test_a_pipe_gets_no_trailing_blanks(hpcml: Hpcml, words: list[str]) -> None:
    steps = make_run_dir(hpcml.home / "runs", "20260528-202640-cccccccc", training=Training(steps=9))
    Journal(steps).metrics(1, val_accuracy=0.5)
    Journal(steps, writer="agent").event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)

    done = hpcml(*words)

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) > 2
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("words", [["runs"], ["runs", "--json"], ["show", "aaaaaaaa"]])
def test_a_reader_that_has_seen_enough_gets_no_traceback(hpcml: Hpcml, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {name: value for name, value in hpcml.environ.items() if name != "PYTHONUNBUFFERED"}

    done = subprocess.run(
        [*HPCML, *words], env=buffered, cwd=hpcml.cwd, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)

    assert done.stderr == b""
    assert done.returncode == 1


def test_a_terminal_gets_lines_and_its_own_width(hpcml: Hpcml) -> None:
    master, terminal = pty.openpty()
    environ = {**hpcml.environ, "COLUMNS": "80", "TERM": "xterm"}

    done = subprocess.run([*HPCML, "runs"], env=environ, cwd=hpcml.cwd, stdout=terminal, check=False)
    os.close(terminal)
    said = os.read(master, 1 << 16).decode()
    os.close(master)

    assert done.returncode == 0
    assert "─" in said
    assert "in all: experiment default" in said  # of 80 columns
    assert "\x1b[1mrun" in said


@pytest.mark.parametrize(
    ("words", "flags"),
    [(["--json", "--csv"], "--json and --csv"), (["--md", "--csv", "--json"], "--json and --csv and --md")],
)
def test_only_one_form_at_a_time(hpcml: Hpcml, words: list[str], flags: str) -> None:
    done = hpcml("runs", *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert f"{flags} exclude each other: give one" in said_in_one_line(done)


def test_data_that_ships_with_a_package_takes_no_path(hpcml: Hpcml) -> None:
    done = hpcml("run", "-n", "data=digits", "data.path=/etc")

    assert done.returncode == 2
    assert "data=digits is read from scikit-learn, not from a path" in said_in_one_line(done)
