"""Slurm in trouble: nothing is submitted twice, nothing waits for ever, and silence is not taken for an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.errors import SubmissionError
from hpcml.model.state import State
from hpcml.schedulers.commands import UncertainSubmissionError
from tests.cluster.slurm.account import Account
from tests.schedulers.slurm import as_user

pytestmark = pytest.mark.slurm

WrapperMaker = Callable[..., dict[str, str]]

REAL = 'real() { exec "/usr/bin/${0##*/}" "$@"; }\n'
FIRST_TIME = 'if mkdir "${0%/*}/been-here" 2>/dev/null; then\n'


@pytest.fixture
def slurm_with(slurm: Account, folder: Path) -> WrapperMaker:
    """Put a site's wrapper of a program in front of the real one; return the environment that finds it."""

    def write(body: str, program: str = "sbatch") -> dict[str, str]:
        wrappers = slurm.call(as_user.write_program, folder / "wrappers", program, f"#!/bin/bash\n{REAL}{body}\n")
        return {"PATH": f"{wrappers}:{slurm.environ['PATH']}"}

    return write


def jobs_of(account: Account, folder: Path) -> list[str]:
    """Return the ids of all jobs, ended or not, whose run directories are in *folder*."""
    shown = account.run(["squeue", "--noheader", "--states=all", "--format=%A %Z"], cwd=folder).stdout.decode()
    return [line.split()[0] for line in shown.splitlines() if str(folder) in line]


def test_a_controller_that_is_down_for_a_moment_delays_a_submission(slurm_alone: Account, folder: Path) -> None:
    cluster = slurm_alone.cluster
    cluster.stop_controller()
    back = threading.Timer(4.0, cluster.start_controller)
    back.start()
    try:
        ((ticket, _),) = slurm_alone.call(as_user.submit, folder, ["true"])
    finally:
        back.join()

    assert slurm_alone.call(as_user.wait_until_final, [ticket])[0].state is State.COMPLETED
    assert jobs_of(slurm_alone, folder) == [ticket.job_id]


def test_a_controller_that_stays_down_is_told_in_slurms_words(slurm_alone: Account, folder: Path) -> None:
    slurm_alone.cluster.stop_controller()

    with pytest.raises(SubmissionError, match="Unable to contact slurm controller"):
        slurm_alone.call(as_user.submit, folder, ["true"])


def test_an_ended_job_is_known_without_a_controller(slurm_alone: Account, folder: Path) -> None:
    ((ticket, _),) = slurm_alone.call(as_user.submit, folder, ["true"])
    slurm_alone.call(as_user.wait_for_exit_code, ticket)
    slurm_alone.cluster.stop_controller()

    assert slurm_alone.call(as_user.query, [ticket]).known[ticket].state is State.COMPLETED


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        ("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        ("sacct", "sacct: error: Problem talking to the database: Connection refused"),
    ],
)
def test_a_job_is_not_denied_while_one_of_the_two_is_silent(
    slurm: Account, slurm_with: WrapperMaker, silent: str, words: str
) -> None:
    environ = slurm_with(f"echo '{words}' >&2; exit 1", silent)
    unknown = as_user.Ticket(scheduler="slurm", job_id="987654321")

    answers = slurm.call_in(environ, as_user.query, [unknown])

    assert answers.known == {}
    assert words.rpartition(": ")[2] in answers.unanswered[unknown]


def test_a_job_that_runs_is_known_though_the_accounting_is_down(
    slurm: Account, slurm_with: WrapperMaker, folder: Path
) -> None:
    ((ticket, _),) = slurm.call(as_user.submit, folder, ["sleep 600"])
    environ = slurm_with(
        "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1", "sacct"
    )

    assert slurm.call_in(environ, as_user.query, [ticket]).known[ticket].state in (State.PENDING, State.RUNNING)
    slurm.call(as_user.cancel, ticket)


def test_a_submission_that_timed_out_on_its_way_is_sent_again(
    slurm: Account, slurm_with: WrapperMaker, folder: Path
) -> None:
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    environ = slurm_with(f'{FIRST_TIME} echo "{words}" >&2; exit 1; fi; real "$@"')

    ((ticket, _),) = slurm.call_in(environ, as_user.submit, folder, ["true"])

    assert jobs_of(slurm, folder) == [ticket.job_id]


def test_a_submission_whose_answer_was_lost_is_found_and_not_sent_again(
    slurm: Account, slurm_with: WrapperMaker, folder: Path
) -> None:
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    environ = slurm_with(f'/usr/bin/sbatch "$@" >/dev/null; echo "{words}" >&2; exit 1')

    ((ticket, _),) = slurm.call_in(environ, as_user.submit, folder, ["true"])

    assert jobs_of(slurm, folder) == [ticket.job_id]


def test_an_sbatch_that_hangs_is_ended_and_nothing_is_left_behind(
    slurm: Account, slurm_with: WrapperMaker, folder: Path
) -> None:
    environ = slurm_with("sleep 12345 & wait")
    began = time.monotonic()

    with pytest.raises(UncertainSubmissionError, match="no answer within 1 s, and there is no job called default"):
        slurm.call_in(environ, as_user.submit, folder, ["true"], patience_s=1.0)

    assert time.monotonic() - began < 10
    assert b"12345" not in slurm.run(["ps", "-ww", "-u", "hpcuser", "-o", "args"], cwd=folder).stdout


def test_where_nobody_answers_the_user_is_told_to_look_before_submitting_again(
    slurm: Account, slurm_with: WrapperMaker, folder: Path
) -> None:
    environ = slurm_with("sleep 60") | slurm_with("sleep 60", "squeue") | slurm_with("exit 1", "sacct")

    with pytest.raises(UncertainSubmissionError, match=r"is not known .*look for the name 'default"):
        slurm.call_in(environ, as_user.submit, folder, ["true"], patience_s=1.0)


def test_a_banner_is_not_a_part_of_a_refusal(slurm: Account, slurm_with: WrapperMaker, folder: Path) -> None:
    environ = slurm_with('echo "*** motd ***" >&2; real "$@"')

    with pytest.raises(SubmissionError) as refused:
        slurm.call_in(environ, as_user.submit, folder, ["true"], "resources.qos=nosuch")

    assert str(refused.value) == "Slurm refused the job: Invalid qos specification (set resources.qos)"


def test_a_machine_without_slurm_says_so(slurm: Account, folder: Path) -> None:
    with pytest.raises(SubmissionError, match="sbatch cannot be started"):
        slurm.call_in({"PATH": "/nowhere"}, as_user.submit, folder, ["true"])


def test_without_the_accounting_what_lives_is_known_and_what_has_ended_as_far_as_the_queue_tells(
    slurm_alone: Account, folder: Path
) -> None:
    ((ended, _),) = slurm_alone.call(as_user.submit, folder, ["true"])
    slurm_alone.call(as_user.wait_for_exit_code, ended)
    slurm_alone.cluster.stop_accounting()
    ((runs, _),) = slurm_alone.call(as_user.submit, folder, ["sleep 60"])
    slurm_alone.call(as_user.wait_until_running, runs)
    unknown = as_user.Ticket(scheduler="slurm", job_id="987654321")

    answers = slurm_alone.call(as_user.query, [ended, runs, unknown])
    slurm_alone.call(as_user.cancel, runs)

    assert answers.known[ended].state is State.COMPLETED
    assert answers.known[runs].state is State.RUNNING
    assert set(answers.unanswered) == {unknown}


def test_the_nodes_names_lead_to_this_machine(slurm: Account, folder: Path) -> None:
    for name in ("gpu1", "gpu2", "cpu1"):
        assert slurm.run(["getent", "hosts", name], cwd=folder).stdout.startswith(b"127.0.0.1")
