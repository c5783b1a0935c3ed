"""Slurm asked as little as possible, by names and by ids; runs that go back into its queue from inside their jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.model.state import State
from hpcml.schedulers.commands import NoAnswerError
from tests.cluster.slurm.account import Account
from tests.schedulers.slurm import as_user

pytestmark = pytest.mark.slurm

Counters = Callable[[], dict[str, int]]
HELD = "resources.extra_directives=['--hold']"
DOWN = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"


@pytest.fixture
def counted(slurm: Account, folder: Path) -> tuple[dict[str, str], Counters]:
    """An environment in which calls of Slurm's programs are counted, and what was counted."""
    names = ("squeue", "sacct", "scancel", "scontrol", "sbatch")
    for name in names:
        text = f'#!/bin/sh\necho >>"${{0%/*}}/{name}.calls"\nexec /usr/bin/{name} "$@"\n'
        wrappers = slurm.call(as_user.write_program, folder / "counted", name, text)

    def calls() -> dict[str, int]:
        files = {name: wrappers / f"{name}.calls" for name in names}
        return {name: len(file.read_text().splitlines()) for name, file in files.items() if file.exists()}

    return {"PATH": f"{wrappers}:{slurm.environ['PATH']}"}, calls


def wait_for_accounting(account: Account, folder: Path, job_id: str, word: str) -> None:
    deadline = time.monotonic() + 300
    while word.encode() not in account.run(["sacct", "-nXj", job_id, "-o", "State%20"], cwd=folder).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_any_number_of_jobs_that_wait_or_run_costs_one_call(
    slurm: Account, folder: Path, counted: tuple[dict[str, str], Counters]
) -> None:
    environ, calls = counted
    array = [ticket for ticket, _ in slurm.call(as_user.submit, folder, ["true"] * 50, HELD)]
    ((runs, _),) = slurm.call(as_user.submit, folder, ["sleep 60"])
    slurm.call(as_user.wait_until_running, runs)

    answers = slurm.call_in(environ, as_user.query, [*array, runs])
    slurm.call(as_user.cancel, runs, *array)

    assert len(answers.known) == 51
    assert all(known.is_live for known in answers.known.values())
    assert answers.calls == 1
    assert calls() == {"squeue": 1}


def test_an_ended_job_costs_a_second_call_for_its_exit_code(
    slurm: Account, folder: Path, counted: tuple[dict[str, str], Counters]
) -> None:
    environ, calls = counted
    ((ticket, _),) = slurm.call(as_user.submit, folder, ["bash -c 'exit 7'"])
    slurm.call(as_user.wait_for_exit_code, ticket)

    answers = slurm.call_in(environ, as_user.query, [ticket])

    assert (answers.known[ticket].exit_code, answers.known[ticket].is_live) == ("7:0", False)
    assert answers.calls == 2
    assert calls() == {"squeue": 1, "sacct": 1}


def test_all_elements_are_cancelled_by_one_call(
    slurm: Account, folder: Path, counted: tuple[dict[str, str], Counters]
) -> None:
    environ, calls = counted
    tickets = [ticket for ticket, _ in slurm.call(as_user.submit, folder, ["sleep 60"] * 10, HELD)]
    ((alone, _),) = slurm.call(as_user.submit, folder, ["sleep 60"])

    slurm.call_in(environ, as_user.cancel, *tickets[1:], alone)

    known = slurm.call(as_user.wait_until_final, [*tickets[1:], alone])
    assert {item.state for item in known} == {State.CANCELLED}
    assert slurm.call(as_user.query, tickets).known[tickets[0]].state is State.PENDING
    assert calls() == {"scancel": 1}
    slurm.call(as_user.cancel, replace(tickets[0], array_index=None))  # the whole array


def test_an_old_job_of_ours_under_the_same_id_is_told_by_its_name(slurm: Account, folder: Path) -> None:
    ((ticket, _),) = slurm.call(as_user.submit, folder, ["true"])
    slurm.call(as_user.wait_for_exit_code, ticket)
    ((waits, _),) = slurm.call(as_user.submit, folder, ["true"], HELD)
    old = [replace(one, job_name="default.20200101-000000-22222222") for one in (ticket, waits)]

    answers = slurm.call(as_user.query, [ticket, waits, *old])
    slurm.call(as_user.cancel, waits)

    assert set(answers.known) == {ticket, waits}
    assert answers.unanswered == {}


def test_a_submission_is_found_by_its_name_waiting_and_ended(slurm: Account, folder: Path) -> None:
    waiting, ended = slurm.call(as_user.submit_and_find, folder, HELD)

    assert slurm.call(as_user.query, ended.tickets).known[ended.tickets[0]].state is State.CANCELLED

    assert waiting.before is None
    assert waiting.found == ended.found == waiting.tickets


def test_an_array_of_packs_is_found_too(slurm: Account, folder: Path) -> None:
    found, tickets, walltime = slurm.call(as_user.submit_packs_and_find, folder)

    assert found == tickets
    assert [(ticket.array_index, ticket.is_shared) for ticket in tickets] == [
        (0, True), (0, True), (1, True), (1, True), (2, False),
    ]  # fmt: skip
    assert walltime == "00:05:00"


def test_what_left_the_queue_long_ago_is_found_in_the_accounting(slurm: Account, folder: Path) -> None:
    wrappers = slurm.call(as_user.write_program, folder / "wrappers", "squeue", "#!/bin/sh\nexit 0\n")
    empty = {"PATH": f"{wrappers}:{slurm.environ['PATH']}"}
    held, begun = (slurm.call(as_user.submit_and_find, folder, words)[1] for words in (HELD, "seed=1"))

    for job in (held, begun):
        deadline = time.monotonic() + 300  # seconds late, and for one that never became eligible some more
        while (found := slurm.call_in(empty, as_user.find_again, folder, job.batch)) is None:
            assert time.monotonic() < deadline
        assert found == job.tickets


@pytest.mark.parametrize("silent", ["squeue", "sacct"])
def test_while_one_of_the_two_is_silent_nobody_knows_that_there_is_no_job(
    slurm: Account, folder: Path, silent: str
) -> None:
    wrappers = slurm.call(as_user.write_program, folder / "wrappers", silent, f"#!/bin/sh\n{DOWN}\n")
    environ = {"PATH": f"{wrappers}:{slurm.environ['PATH']}"}

    with pytest.raises(NoAnswerError, match="Connection refused"):
        slurm.call_in(environ, as_user.find_new, folder)


def test_a_job_that_the_queue_has_not_is_lost_whatever_the_accounting_says_of_it(slurm: Account, folder: Path) -> None:
    ((ticket, _),) = slurm.call(as_user.submit, folder, ["true"], HELD)
    wrappers = slurm.call(as_user.write_program, folder / "wrappers", "squeue", "#!/bin/sh\nexit 0\n")
    wait_for_accounting(slurm, folder, ticket.job_id, "PENDING")

    answers = slurm.call_in({"PATH": f"{wrappers}:{slurm.environ['PATH']}"}, as_user.query, [ticket])
    slurm.call(as_user.cancel, ticket)

    known = answers.known[ticket]
    assert (known.state, known.raw, known.is_live) == (State.LOST, "PENDING", False)
    assert "the queue has no such job any more" in str(known.reason)


def test_a_job_requeues_itself_and_keeps_its_id(slurm: Account, folder: Path) -> None:
    ticket, run_dir = slurm.call(as_user.submit_requeueing, folder, "")

    (known,) = slurm.call(as_user.wait_until_final, [ticket])

    assert known.state is State.COMPLETED
    assert (run_dir / "requeued").read_text() == ""  # nothing is printed: it is the same job
    assert (run_dir / "restarts").read_text().split() == ["0", "1"]


def test_an_array_element_requeues_itself_alone(slurm: Account, folder: Path) -> None:
    ticket, run_dir = slurm.call(as_user.submit_requeueing, folder, "--array=3")

    (known,) = slurm.call(as_user.wait_until_final, [replace(ticket, array_index=3)])

    assert known.state is State.COMPLETED
    assert (run_dir / "restarts").read_text().split() == ["0", "1"]


def test_a_run_leaves_a_shared_job_for_one_of_its_own(slurm: Account, folder: Path) -> None:
    first, run_dir = slurm.call(as_user.submit_leaving_alone, folder)
    (done,) = slurm.call(as_user.wait_until_final, [first])

    told = json.loads((run_dir / "requeued").read_text())
    second = as_user.Ticket(**told)
    (known,) = slurm.call(as_user.wait_until_final, [second])

    assert done.state is State.COMPLETED
    assert int(told.pop("job_id")) > int(first.job_id)  # others submit too
    assert told == {
        "scheduler": "slurm", "array_index": None, "job_cluster": "",
        "job_name": f"default.{run_dir.name}-q{first.job_id}",
    }  # fmt: skip
    assert known.state is State.COMPLETED
    assert (run_dir / "logs" / "0-rank0.out").read_text() == "[] qcpu\n"


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_signal_to_the_batch_shell_reaches_what_it_became_on_every_node(
    slurm: Account, folder: Path, nodes: int
) -> None:
    several = ("strategy=ddp", "strategy.processes_per_node=1", f"resources.nodes={nodes}")
    words = ("resources.partition=qgpu", *(several if nodes > 1 else ()))
    ticket, run_dir = slurm.call(as_user.submit_listening, folder, "resources.walltime=10m", *words)
    deadline = time.monotonic() + 300
    while not all((folder / f"up-{node}").exists() for node in range(nodes)):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    # As --signal=B:USR1@180 does, which the script has: to the batch shell alone
    sent = slurm.run(["scancel", "--batch", "--signal=USR1", ticket.job_id], cwd=folder)
    known = slurm.call(as_user.wait_for_exit_code, ticket)

    assert sent.returncode == 0
    assert "#SBATCH --signal=B:USR1@" in (run_dir / "job.sh").read_text()
    assert all((folder / f"told-{node}").exists() for node in range(nodes))
    assert known.exit_code == "7:0"
    assert {(folder / f"up-{node}").read_text().strip() for node in range(nodes)} == {f"default.{run_dir.name}"}


def test_a_job_that_was_sent_to_a_named_cluster_is_asked_for_and_cancelled_there(slurm: Account, folder: Path) -> None:
    elsewhere = {"SLURM_CLUSTERS": "nosuch"}
    ((ticket, run_dir),) = slurm.call_in({"SLURM_CLUSTERS": "hpcml"}, as_user.submit, folder, ["true"], HELD)
    ((own, _),) = slurm.call(as_user.submit, folder, ["true"], HELD)

    answers = slurm.call_in(elsewhere, as_user.query, [ticket, own])
    slurm.call_in(elsewhere, as_user.cancel, ticket, own)

    assert (ticket.job_cluster, own.job_cluster) == ("hpcml", "")
    assert "#SBATCH --clusters=hpcml\n" in (run_dir / "job.sh").read_text()
    assert {known.state for known in answers.known.values()} == {State.PENDING}
    assert {item.state for item in slurm.call(as_user.wait_until_final, [ticket, own])} == {State.CANCELLED}


@pytest.mark.parametrize(("variables", "named"), [({}, []), ({"SLURM_CLUSTERS": "hpcml"}, ["hpcml"])])
def test_the_agent_says_the_cluster_of_a_job_whose_script_names_one_and_of_no_other(
    slurm: Account, folder: Path, variables: dict[str, str], named: list[str]
) -> None:
    ((ticket, run_dir),) = slurm.call_in(variables, as_user.submit, folder, ["true"])
    slurm.call(as_user.wait_until_final, [ticket])

    (journal,) = (run_dir / "journal").glob("*-agent.jsonl")
    details = [json.loads(line).get("d", {}) for line in journal.read_text().splitlines()]
    assert [said["job_cluster"] for said in details if "job_cluster" in said] == named
