"""A program under guard dies with its caller, whatever it has started and however the caller ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.errors import SubmissionError
from hpcml.schedulers import guard
from hpcml.schedulers.commands import NoAnswerError, call

# In the program's own group, in a group of its own as coreutils' timeout makes one, and orphaned
TREES = ["sleep 1000 & wait", "timeout 2000 sleep 1000", "(timeout 2000 sleep 1000 & sleep 1000) & sleep 1000"]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def wrapper(folder: Path, body: str) -> str:
    program = folder / "sbatch"
    program.write_text(f"#!/bin/bash\n{body}\n")
    program.chmod(0o755)
    return str(program)


def living(marked: Path) -> list[int]:
    """Return the processes that work in the folder *marked*."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == marked and "Z (zombie)" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("tree", TREES)
def test_killed_the_caller_takes_the_whole_tree_with_it(tmp_path: Path, tree: str) -> None:
    program = wrapper(tmp_path, f"cd {tmp_path}; {tree}")
    calls = f"from hpcml.schedulers.commands import call; call([{program!r}], timeout_s=600.0, is_submission=True)"
    caller = subprocess.Popen([sys.executable, "-c", calls])
    until(lambda: len(living(tmp_path)) >= 2)

    caller.kill()
    caller.wait()

    until(lambda: living(tmp_path) == [])


def test_the_guard_that_is_killed_takes_the_whole_group_with_it(tmp_path: Path) -> None:
    program = wrapper(tmp_path, f"cd {tmp_path}; sleep 1000 & sleep 0.2; kill -9 $PPID; sleep 1000")

    answer = call([program], timeout_s=60.0, is_submission=True)

    assert answer.returncode == -signal.SIGKILL
    until(lambda: living(tmp_path) == [])


@pytest.mark.parametrize("tree", TREES)
def test_in_time_it_is_all_over(tmp_path: Path, tree: str) -> None:
    program = wrapper(tmp_path, f"cd {tmp_path}; {tree}")

    with pytest.raises(NoAnswerError, match=r"gave no answer within 0\.7 s"):
        call([program], timeout_s=0.7, is_submission=True)

    assert living(tmp_path) == []


def test_what_a_program_that_failed_left_running_is_killed(tmp_path: Path) -> None:
    program = wrapper(tmp_path, f"cd {tmp_path}; sleep 1000 >/dev/null 2>&1 & exit 7")

    assert call([program], timeout_s=600.0, is_submission=True).returncode == 7
    assert living(tmp_path) == []


def test_the_program_gets_and_gives_what_it_would_without_a_guard(tmp_path: Path) -> None:
    program = wrapper(tmp_path, 'printf "%s|" "${0##*/}" "$@" "$WORD"; cat; echo bad >&2; kill -s "${1:-0}" $$; exit 3')
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "WORD": "of mine"}

    ended = call(["sbatch", "0", "a b", ""], timeout_s=60.0, environ=environ, input="told", is_submission=True)
    killed = call([program, "SEGV"], timeout_s=60.0, is_submission=True)

    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "sbatch|0|a b||of mine|told", "bad\n")
    assert killed.returncode == -signal.SIGSEGV


def test_signals_reach_the_program_as_if_there_were_no_guard(tmp_path: Path) -> None:
    program = wrapper(tmp_path, "trap 'echo told; exit 0' TERM; kill -TERM $$; sleep 10")

    assert call([program], timeout_s=60.0, is_submission=True).stdout == "told\n"


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="nosuch cannot be started: No such file or directory"):
        call(["nosuch"], timeout_s=60.0, is_submission=True)
    (tmp_path / "sbatch").write_bytes(b"\x7fELF")
    (tmp_path / "sbatch").chmod(0o755)

    answer = call([str(tmp_path / "sbatch")], timeout_s=60.0, is_submission=True)

    assert answer.returncode == 127
    assert "cannot be started: Exec format error" in answer.stderr


def test_a_caller_that_has_died_already_starts_nothing(tmp_path: Path) -> None:
    program = wrapper(tmp_path, f"touch {tmp_path}/ran")
    words = [sys.executable, "-I", "-S", str(guard.__file__), "1", program, "sbatch"]

    assert subprocess.run(words, start_new_session=True, check=False).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_started_by_hand_it_kills_nobody(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", str(guard.__file__), str(os.getpid()), "/bin/false", "false"]

    done = subprocess.run(words, capture_output=True, check=False, cwd=tmp_path)

    assert (done.returncode, b"must lead a session" in done.stderr) == (2, True)
