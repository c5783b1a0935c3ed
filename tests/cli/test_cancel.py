"""Stopping runs: what is asked, what happens at once, and what does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.cli.terminal import OnTerminal
from tests.cli.test_run import SLEEPS, wait_for, wait_until_ended
from tests.cli.test_wait import submit


def states(hpcml: Hpcml) -> list[str]:
    return [run["state"] for run in hpcml.runs()]


def test_in_a_script_a_wish_without_yes_is_refused_and_nothing_happens(hpcml: Hpcml) -> None:
    (uid,) = submit(hpcml, program(SLEEPS))
    wait_for(hpcml.cwd / "started")

    done = hpcml("cancel", uid)

    assert done.returncode == 2
    assert "Cancel 1 run? There is nobody here to ask: -y cancels without a question" in done.stderr.splitlines()[-1]
    assert states(hpcml) == ["RUNNING"]
    assert hpcml("cancel", uid, "-y").returncode == 0
    wait_until_ended(hpcml, 1)
    assert states(hpcml) == ["CANCELLED"]


def test_somebody_at_a_terminal_is_asked_and_may_say_no(hpcml: Hpcml) -> None:
    (uid,) = submit(hpcml, program(SLEEPS))
    asked = OnTerminal(hpcml, "cancel", uid)
    asked.until("Cancel 1 run?")
    assert f"{uid}  default" in asked.said

    asked.type("n\n")

    assert asked.end() == 1
    assert "nothing was cancelled" in asked.said
    assert states(hpcml)[0] in ("PENDING", "RUNNING")
    again = OnTerminal(hpcml, "cancel", uid)
    again.until("Cancel 1 run?")
    again.ctrl_c()
    assert again.end() == 130
    assert states(hpcml)[0] in ("PENDING", "RUNNING")
    yes = OnTerminal(hpcml, "cancel", uid)
    yes.until("Cancel 1 run?")
    yes.type("y\n")
    assert yes.end() == 0
    wait_until_ended(hpcml, 1)


def test_what_waits_here_is_cancelled_at_once_while_others_run(hpcml: Hpcml) -> None:
    submit(hpcml, "-m", program(SLEEPS), "seed=0,1,2", "cluster.max_parallel=1")
    wait_for(hpcml.cwd / "started")

    assert hpcml("cancel", "--state", "PENDING", "-y").returncode == 0

    assert sorted(states(hpcml)) == ["CANCELLED", "CANCELLED", "RUNNING"]
    hpcml("cancel", "--experiment", "default", "-y")
    wait_until_ended(hpcml, 3)
    assert set(states(hpcml)) == {"CANCELLED"}
    assert (hpcml.cwd / "started").read_text() == "x"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_in_the_way_of_the_mark_is_said_in_one_line(hpcml: Hpcml, make: Callable[[Path], None]) -> None:
    (uid,) = submit(hpcml, program(SLEEPS))
    wait_for(hpcml.cwd / "started")
    (run,) = hpcml.runs()
    mark = Path(run["path"]) / "cancel"
    make(mark)

    refused = hpcml("cancel", uid, "-y")

    assert (refused.returncode, refused.stdout) == (3, f"{uid}  not cancelled\n")
    assert f"1 of them could not be marked, and go on: {mark}: " in said_in_one_line(refused)
    assert states(hpcml) == ["RUNNING"]
    mark.rename(mark.with_name("moved"))
    assert hpcml("cancel", uid, "-y").returncode == 0
    wait_until_ended(hpcml, 1)
    assert states(hpcml) == ["CANCELLED"]


@pytest.mark.parametrize("words", [[], ["-y"]])
def test_cancelling_everything_has_to_be_said(hpcml: Hpcml, words: list[str]) -> None:
    done = hpcml("cancel", *words)

    assert done.returncode == 2
    assert "say what is to be stopped" in said_in_one_line(done)


def test_a_selection_that_nothing_meets_is_no_error(hpcml: Hpcml) -> None:
    submit(hpcml, program("pass"))
    wait_until_ended(hpcml, 1)

    done = hpcml("cancel", "--experiment", "default", "-y")

    assert (done.returncode, done.stdout) == (0, "")
    assert "no run that waits or runs matches" in done.stderr
