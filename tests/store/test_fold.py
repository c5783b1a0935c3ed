from __future__ import annotations

import random
from typing import Any

import pytest

from hpcml.states import State
from hpcml.store.fold import Happening, JournalStart, RunFacts, fold

LAUNCH = JournalStart(file="0-login1-launch.jsonl", writer="launch", attempt=1, t0=100.0)
AGENT = JournalStart(file="1-node7-agent.jsonl", writer="agent", attempt=1, t0=200.0)
RANK0 = JournalStart(file="1-node7-rank0.jsonl", writer="rank0", attempt=1, t0=205.0)
RANK1 = JournalStart(file="1-node7-rank1.jsonl", writer="rank1", attempt=1, t0=204.0)
HELPER = JournalStart(file="1-node8-agent1.jsonl", writer="agent1", attempt=1, t0=201.0)
COLLECT = JournalStart(file="1-login1-collect.jsonl", writer="collect", attempt=1, t0=900.0)
AGENT_2 = JournalStart(file="2-node8-agent.jsonl", writer="agent", attempt=2, t0=1000.0)


def told(journal: JournalStart, name: str, at: float = 0.0, ordinal: int = 0, /, **details: Any) -> Happening:  # noqa: ANN401
    return Happening(journal=journal, ordinal=ordinal, at=at or journal.t0, name=name, details=details)


def folded(*happenings: Happening) -> RunFacts:
    """Fold in a random order: it must not matter."""
    journals = list({happening.journal.file: happening.journal for happening in happenings}.values())
    random.shuffle(journals)
    return fold(journals, random.sample(happenings, len(happenings)))


SUBMITTED = told(LAUNCH, "submitted", scheduler="local", job_id="123", array_index=None)
STARTED = told(AGENT, "attempt_started", pid=4711)
ENDED = told(AGENT, "attempt_ended", 300.0, state="COMPLETED", exit_code=0, signal=None, reason=None, wall_s=99.5)


def test_a_run_without_news_is_pending_and_nothing_else_is_known() -> None:
    assert fold([], []) == RunFacts()


def test_a_submitted_run_waits_and_has_not_started() -> None:
    known = folded(SUBMITTED)

    assert (known.state, known.scheduler, known.job_id) == (State.PENDING, "local", "123")
    assert (known.t_start, known.clock_zero, known.t_end) == (None, 100.0, None)


def test_a_started_run_is_running_since_its_agent_began() -> None:
    known = folded(SUBMITTED, STARTED)

    assert (known.state, known.t_start, known.clock_zero) == (State.RUNNING, 200.0, 200.0)


def test_an_ended_run_says_how() -> None:
    known = folded(SUBMITTED, STARTED, ENDED)

    assert (known.state, known.exit_code, known.reason) == (State.COMPLETED, 0, None)
    assert (known.t_start, known.t_end, known.wall_s) == (200.0, 300.0, 99.5)


@pytest.mark.parametrize("state", [state for state in State if state.is_final])
def test_every_final_state_is_taken_over(state: State) -> None:
    assert folded(STARTED, told(AGENT, "attempt_ended", state=state.value, reason="why")).state is state


def test_an_unknown_outcome_is_a_failure() -> None:
    assert folded(STARTED, told(AGENT, "attempt_ended", state="MELTED")).state is State.FAILED


def test_a_signal_is_the_reason_where_there_is_no_other() -> None:
    assert folded(told(AGENT, "attempt_ended", state="FAILED", signal=11)).reason == "signal 11"


@pytest.mark.parametrize(
    ("name", "state"),
    [("lost", State.LOST), ("cancelled", State.CANCELLED), ("submission_failed", State.FAILED)],
)
def test_what_others_found_out_ends_a_run_with_their_reason(name: str, state: State) -> None:
    known = folded(SUBMITTED, told(COLLECT, name, reason="sbatch: no such account"))

    assert (known.state, known.reason) == (state, "sbatch: no such account")


def test_the_agents_outcome_counts_more_than_lost_within_an_attempt() -> None:
    known = folded(STARTED, told(COLLECT, "lost", reason="?"), ENDED)

    assert (known.state, known.reason, known.t_end) == (State.COMPLETED, None, 300.0)


def test_of_a_lost_run_nobody_knows_when_it_ended() -> None:
    assert folded(STARTED, told(COLLECT, "lost", reason="?")).t_end is None


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.OUT_OF_MEMORY, State.NODE_FAIL])
def test_what_the_scheduler_says_ends_a_run_whose_agent_cannot_say_it(state: State) -> None:
    known = folded(SUBMITTED, STARTED, told(COLLECT, "ended_by_scheduler", state=state.value, reason="sacct said so"))

    assert (known.state, known.reason) == (state, "sacct said so")
    assert (known.exit_code, known.wall_s, known.t_end) == (None, None, None)  # when it was found out is not its end


def test_the_agents_outcome_counts_more_than_the_schedulers() -> None:
    known = folded(STARTED, told(COLLECT, "ended_by_scheduler", state="NODE_FAIL", reason="sacct said so"), ENDED)

    assert (known.state, known.reason, known.t_end) == (State.COMPLETED, None, 300.0)


def test_a_job_of_an_array_is_known_by_its_index() -> None:
    assert folded(told(LAUNCH, "submitted", scheduler="slurm", job_id="77", array_index=3)).array_index == 3
    assert folded(SUBMITTED).array_index is None


def test_the_agent_of_another_node_begins_and_completes_nothing_by_itself() -> None:
    begun = told(HELPER, "attempt_started", pid=1)
    done = told(HELPER, "attempt_ended", 290.0, state="COMPLETED", exit_code=0, wall_s=80.0)

    waiting, running, ended = (
        folded(SUBMITTED, begun),
        folded(STARTED, begun, done),
        folded(STARTED, begun, done, ENDED),
    )

    assert (waiting.state, running.state) == (State.PENDING, State.RUNNING)
    assert (ended.state, ended.t_end, ended.wall_s) == (State.COMPLETED, 300.0, 99.5)


def test_the_failure_of_another_nodes_agent_is_the_runs() -> None:
    oom = told(HELPER, "attempt_ended", 250.0, state="OUT_OF_MEMORY", exit_code=137)

    for known in (folded(STARTED, oom), folded(STARTED, oom, ENDED)):
        assert (known.state, known.exit_code, known.t_end) == (State.OUT_OF_MEMORY, 137, 250.0)


def test_a_later_attempt_counts_more_than_an_earlier_outcome() -> None:
    timeout = told(AGENT, "attempt_ended", 300.0, state="TIMEOUT", exit_code=1, wall_s=100.0)
    again = told(AGENT_2, "attempt_started")
    done = told(AGENT_2, "attempt_ended", 1100.0, state="COMPLETED", exit_code=0, wall_s=100.0)

    running, ended = folded(STARTED, timeout, again), folded(STARTED, timeout, again, done)

    assert (running.state, running.exit_code, running.wall_s, running.attempt) == (State.RUNNING, None, None, 2)
    assert (ended.state, ended.exit_code, ended.t_start, ended.t_end) == (State.COMPLETED, 0, 200.0, 1100.0)


def test_of_several_agents_the_first_failure_decides() -> None:
    other = JournalStart(file="1-node9-agent.jsonl", writer="agent", attempt=1, t0=201.0)
    oom = told(other, "attempt_ended", 250.0, state="OUT_OF_MEMORY", exit_code=137)
    failed = told(AGENT, "attempt_ended", 260.0, state="FAILED", exit_code=1)

    assert folded(STARTED, oom, failed).state is State.OUT_OF_MEMORY
    assert folded(STARTED, oom, ENDED).state is State.OUT_OF_MEMORY


def test_the_precision_is_what_rank_0s_probe_measured() -> None:
    measured = {"products": {"matmul": "tf32", "conv": "fp32"}, "parameters": "float32", "numerics": "emulated"}
    known = folded(
        told(RANK0, "precision", requested="tf32", **measured),
        told(RANK1, "precision", products={"matmul": "fp32"}, parameters="float32", numerics="native"),
    )

    assert known.precision_effective == "mixed(conv=fp32, matmul=tf32, parameters=float32)"
    assert known.numerics == "emulated"


@pytest.mark.parametrize("details", [{}, {"products": {}, "parameters": "float32"}, {"products": [1], "parameters": 2}])
def test_a_probe_that_says_nothing_proves_nothing(details: dict[str, Any]) -> None:
    assert folded(told(RANK0, "precision", **details)).precision_effective is None


def test_facts_are_scalars_and_the_frameworks_word_counts_unless_it_is_none() -> None:
    known = folded(
        told(AGENT, "facts", gpu_model="A100", cores=8, python="3.6", pids=[1, 2]),
        told(RANK1, "framework", framework="torch", device="cuda:1"),
        told(RANK0, "framework", framework="torch", device="cuda:0", gpu_model=None, python="3.11", cudnn=None),
    )

    assert known.facts == {
        "gpu_model": "A100",
        "cores": 8,
        "python": "3.11",
        "framework": "torch",
        "device": "cuda:0",
        "cudnn": None,
    }


def test_a_run_that_was_submitted_again_by_hand_is_in_the_job_its_agent_names() -> None:
    again = JournalStart(file="2-node2-agent.jsonl", writer="agent", attempt=2, t0=300.0)
    by_hand = told(again, "attempt_started", 300.0, job_id="77", array_index=None)

    known = folded(SUBMITTED, STARTED, ENDED, by_hand)

    assert (known.job_id, known.array_index, known.state) == ("77", None, State.RUNNING)
    assert folded(SUBMITTED, STARTED).job_id == "123"


def test_a_run_whose_submission_failed_runs_once_somebody_submits_its_script() -> None:
    refused = told(LAUNCH, "submission_failed", reason="refused")

    assert folded(refused).state is State.FAILED
    assert folded(refused, STARTED).state is State.RUNNING
