"""How a scheduler's programs are started: no input to wait for, no locale to parse, and never for ever."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from hpcml.errors import SubmissionError
from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.slurm import SLURM


def test_an_answer_has_all_that_was_said_and_the_exit_status() -> None:
    answer = call(["bash", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)

    assert (answer.returncode, answer.stdout, answer.stderr) == (3, "out\n", "err\n")


def test_rulers_around_a_sites_words_are_left_out() -> None:
    said = "sbatch: error: =====\nsbatch: error: Refused: see https://site\nsbatch: error: =====\nsbatch: error: No\n"
    answer = Answer(returncode=1, stdout="", stderr=said + "sbatch: *****\nsbatch: Balance: 100 h\n")

    assert SLURM.words(answer) == "Refused: see https://site; No; Balance: 100 h"
    assert answer.own_words("sbatch")[-1] == "Balance: 100 h"
    assert "*****" not in answer.own_words("sbatch")


def test_a_program_runs_in_the_c_locale_with_nothing_to_read() -> None:
    answer = call(["bash", "-c", "echo $LC_ALL; cat"], timeout_s=10)

    assert answer.stdout == "C\n"


def test_a_program_that_hands_its_environment_on_gets_the_users() -> None:
    answer = call(["/usr/bin/env"], timeout_s=10, environ={"LC_ALL": "cs_CZ.UTF-8"})

    assert answer.stdout == "LC_ALL=cs_CZ.UTF-8\n"


def test_what_is_to_be_read_is_given() -> None:
    assert call(["cat"], timeout_s=10, input="žluť").stdout == "žluť"


def test_words_are_not_read_by_a_shell() -> None:
    assert call(["echo", "$(id); *"], timeout_s=10).stdout == "$(id); *\n"


def test_bytes_that_are_no_text_do_not_break_an_answer() -> None:
    assert call(["printf", r"a\377b"], timeout_s=10).stdout == "a\ufffdb"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(SubmissionError, match="no-such-sbatch cannot be started: No such file"):
        call(["no-such-sbatch"], timeout_s=10)


def test_a_program_that_hangs_is_ended_with_its_children_and_is_no_answer(tmp_path: Path) -> None:
    began = time.monotonic()

    with pytest.raises(NoAnswerError, match=r"bash gave no answer within 0\.5 s"):
        call(["bash", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid; wait"], timeout_s=0.5)

    child = int((tmp_path / "pid").read_text())
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_what_a_program_said_before_it_was_given_up_is_told() -> None:
    waits = "echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2; sleep 60"

    with pytest.raises(NoAnswerError, match=r"within 0\.5 s, and said: sbatch: error: Slurm temporarily unable to acc"):
        call(["bash", "-c", waits], timeout_s=0.5)
