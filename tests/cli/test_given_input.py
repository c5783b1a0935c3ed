"""Standard input of `hpcml run`, of which the program sees nothing."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys

import pytest

from tests.cli.command_line import HPCML, Hpcml

SAID = "hpcml: warning: the program's input is empty: what comes through a pipe or < stays with hpcml run; "
RUN = f"{shlex.join(HPCML)} run -n -- true"
GIVEN = {
    "a pipe": "printf 1 | { sleep 0.2; RUN; cat; }",
    "a file": "echo 1 > data; RUN < data",
    "a line of a shell": "RUN <<< 1",
}
NOT_GIVEN = {
    "/dev/null": "RUN < /dev/null",
    "closed": "RUN <&-",
    "an empty file": ": > data; RUN < data",
    "an empty pipe": ": | { sleep 0.2; RUN; }",
    "a loop over a file": "printf '1\\n2\\n' > data; while read -r line; do RUN; done < data",
    "nohup": "nohup RUN",
}


def under_shell(hpcml: Hpcml, line: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("RUN", RUN)],
        env=hpcml.environ,
        cwd=hpcml.cwd,
        capture_output=True,
        text=True,
        stdin=stdin,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("how", GIVEN)
def test_what_is_given_to_the_input_is_said_not_to_reach_the_program(hpcml: Hpcml, how: str) -> None:
    done = under_shell(hpcml, GIVEN[how])

    assert done.returncode == 0, done.stderr
    assert done.stderr.count(SAID) == 1
    assert how != "a pipe" or done.stdout.endswith("1")  # it is still there


@pytest.mark.parametrize("how", NOT_GIVEN)
def test_nothing_is_said_of_an_input_to_which_nothing_is_given(hpcml: Hpcml, how: str) -> None:
    done = under_shell(hpcml, NOT_GIVEN[how])

    assert done.returncode == 0, done.stderr
    assert SAID not in done.stderr


@pytest.mark.parametrize("what", [b"", b"1"])
def test_the_socket_of_an_ssh_is_a_pipe_and_an_open_silent_one_is_not_waited_for(hpcml: Hpcml, what: bytes) -> None:
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.sendall(what)
        done = under_shell(hpcml, "RUN", ours.fileno())

    assert done.returncode == 0, done.stderr
    assert (SAID in done.stderr) == bool(what)


def test_an_open_silent_pipe_is_not_waited_for(hpcml: Hpcml) -> None:
    reading, writing = os.pipe()
    try:
        done = under_shell(hpcml, "RUN", reading)
    finally:
        os.close(reading)
        os.close(writing)

    assert done.returncode == 0, done.stderr
    assert SAID not in done.stderr


def test_a_recipe_has_no_input(hpcml: Hpcml) -> None:
    done = under_shell(hpcml, f"{shlex.join(HPCML)} run -n seed=1 <<< 1")

    assert done.returncode == 0, done.stderr
    assert SAID not in done.stderr


def test_with_a_closed_input_nobody_is_asked(hpcml: Hpcml) -> None:
    done = under_shell(
        hpcml, f"{shlex.join(HPCML)} run -- {shlex.quote(sys.executable)} -c pass; {shlex.join(HPCML)} rm @1 <&-"
    )

    assert "There is nobody here to ask" in done.stderr
    assert "Traceback" not in done.stderr
