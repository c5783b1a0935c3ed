"""Runs submitted to a real Slurm, watched and cancelled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.model.state import State
from tests.cluster.slurm.account import Account
from tests.schedulers.slurm import as_user

pytestmark = pytest.mark.slurm


def outcome(run_dir: Path) -> dict[str, object]:
    """Return how the agent says that the last attempt ended."""
    (journal,) = (run_dir / "journal").glob("*-agent.jsonl")
    last: dict[str, object] = json.loads(journal.read_text().splitlines()[-1])
    return last


def printed(run_dir: Path) -> str:
    return (run_dir / "logs" / "0-rank0.out").read_text()


def test_a_single_run_is_a_plain_job_of_its_own_script(slurm: Account, folder: Path) -> None:
    ((ticket, run_dir),) = slurm.call(as_user.submit, folder, ["echo hello from $SLURM_JOB_ID"])

    known = slurm.call(as_user.wait_for_exit_code, ticket)

    assert (known.state, known.exit_code) == (State.COMPLETED, "0:0")
    assert ticket.array_index is None
    command = slurm.run(["scontrol", "show", "job", ticket.job_id], cwd=folder).stdout.decode()
    assert f"Command={run_dir}/job.sh" in command
    assert f"Comment=hpcml:{run_dir.name}" in command
    assert (run_dir / "slurm.log").read_text() == ""


def test_a_submitted_script_can_be_submitted_again_by_hand(slurm: Account, folder: Path) -> None:
    ((ticket, run_dir),) = slurm.call(as_user.submit, folder, ["echo again"])
    slurm.call(as_user.wait_until_final, [ticket])

    left = slurm.run(["sbatch", "--parsable", "--wait", "job.sh"], cwd=run_dir)
    again = slurm.run(["sbatch", "--parsable", "--wait", "--export=ALL,HPCML_RUN_AGAIN=1", "job.sh"], cwd=run_dir)

    assert (left.returncode, again.returncode) == (0, 0), again.stderr
    assert "is left alone: attempt 0 has COMPLETED" in (run_dir / "slurm.log").read_text()
    assert (run_dir / "logs" / "1-rank0.out").read_text() == "again\n"


def test_several_runs_are_one_array_in_their_order(slurm: Account, folder: Path) -> None:
    submitted = slurm.call(as_user.submit, folder, [f"echo run {index}" for index in range(4)])
    tickets = [ticket for ticket, _ in submitted]

    known = slurm.call(as_user.wait_until_final, tickets)

    assert len({ticket.job_id for ticket in tickets}) == 1
    assert [ticket.array_index for ticket in tickets] == [0, 1, 2, 3]
    assert {item.state for item in known} == {State.COMPLETED}
    assert [printed(run_dir) for _, run_dir in submitted] == [f"run {index}\n" for index in range(4)]


def test_an_array_runs_no_more_at_once_than_its_parallelism(slurm: Account, folder: Path) -> None:
    count = f"cd {folder}; touch on-$$; ls on-* | wc -l; sleep 1; rm on-$$"
    submitted = slurm.call(as_user.submit, folder, [f"bash -c '{count}'"] * 5, "resources.array_parallelism=2")

    slurm.call(as_user.wait_until_final, [ticket for ticket, _ in submitted])

    assert max(int(printed(run_dir)) for _, run_dir in submitted) == 2


def test_a_failed_run_is_failed_with_the_exit_status_of_its_program(slurm: Account, folder: Path) -> None:
    ((ticket, _),) = slurm.call(as_user.submit, folder, ["bash -c 'exit 7'"])

    known = slurm.call(as_user.wait_for_exit_code, ticket)

    assert (known.state, known.exit_code) == (State.FAILED, "7:0")


def test_a_run_that_takes_too_much_memory_is_out_of_memory(slurm: Account, folder: Path) -> None:
    greedy = """python3 -c 'x = bytearray(600 << 20); import time; time.sleep(5)'"""
    ((ticket, _),) = slurm.call(as_user.submit, folder, [greedy], "resources.mem=100M")

    (known,) = slurm.call(as_user.wait_until_final, [ticket])

    assert known.state is State.OUT_OF_MEMORY


def test_a_waiting_job_tells_why_it_waits_and_can_be_cancelled(slurm: Account, folder: Path) -> None:
    ((ticket, _),) = slurm.call(
        as_user.submit, folder, ["echo never"], "resources.extra_directives=['--begin=now+2hours']"
    )

    waiting = slurm.call(as_user.query, [ticket]).known[ticket]
    slurm.call(as_user.cancel, ticket)
    (ended,) = slurm.call(as_user.wait_until_final, [ticket])

    assert (waiting.state, waiting.reason) == (State.PENDING, "BeginTime")
    assert waiting.expected_start is not None
    assert ended.state is State.CANCELLED


def test_a_running_job_that_is_cancelled_is_asked_to_stop_and_writes_that_down(slurm: Account, folder: Path) -> None:
    ((ticket, run_dir),) = slurm.call(as_user.submit, folder, ["sleep 100"])
    slurm.call(as_user.wait_until_running, ticket)

    slurm.call(as_user.cancel, ticket)
    (known,) = slurm.call(as_user.wait_until_final, [ticket])

    assert known.state is State.CANCELLED
    assert outcome(run_dir)


def test_cancelling_one_element_leaves_the_others_alone(slurm: Account, folder: Path) -> None:
    submitted = slurm.call(as_user.submit, folder, ["sleep 100", *["true"] * 3], "resources.array_parallelism=1")
    tickets = [ticket for ticket, _ in submitted]
    slurm.call(as_user.wait_until_running, tickets[0])

    slurm.call(as_user.cancel, tickets[2])  # it waits: Slurm forgets it at once
    slurm.call(as_user.cancel, tickets[0])  # it runs
    known = slurm.call(as_user.wait_until_final, tickets)

    assert [item.state for item in known] == [
        State.CANCELLED, State.COMPLETED, State.CANCELLED, State.COMPLETED,
    ]  # fmt: skip


def test_cancelling_a_job_that_has_ended_changes_nothing(slurm: Account, folder: Path) -> None:
    ((ticket, _),) = slurm.call(as_user.submit, folder, ["true"])
    slurm.call(as_user.wait_until_final, [ticket])

    slurm.call(as_user.cancel, ticket)

    assert slurm.call(as_user.query, [ticket]).known[ticket].state is State.COMPLETED


def test_a_job_of_another_name_is_not_taken_for_ours(slurm: Account, folder: Path) -> None:
    done = slurm.run(["sbatch", "--parsable", "--wrap=true", "--output=/dev/null"], cwd=folder)
    foreign = as_user.Ticket(scheduler="slurm", job_id=done.stdout.decode().strip(), job_name="hpcml.ours")
    unknown = as_user.Ticket(scheduler="slurm", job_id="987654321")

    assert slurm.call(as_user.query, [foreign, unknown]).known == {}


def test_a_gpu_job_sees_its_gpus_and_no_others(slurm: Account, folder: Path) -> None:
    look = "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_PARTITION $SLURM_GPUS_ON_NODE"
    ((ticket, run_dir),) = slurm.call(
        as_user.submit,
        folder,
        [f"bash -c '{look}'"],
        *("strategy=ddp", "strategy.processes_per_node=2", "resources.gpus_per_node=2", "resources.partition=qgpu"),
    )

    (known,) = slurm.call(as_user.wait_until_final, [ticket])

    assert known.state is State.COMPLETED, (run_dir / "slurm.log").read_text()
    assert printed(run_dir) == "0,1 qgpu 2\n"


def test_a_run_on_two_nodes_has_an_agent_on_each_that_knows_the_first(slurm: Account, folder: Path) -> None:
    look = "echo $HPCML_MASTER_ADDR $SLURMD_NODENAME $SLURM_CPUS_PER_TASK"
    ((ticket, run_dir),) = slurm.call(
        as_user.submit,
        folder,
        [f"bash -c '{look}'"],
        *("strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2", "resources.gpus_per_node=1"),
        *("resources.partition=qgpu", "resources.cpus_per_task=2"),
    )

    (known,) = slurm.call(as_user.wait_until_final, [ticket])

    assert known.state is State.COMPLETED, (run_dir / "slurm.log").read_text()
    lines = [line for file in (run_dir / "logs").glob("0-rank*.out") for line in file.read_text().splitlines()]
    assert sorted(lines) == ["gpu1 gpu1 2", "gpu1 gpu2 2"]


def test_an_outer_job_does_not_leak_into_an_inner_one(slurm: Account, folder: Path) -> None:
    environ = {"SLURM_MEM_PER_NODE": "1", "SBATCH_PARTITION": "nosuch", "SBATCH_WAIT": "1", "SLURM_NNODES": "64"}
    ((ticket, run_dir),) = slurm.call_in(
        environ, as_user.submit, folder, ["bash -c 'echo $SLURM_JOB_PARTITION $SLURM_NNODES'"]
    )

    slurm.call(as_user.wait_until_final, [ticket])

    assert printed(run_dir) == "qcpu 1\n"


def test_a_preempted_run_waits_again_and_its_next_attempt_is_told_apart(slurm: Account, folder: Path) -> None:
    whole_node = ("strategy=ddp", "strategy.processes_per_node=4", "resources.gpus_per_node=4", "resources.mem=6G")
    there = (*whole_node, "resources.nodelist=gpu2")
    slow_then_fast = """bash -c 'test "$HPCML_ATTEMPT" != 0 || sleep 60'"""
    ((first, run_dir),) = slurm.call(as_user.submit, folder, [slow_then_fast], *there, "resources.partition=qgpu")
    slurm.call(as_user.wait_until_running, first)

    ((second, _),) = slurm.call(as_user.submit, folder, ["sleep 1"], *there, "resources.partition=qgpu_exp")
    known = slurm.call(as_user.wait_until_final, [first, second])

    assert [item.state for item in known] == [State.COMPLETED, State.COMPLETED]
    assert sorted(path.name[0] for path in (run_dir / "logs").glob("*-agent.log")) == ["0", "1"]
