"""Everything that a server, or a site, can do to a submission and to a question."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import SubmissionError
from hpcml.schedulers import pbs_client
from hpcml.schedulers.commands import NoAnswerError, UncertainSubmissionError
from hpcml.schedulers.pbs import PbsSubmitter
from hpcml.schedulers.submitter import Ticket
from hpcml.states import State
from tests.cluster.pbs.double import PbsDouble
from tests.pbs.runs import batch_of, until_final, write_job


def test_a_banner_around_the_id_does_no_harm(submitter: PbsSubmitter, folder: Path, pbs: PbsDouble) -> None:
    pbs.set(banner="Welcome to 1.5 PFlop/s!\nYour project has 12.5 hours left.\n")

    (ticket,) = submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))

    assert ticket.job_id == "1.pbs01"


def test_a_server_that_is_away_for_a_moment_gets_the_job_in_the_end(
    submitter: PbsSubmitter, folder: Path, pbs: PbsDouble
) -> None:
    pbs.set(fail_next={"qsub": 1})

    (ticket,) = submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))

    assert ticket.job_id == "1.pbs01"
    assert pbs.calls()["qsub"] == 2


def test_a_server_that_is_down_is_reported_and_nothing_follows_from_its_silence(
    submitter: PbsSubmitter, folder: Path, pbs: PbsDouble
) -> None:
    job = write_job(submitter, folder, ["sleep", "30"])
    (ticket,) = submitter.submit(batch_of([job]))
    pbs.set(down=["qsub", "qstat", "qdel"])

    assert "PBS cannot be asked: Connection refused" in submitter.query([ticket]).unanswered[ticket]
    with pytest.raises(NoAnswerError, match="Connection refused"):
        submitter.cancel([ticket])
    with pytest.raises(SubmissionError, match="so nothing was queued: Connection refused; qsub: cannot connect"):
        submitter.submit(batch_of([job]))

    pbs.set()
    assert submitter.query([ticket]).known[ticket].state is State.RUNNING


def test_a_job_whose_log_has_no_folder_on_the_node_waits_and_says_why(submitter: PbsSubmitter, pbs: PbsDouble) -> None:
    argv = ["qsub", "-N", "x", "-j", "oe", "-k", "oed", "-o", f"{pbs.bin}/nowhere/", "--", "/bin/true"]
    ticket = Ticket(scheduler="pbs", job_id=pbs_client.submit(argv, name="x"))

    until = time.monotonic() + 300
    while (known := submitter.query([ticket]).known[ticket]).raw != "H":
        assert time.monotonic() < until, known
        time.sleep(0.1)

    assert known.state is State.PENDING
    assert known.reason is not None
    assert known.reason.endswith("does the node see the folder for its log?")
    submitter.cancel([ticket])
    assert submitter.query([ticket]).known[ticket].state is State.CANCELLED


def test_a_hung_server_costs_no_more_than_the_time_limit(submitter: PbsSubmitter, folder: Path, pbs: PbsDouble) -> None:
    job = write_job(submitter, folder, ["true"])
    (ticket,) = submitter.submit(batch_of([job]))
    hasty = replace(submitter, submit_timeout_s=0.5, ask_timeout_s=0.5)
    pbs.set(hung=["qsub", "qstat", "qdel"])

    assert hasty.query([ticket]).unanswered == {ticket: "qstat gave no answer within 0.5 s"}
    with pytest.raises(NoAnswerError, match=r"no answer within 0\.5 s"):
        hasty.cancel([ticket])
    with pytest.raises(SubmissionError, match="so nothing was queued"):
        hasty.submit(batch_of([write_job(submitter, folder, ["true"], index=1)]))


def test_a_lost_answer_does_not_queue_a_run_twice(submitter: PbsSubmitter, folder: Path, pbs: PbsDouble) -> None:
    hasty = replace(submitter, submit_timeout_s=0.7)
    pbs.set(hung_after=["qsub"])

    (ticket,) = hasty.submit(batch_of([write_job(submitter, folder, ["true"])]))
    tickets = hasty.submit(batch_of([write_job(submitter, folder, ["true"], index=index) for index in (1, 2)]))

    assert ticket.job_id == "1.pbs01"
    assert [one.job_id for one in tickets] == ["2[].pbs01", "2[].pbs01"]
    assert pbs.calls()["qsub"] == 2


def test_where_nobody_can_be_asked_the_user_is_told_how_to_look(
    submitter: PbsSubmitter, folder: Path, pbs: PbsDouble
) -> None:
    job = write_job(submitter, folder, ["true"])
    pbs.set(hung_after=["qsub"], down=["qselect"])

    with pytest.raises(
        UncertainSubmissionError, match=rf"look with `qselect -x -N default.{job.run_dir.uid}` before you try"
    ):
        replace(submitter, submit_timeout_s=0.7).submit(batch_of([job]))


def test_a_site_without_history_shows_what_lives_and_forgets_the_rest(
    submitter: PbsSubmitter, folder: Path, pbs: PbsDouble
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


def test_known_and_forgotten_jobs_are_told_apart_in_one_answer(
    submitter: PbsSubmitter, folder: Path, pbs: PbsDouble
) -> None:
    tickets = [
        submitter.submit(batch_of([write_job(submitter, folder, ["sleep", "9"], index=index)]))[0] for index in range(3)
    ]
    pbs.set(forgotten=[2])

    known = submitter.query(tickets).known

    assert list(known) == [tickets[0], tickets[2]]
    assert pbs.calls()["qstat"] == 1


def test_without_pbs_on_this_machine_that_is_said(
    submitter: PbsSubmitter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(submitter, folder, ["true"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    with pytest.raises(SubmissionError, match="qsub cannot be started"):
        submitter.submit(batch_of([job]))
