"""Everything that a server, or a site, can do to a submission and to a question."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import SubmissionError
from hpcml.model.state import State
from hpcml.schedulers.commands import NoAnswerError, UncertainSubmissionError
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.driver import Driver
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.runs import batch_of, until_final, write_job


def test_a_server_that_is_away_for_a_moment_gets_the_job_in_the_end(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    pbs.set(fail_next={"qsub": 1})

    (ticket,) = submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))

    assert ticket.job_id == "1.pbs01"
    assert pbs.calls()["qsub"] == 2


def test_a_server_that_is_down_is_reported_and_nothing_follows_from_its_silence(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    job = write_job(submitter, folder, ["sleep", "30"])
    (ticket,) = submitter.submit(batch_of([job]))
    pbs.set(down=["qsub", "qstat", "qdel"])

    assert "PBS cannot be asked: qstat: Connection refused" in submitter.query([ticket]).unanswered[ticket]
    with pytest.raises(NoAnswerError, match="Connection refused"):
        submitter.cancel([ticket])
    with pytest.raises(SubmissionError, match="so nothing was queued: Connection refused; qsub: cannot connect"):
        submitter.submit(batch_of([job]))

    pbs.set()
    assert submitter.query([ticket]).known[ticket].state is State.RUNNING


def test_a_job_whose_log_has_no_folder_on_the_node_waits_and_says_why(submitter: Driver, pbs: PbsDouble) -> None:
    argv = ["qsub", "-N", "x", "-j", "oe", "-k", "oed", "-o", f"{pbs.bin}/nowhere/", "--", "/bin/true"]
    ticket = Ticket(scheduler="pbs", job_id=subprocess.check_output(argv, text=True).strip())

    until = time.monotonic() + 300
    while (known := submitter.query([ticket]).known[ticket]).raw != "H":
        assert time.monotonic() < until, known
        time.sleep(0.1)

    assert known.state is State.PENDING
    assert known.reason is not None
    assert known.reason.endswith("does the node see the folder for its log?")
    submitter.cancel([ticket])
    assert submitter.query([ticket]).known[ticket].state is State.CANCELLED


def a_wrapper(pbs: PbsDouble, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a site's own qsub, which does *body*, in front of the real one."""
    folder = pbs.folder / "site"
    folder.mkdir()
    (folder / "qsub").write_text(f'#!/bin/bash\nreal() {{ {shlex.quote(str(pbs.bin / "qsub"))} "$@"; }}\n{body}\n')
    (folder / "qsub").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    "body",
    [
        'real "$@"; kill -9 $$',
        'real "$@"; exit 1',
        'real "$@" >/dev/null; kill -9 $$',
        'real "$@" >/dev/null; echo "the accounting of projects is down" >&2; exit 1',
        'real "$@" >/dev/null; echo "qstat: cannot connect to server pbs01 (errno=15010)" >&2; exit 1',
        'real "$@" >/dev/null; exit 0',
        'real "$@" >/dev/null; exit 137',
    ],
)
def test_a_qsub_that_dies_or_fails_after_it_has_queued_the_job_is_no_refusal(
    submitter: Driver, folder: Path, pbs: PbsDouble, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    a_wrapper(pbs, monkeypatch, body)

    (ticket,) = submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))

    assert ticket.job_id == "1.pbs01"
    assert pbs.calls()["qsub"] == 1


def test_of_what_a_wrapper_submits_twice_the_last_is_the_runs(
    submitter: Driver, folder: Path, pbs: PbsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    pbs.set(closed=True)
    a_wrapper(pbs, monkeypatch, 'real "$@"; real "$@"')

    (ticket,) = submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))

    assert ticket.job_id == "2.pbs01"


@pytest.mark.parametrize("body", ["kill -9 $$", "exit 137", "exit 124"])
def test_a_qsub_that_was_killed_and_queued_nothing_leaves_doubt(
    submitter: Driver, folder: Path, pbs: PbsDouble, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    a_wrapper(pbs, monkeypatch, body)

    with pytest.raises(UncertainSubmissionError, match="and there is no job called default"):
        submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))


def test_a_site_s_wrapper_that_refuses_is_told_in_its_own_words(
    submitter: Driver, folder: Path, pbs: PbsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_wrapper(pbs, monkeypatch, "echo 'your project has no hours left' >&2; exit 1")

    with pytest.raises(SubmissionError) as refused:
        submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))

    assert not isinstance(refused.value, UncertainSubmissionError)
    assert str(refused.value).startswith("qsub failed (exit status 1): your project has no hours left; PBS has no job")


def test_a_qsub_that_succeeds_without_a_job_to_be_seen_is_told_with_where_to_look(
    submitter: Driver, folder: Path, pbs: PbsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_wrapper(pbs, monkeypatch, "echo 'your job will be looked at'; exit 0")

    with pytest.raises(SubmissionError, match=r"^qsub named no job: your job will be looked at; PBS"):
        submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))


def test_where_nobody_can_be_asked_the_user_is_told_how_to_look(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    job = write_job(submitter, folder, ["true"])
    pbs.set(hung_after=["qsub"], down=["qselect"])

    with pytest.raises(
        UncertainSubmissionError, match=rf"look for the name 'default.{job.run_dir.uid}' before submitting"
    ):
        replace(submitter, submit_timeout_s=0.7).submit(batch_of([job]))


def test_a_site_without_history_shows_what_lives_and_forgets_the_rest(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    (ended,) = submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))
    until_final(submitter, [ended])
    lives = submitter.submit(batch_of([write_job(submitter, folder, ["sleep", "30"], index=index) for index in (1, 2)]))
    (alone,) = submitter.submit(batch_of([write_job(submitter, folder, ["sleep", "30"], index=3)]))
    pbs.set(history=False, hung_after=["qsub"])

    known = submitter.query([ended, alone, *lives]).known

    assert ended not in known
    assert {known[ticket].state for ticket in (alone, *lives)} == {State.RUNNING}
    again = replace(submitter, submit_timeout_s=0.7).submit(
        batch_of([write_job(submitter, folder, ["sleep", "9"], index=4)])
    )
    assert again[0].job_id == "4.pbs01"


def test_known_and_forgotten_jobs_are_told_apart_in_one_answer(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    tickets = [
        submitter.submit(batch_of([write_job(submitter, folder, ["sleep", "9"], index=index)]))[0] for index in range(3)
    ]
    pbs.set(forgotten=[2])

    answers = submitter.query(tickets)

    assert list(answers.known) == [tickets[0], tickets[2]]
    assert answers.calls == 1


def test_without_pbs_on_this_machine_that_is_said(
    submitter: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(submitter, folder, ["true"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    with pytest.raises(SubmissionError, match="qsub cannot be started"):
        submitter.submit(batch_of([job]))
