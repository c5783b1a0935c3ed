"""Runs on the PBS double: submitted, watched, cancelled, and everything that a server can do to us."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.state import State
from hpcml.schedulers.contract import Job, Ticket
from hpcml.schedulers.driver import Driver
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.runs import batch_of, events, output, until_final, wait_for_start, write_job


def submit_words(name: str, script: Path) -> list[str]:
    return ["qsub", "-N", name, "-o", "/dev/null", "-j", "oe", "-k", "oed", "--", "/bin/bash", str(script)]


def qsub(words: Sequence[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def nodes(count: int) -> list[str]:
    return ["strategy=ddp", "strategy.processes_per_node=1", f"resources.nodes={count}"]


def test_a_run_is_a_plain_job_and_its_agent_tells_how_it_went(submitter: Driver, folder: Path) -> None:
    job = write_job(submitter, folder, ["echo", "hello $HOME", "it's"])

    (ticket,) = submitter.submit(batch_of([job]))

    assert ticket == Ticket(scheduler="pbs", job_id="1.pbs01", job_name=f"default.{job.run_dir.uid}")
    known = until_final(submitter, [ticket])[ticket]
    assert (known.state, known.raw, known.exit_code) == (State.COMPLETED, "F", "0")
    assert output(job) == "hello $HOME it's\n"
    assert len(events(job, "attempt_ended")) == 1


def test_several_runs_are_one_array_in_their_order(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    jobs = [
        write_job(submitter, folder, ["echo", str(index)], "resources.array_parallelism=2", index=index)
        for index in range(4)
    ]

    tickets = submitter.submit(batch_of(jobs))

    assert [(ticket.job_id, ticket.array_index) for ticket in tickets] == [("1[].pbs01", index) for index in range(4)]
    assert {known.state for known in until_final(submitter, tickets).values()} == {State.COMPLETED}
    assert [output(job) for job in jobs] == ["0\n", "1\n", "2\n", "3\n"]
    assert pbs.calls()["qsub"] == 1
    (script,) = submitter.submissions.glob("*/job.sh")
    assert "#PBS -J 0-3%2\n" in script.read_text()
    logs = sorted(path.name for path in script.parent.glob("*.OU"))
    assert logs == [f"1[{index}].pbs01.OU" for index in range(4)]


def test_what_is_shown_beforehand_is_what_is_sent(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    job = write_job(submitter, folder, ["true"], "resources.account=OPEN-00-00")
    shown = submitter.preview(batch_of([job]))

    submitter.submit(batch_of([job]))

    assert list(shown.command) == pbs.call_words()[-1]
    assert shown.script == job.run_dir.script.read_text()
    assert not submitter.submissions.exists()


def test_the_script_of_a_run_can_be_submitted_again_by_hand(submitter: Driver, folder: Path) -> None:
    job = write_job(submitter, folder, ["echo", "again"])
    (first,) = submitter.submit(batch_of([job]))
    until_final(submitter, [first])

    by_hand = ["qsub", "-v", "HPCML_RUN_AGAIN=1", str(job.run_dir.script)]
    done = subprocess.run(by_hand, capture_output=True, text=True, check=True)
    second = Ticket(scheduler="pbs", job_id=done.stdout.strip())

    assert until_final(submitter, [second])[second].state is State.COMPLETED
    assert output(job, attempt=1) == "again\n"


def test_each_end_is_reported_with_its_reason(submitter: Driver, folder: Path) -> None:
    fails = write_job(submitter, folder, ["bash", "-c", "exit 7"])
    killed = write_job(submitter, folder, ["bash", "-c", "kill -9 $PPID"], index=1)
    sleeps = write_job(submitter, folder, ["sleep", "60"], index=2)

    tickets = [submitter.submit(batch_of([job]))[0] for job in (fails, killed, sleeps)]
    time.sleep(1.5)
    submitter.cancel([tickets[2]])
    known = until_final(submitter, tickets)

    assert [known[ticket].state for ticket in tickets] == [State.FAILED, State.FAILED, State.CANCELLED]
    assert known[tickets[0]].reason == "exit status 7"
    assert known[tickets[1]].reason == "ended by signal 9"
    assert "terminated by" in (known[tickets[2]].reason or "")


def test_one_run_of_an_array_is_cancelled_alone_and_waiting_ones_too(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    jobs = [
        write_job(submitter, folder, ["sleep", "30"], "resources.array_parallelism=2", index=index)
        for index in range(3)
    ]
    tickets = submitter.submit(batch_of(jobs))

    submitter.cancel([tickets[2]])
    submitter.cancel([tickets[0]])
    until = time.monotonic() + 300
    while (known := submitter.query(tickets).known)[tickets[0]].state is State.RUNNING and time.monotonic() < until:
        time.sleep(0.1)

    assert [known[ticket].state for ticket in tickets] == [State.CANCELLED, State.RUNNING, State.CANCELLED]
    assert known[tickets[2]].exit_code is None
    assert [words for words in pbs.call_words() if words[0] == "qdel"] == [
        ["qdel", "1[2].pbs01"],
        ["qdel", "1[0].pbs01"],
    ]
    submitter.cancel([Ticket(scheduler="pbs", job_id="1[].pbs01")])
    assert {said.state for said in until_final(submitter, tickets).values()} == {State.CANCELLED}


def test_cancelling_what_has_ended_or_was_forgotten_is_no_error(submitter: Driver, folder: Path) -> None:
    (ticket,) = submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))
    until_final(submitter, [ticket])

    submitter.cancel([ticket])
    submitter.cancel([Ticket(scheduler="pbs", job_id="4711.pbs01")])


def test_a_strange_ticket_is_refused(submitter: Driver) -> None:
    with pytest.raises(HpcmlError, match="'nonsense' is no job id of PBS"):
        submitter.query([Ticket(scheduler="pbs", job_id="nonsense")])


def test_a_job_of_another_server_is_not_taken_for_ours(submitter: Driver, folder: Path) -> None:
    submitter.submit(batch_of([write_job(submitter, folder, ["sleep", "9"])]))

    strange = Ticket(scheduler="pbs", job_id="1.elsewhere")

    answers = submitter.query([strange])

    assert answers.known == {}
    assert "illegally formed job identifier: 1.elsewhere" in answers.unanswered[strange]


def test_a_few_plain_jobs_are_looked_at_closely_by_one_call(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    job = write_job(submitter, folder, ["true"])
    pbs.set(closed=True)
    tickets = [submitter.submit(batch_of([job]))[0] for _ in range(25)]

    answers = submitter.query(tickets)

    assert {said.state for said in answers.known.values()} == {State.PENDING}
    assert (len(answers.known), answers.calls, pbs.calls()["qstat"]) == (25, 1, 1)


@pytest.mark.nightly("pbs")
def test_any_number_of_running_jobs_costs_one_call_and_of_waiting_ones_two(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    job = write_job(submitter, folder, ["true"])
    pbs.set(closed=True)
    script = folder / "sleep.sh"
    script.write_text("sleep 60\n")
    name = f"default.{job.run_dir.uid}"
    tickets = [Ticket(scheduler="pbs", job_id=qsub(submit_words(name, script)), job_name=name) for _ in range(200)]

    waiting = submitter.query(tickets)
    pbs.set(all_running=True)
    running = submitter.query(tickets)

    assert ({said.state for said in waiting.known.values()}, len(waiting.known)) == ({State.PENDING}, 200)
    assert waiting.calls == 2
    assert ({said.raw for said in running.known.values()}, len(running.known)) == ({"R"}, 200)
    assert running.calls == 1
    assert pbs.calls()["qstat"] == 3


def test_of_many_jobs_only_those_that_left_the_list_are_looked_at_closely(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    job = write_job(submitter, folder, ["bash", "-c", "exit 3"])
    (ended,) = submitter.submit(batch_of([job]))
    until_final(submitter, [ended])
    pbs.set(closed=True)
    living = [submitter.submit(batch_of([job]))[0] for _ in range(40)]
    forgotten = Ticket(scheduler="pbs", job_id="4711.pbs01", job_name="default.x")
    before = pbs.calls()["qstat"]

    answers = submitter.query([ended, forgotten, *living])

    assert (answers.known[ended].state, answers.known[ended].exit_code) == (State.FAILED, "3")
    assert {answers.known[ticket].state for ticket in living} == {State.PENDING}
    assert forgotten not in answers.known
    assert answers.unanswered == {}
    assert answers.calls == pbs.calls()["qstat"] - before == 3


def test_a_job_under_a_recycled_id_is_not_taken_for_ours(submitter: Driver, folder: Path) -> None:
    job = write_job(submitter, folder, ["sleep", "30"])
    (ours,) = submitter.submit(batch_of([job]))
    old = replace(ours, job_name="default.20200101-000000-22222222")
    arrays = submitter.submit(batch_of([write_job(submitter, folder, ["true"], index=index) for index in (1, 2)]))
    old_element = replace(arrays[0], job_name="default.20200101-000000-22222222-0")

    answers = submitter.query([ours, old, *arrays, old_element])

    assert set(answers.known) == {ours, *arrays}
    assert answers.unanswered == {}
    submitter.cancel([ours])


def test_a_recycled_id_is_seen_in_the_list_too(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    job = write_job(submitter, folder, ["true"])
    tickets = [submitter.submit(batch_of([job]))[0] for _ in range(30)]
    old = [replace(ticket, job_name="other.20200101-000000-22222222") for ticket in tickets[:3]]

    assert set(submitter.query([*tickets, *old]).known) == set(tickets)


@pytest.mark.parametrize(
    ("overrides", "faults", "words"),
    [
        (["resources.partition=nosuch"], {}, "Unknown queue"),
        (["resources.partition=qnvidia", "resources.walltime=72:00:00"], {}, "Job violates queue and/or server"),
        (["resources.extra_directives=['-l foo=1']"], {}, "Unknown resource Resource_List.foo"),
        (["resources.extra_directives=['--nonsense']"], {}, "invalid option"),
        ([], {"account_wanted": True}, "Project (-A) is mandatory.; See https://example.invalid/docs"),
        ([], {"queue_disabled": True}, "Queue is not enabled"),
        ([], {"refusal": "no\nmore\ntoday"}, "no; more; today"),
    ],
)
def test_a_refusal_is_one_line_of_pbs_own_words(
    submitter: Driver, folder: Path, pbs: PbsDouble, overrides: list[str], faults: dict[str, object], words: str
) -> None:
    job = write_job(submitter, folder, ["true"], *overrides)
    pbs.set(**faults)

    with pytest.raises(SubmissionError) as refused:
        submitter.submit(batch_of([job]))

    assert str(refused.value).startswith("PBS refused the job: qsub: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert pbs.calls()["qsub"] == 1


def test_a_refused_array_is_all_or_nothing(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    pbs.set(array_limit=2)
    jobs = [write_job(submitter, folder, ["true"], index=index) for index in range(3)]

    with pytest.raises(SubmissionError, match=r"Array job exceeds server or queue size limit \(set cluster\.max_array"):
        submitter.submit(batch_of(jobs))


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("would exceed complex's per-user limit", "schedule.pack"),
        ("would exceed queue workq's per-project limit of jobs in 'Q' state", "schedule.pack"),
        ("Maximum number of jobs for user me already in queue workq", "schedule.pack"),
        ("would exceed per-user limit on resource ncpus in complex", "ask for less"),
        ("Unknown queue", "set resources.partition"),
    ],
)
def test_a_refusal_says_what_to_do(submitter: Driver, folder: Path, pbs: PbsDouble, words: str, advice: str) -> None:
    pbs.set(refusal=words)

    with pytest.raises(SubmissionError) as refused:
        submitter.submit(batch_of([write_job(submitter, folder, ["true"])]))

    assert f"PBS refused the job: qsub: {words} (" in str(refused.value)
    assert advice in str(refused.value)


def test_the_jobs_of_an_array_that_is_held_say_so(submitter: Driver, folder: Path) -> None:
    held = "resources.extra_directives=[-h]"
    jobs = [write_job(submitter, folder, ["true"], held, index=index) for index in range(2)]

    tickets = submitter.submit(batch_of(jobs))
    known = submitter.query(tickets).known

    assert [(known[one].state, known[one].raw, known[one].reason) for one in tickets] == [
        (State.PENDING, "Q", "held: qrls releases it")
    ] * 2


def test_an_impossible_request_waits_and_says_why(submitter: Driver, folder: Path) -> None:
    job = write_job(submitter, folder, ["true"], *nodes(3))

    (ticket,) = submitter.submit(batch_of([job]))
    known = submitter.query([ticket]).known[ticket]

    assert known.state is State.PENDING
    assert known.reason == "Can Never Run: Not enough total nodes available"


def test_a_dependency_that_cannot_be_met_is_told(submitter: Driver, folder: Path) -> None:
    (failed,) = submitter.submit(batch_of([write_job(submitter, folder, ["false"])]))
    job = write_job(submitter, folder, ["true"], f"resources.dependency='afterok:{failed.job_id}'", index=1)
    (ticket,) = submitter.submit(batch_of([job]))

    known = until_final(submitter, [ticket])[ticket]

    assert (known.state, known.exit_code) == (State.CANCELLED, None)
    assert "never ran: its dependency cannot be met" in (known.reason or "")


@pytest.mark.parametrize(
    "name", ["plain", "ünïcödé žluť", "a 'b' \"c\" $HOME `id` ; rm -rf x", "line\nbreak", "a,b:c%d"]
)
def test_folders_of_any_name_work(submitter: Driver, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    odd = replace(submitter, submissions=folder / "submissions")
    jobs = [write_job(odd, folder, ["echo", "ok"], index=index) for index in range(3)]

    tickets = [*odd.submit(batch_of(jobs[:1])), *odd.submit(batch_of(jobs[1:]))]

    assert {known.state for known in until_final(odd, tickets).values()} == {State.COMPLETED}
    assert [output(job) for job in jobs] == ["ok\n"] * 3


def test_hostile_values_reach_pbs_as_values(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    account = "a b;$(touch pwned) c'd"
    job = write_job(submitter, folder, ["true"])
    run = job.manifest.run
    resources = replace(run.resources, account=account)
    odd = Job(run_dir=job.run_dir, manifest=replace(job.manifest, run=replace(run, resources=resources)))
    odd.run_dir.script.write_text(submitter.script_for(odd))

    (ticket,) = submitter.submit(batch_of([odd]))

    assert until_final(submitter, [ticket])[ticket].state is State.COMPLETED
    (words,) = [words for words in pbs.call_words() if words[0] == "qsub"]
    assert words[words.index("-A") + 1] == account
    assert not list(folder.rglob("pwned"))


def test_the_agent_runs_on_every_node_and_the_worst_status_counts(submitter: Driver, folder: Path) -> None:
    code = (
        "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR']); "
        "sys.exit(5 if os.environ['RANK'] == '1' else 0)"
    )
    job = write_job(submitter, folder, [sys.executable, "-c", code], *nodes(2))

    (ticket,) = submitter.submit(batch_of([job]))
    known = until_final(submitter, [ticket])[ticket]

    assert output(job, rank=0) == "0 2 pbs01\n"
    assert output(job, rank=1) == "1 2 pbs01\n"
    assert (known.state, known.exit_code) == (State.FAILED, "5")
    assert {event["node"] for event in events(job, "attempt_started")} == {0, 1}


def test_cancelling_reaches_the_agents_of_all_nodes(submitter: Driver, folder: Path) -> None:
    job = write_job(submitter, folder, ["sleep", "60"], *nodes(2))
    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_start(job, agents=2)

    submitter.cancel([ticket])

    assert until_final(submitter, [ticket])[ticket].state is State.CANCELLED
    left = subprocess.run(["pgrep", "-f", str(job.run_dir.path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_a_job_that_lost_its_node_runs_again_as_another_attempt(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    job = write_job(submitter, folder, ["bash", "-c", 'echo "$HPCML_ATTEMPT"; [ "$HPCML_ATTEMPT" = 1 ] || sleep 60'])
    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_start(job)
    pbs.set(operator=True)
    subprocess.run(["qrerun", ticket.job_id], check=True)

    assert until_final(submitter, [ticket])[ticket].state is State.COMPLETED
    assert output(job, attempt=1) == "1\n"


def test_an_array_of_thousands_is_submitted_and_asked_for_in_two_calls(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    pbs.set(closed=True)
    job = write_job(submitter, folder, ["true"])
    began = time.monotonic()

    tickets = submitter.submit(batch_of([job] * 5000))
    known = submitter.query(tickets).known

    assert time.monotonic() - began < 10
    assert len(known) == 5000
    assert pbs.calls() == {"qsub": 1, "qstat": 1}
    (batch,) = submitter.submissions.glob("*/batch.json")
    assert len(json.loads(batch.read_text())["jobs"]) == 5000
