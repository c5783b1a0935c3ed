from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.model.failure_causes import Cause
from hpcml.model.state import State
from hpcml.runs.state import DECISIVE
from hpcml.store.facts import Happening, JournalStart, RunFacts, fold

LAUNCH = JournalStart(file="0-login1-launch.jsonl", writer="launch", attempt=1, t0=100.0)
AGENT = JournalStart(file="1-node7-agent.jsonl", writer="agent", attempt=1, t0=200.0)
RANK0 = JournalStart(file="1-node7-rank0.jsonl", writer="rank0", attempt=1, t0=205.0)
RANK1 = JournalStart(file="1-node7-rank1.jsonl", writer="rank1", attempt=1, t0=204.0)
HELPER = JournalStart(file="1-node8-agent1.jsonl", writer="agent1", attempt=1, t0=201.0)
COLLECT = JournalStart(file="1-login1-collect.jsonl", writer="collect", attempt=1, t0=900.0)
WAITS = JournalStart(file="2-node7-agent.jsonl", writer="agent", attempt=2, t0=301.0)  # what queues the run again
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
    assert (ended.state, ended.exit_code, ended.t_start, ended.t_end) == (State.COMPLETED, 0, 1000.0, 1100.0)


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


def test_a_writer_that_names_the_precision_itself_is_believed() -> None:
    known = folded(told(RANK0, "precision", requested="tf32", effective="tf32"))

    assert (known.precision_effective, known.facts["precision_evidence"]) == ("tf32", "probed")


def _window(form: str, step: int = 2) -> dict[str, Any]:
    rows = [{"format": form, "phase": phase, "layer": "fc", "flops": 2.0} for phase in ("forward", "backward")]
    return {"framework": "torch", "window": 0, "step": step, "rows": rows, "unknown": [], "seconds": 0.01}


PROBE = {"requested": "tf32", "products": {"matmul": "tf32"}, "parameters": "float32", "numerics": "emulated"}
HELLO = {"framework": "torch", "how": "client", "version": "2.13"}


def test_what_a_program_was_seen_to_do_goes_before_its_probe_which_stays_beside_it() -> None:
    known = folded(
        told(RANK0, "precision", **PROBE),
        told(RANK0, "precision_observer", **HELLO),
        told(RANK0, "precision_observed", **_window("fp32")),
    )

    assert known.precision_effective == "not used(fp32)"
    assert known.numerics == "emulated"
    assert known.facts == {"precision_evidence": "observed", "precision_probed": "tf32"}


def test_all_ranks_and_windows_count_whatever_the_order_of_reading() -> None:
    events = [
        told(RANK0, "precision", **PROBE),
        told(RANK0, "precision_observed", **_window("tf32")),
        told(RANK1, "precision_observed", **_window("fp32")),
        told(RANK0, "precision_observed", **_window("tf32", step=900)),
    ]

    found = {folded(*order).precision_effective for order in itertools.permutations(events)}

    assert found == {"mixed(67 % tf32, 33 % fp32: fc)"}


def test_how_far_a_program_was_observed_is_told_of_the_attempt_that_was_observed_least() -> None:
    events = [
        told(RANK0, "precision_observed", **_window("tf32")),
        told(RANK0, "precision_observed", **_window("tf32", step=180)),
        told(RANK0, "precision_observer_closed", framework="torch", steps=300),
        told(RANK1, "precision_observed", **_window("tf32")),
        told(RANK1, "precision_observer_closed", framework="torch", steps=300),
    ]

    found = [folded(*order).facts for order in itertools.permutations(events)]

    assert {(facts["precision_observed_to_step"], facts["precision_steps"]) for facts in found} == {(180, 300)}
    assert "precision_steps" not in folded(*events[:2]).facts  # it was killed: nobody counted


def test_an_observer_that_saw_no_step_leaves_it_unknown() -> None:
    known = folded(told(RANK0, "precision", **PROBE), told(RANK0, "precision_observer", **HELLO))

    assert (known.precision_effective, known.facts["precision_probed"]) == ("unknown", "tf32")


def test_a_window_that_is_damaged_is_passed_over() -> None:
    damaged = {**_window("fp32"), "rows": [{"format": 7}]}
    known = folded(told(RANK0, "precision", **PROBE), told(RANK0, "precision_observed", **damaged))

    assert known.precision_effective == "tf32"


def test_a_program_that_was_to_be_observed_and_was_not_says_so() -> None:
    begun = [told(AGENT, "attempt_started")]

    def effective(*more: Happening, is_observed: bool) -> str | None:
        return fold([AGENT, RANK0], [*begun, *more], requested="tf32", is_observed=is_observed).precision_effective

    assert effective(is_observed=True) == "not observed"
    assert effective(is_observed=False) is None
    assert effective(told(RANK0, "precision", **PROBE), is_observed=True) == "tf32"  # and its evidence is a probe
    assert effective(told(RANK0, "precision_observed", **_window("tf32")), is_observed=True) == "tf32"
    assert fold([], [], requested="tf32", is_observed=True).precision_effective is None  # it has not begun


def test_a_program_that_nobody_probed_is_what_it_was_seen_to_do() -> None:
    window = _window("tf32")
    for row in window["rows"]:
        row["emulated"] = True
    known = fold([AGENT, RANK0], [told(RANK0, "precision_observed", **window)], requested="own")

    assert (known.precision_effective, known.numerics) == ("tf32", "emulated")


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


def test_a_run_that_went_on_from_a_checkpoint_took_the_time_of_all_its_attempts() -> None:
    left = told(AGENT, "attempt_ended", 300.0, state="TIMEOUT", exit_code=75, wall_s=90.0, checkpointed=True)
    done = told(AGENT_2, "attempt_ended", 1100.0, state="COMPLETED", exit_code=0, wall_s=80.0)

    waiting = folded(STARTED, left, told(WAITS, "submitted", 301.0, why="left at a checkpoint", by="agent"))
    running = folded(STARTED, left, told(AGENT_2, "attempt_started"))
    ended = folded(STARTED, left, told(AGENT_2, "attempt_started"), done)

    assert (waiting.state, waiting.reason, waiting.attempt) == (State.PENDING, "left at a checkpoint", 2)
    assert (waiting.t_start, waiting.t_end, waiting.wall_s, waiting.exit_code) == (200.0, None, None, None)
    assert (running.state, running.t_start, running.wall_s) == (State.RUNNING, 200.0, None)
    assert (ended.t_start, ended.t_end, ended.wall_s, ended.exit_code) == (200.0, 1100.0, 170.0, 0)


def test_an_attempt_that_began_anew_counts_alone() -> None:
    failed = told(AGENT, "attempt_ended", 300.0, state="FAILED", exit_code=1, wall_s=90.0)
    done = told(AGENT_2, "attempt_ended", 1100.0, state="COMPLETED", exit_code=0, wall_s=80.0)

    waiting = folded(STARTED, failed, told(WAITS, "submitted", 301.0, why="node_failure", by="retry"))
    ended = folded(STARTED, failed, told(AGENT_2, "attempt_started"), done)

    assert (waiting.t_start, waiting.t_end, waiting.wall_s) == (None, None, None)
    assert (ended.t_start, ended.t_end, ended.wall_s) == (1000.0, 1100.0, 80.0)
    assert ended.clock_zero == waiting.clock_zero == 200.0  # events and curves of all attempts are on one clock


def test_nobody_knows_how_long_a_run_took_that_goes_on_from_an_attempt_without_an_end() -> None:
    saved = told(RANK0, "checkpoint", 250.0, path="checkpoints/1.pt", step=100)
    died = told(COLLECT, "ended_by_scheduler", state="NODE_FAIL", raw="NODE_FAIL", reason="sacct said so")
    done = told(AGENT_2, "attempt_ended", 1100.0, state="COMPLETED", exit_code=0, wall_s=80.0)

    known = folded(STARTED, saved, died, told(AGENT_2, "attempt_started"), done)

    assert (known.state, known.t_start, known.t_end, known.wall_s) == (State.COMPLETED, 200.0, 1100.0, None)


def test_an_attempt_that_never_started_hides_neither_the_checkpoint_nor_the_time_before_it() -> None:
    left = told(AGENT, "attempt_ended", 300.0, state="TIMEOUT", exit_code=75, wall_s=90.0, checkpointed=True)
    waits = told(WAITS, "submitted", 301.0, why="left at a checkpoint")
    taken_out = told(replace(COLLECT, attempt=2, file="2-login1-collect.jsonl"), "cancelled", reason="cancelled")
    third = replace(AGENT_2, attempt=3, file="3-node8-agent.jsonl", t0=2000.0)
    done = told(third, "attempt_ended", 2100.0, state="COMPLETED", exit_code=0, wall_s=80.0)

    cancelled = folded(STARTED, left, waits, taken_out)
    ended = folded(STARTED, left, waits, taken_out, told(third, "attempt_started"), done)

    assert (cancelled.state, cancelled.t_start, cancelled.t_end, cancelled.wall_s) == (
        State.CANCELLED,
        200.0,
        None,
        90.0,
    )
    assert (ended.t_start, ended.wall_s) == (200.0, 170.0)


INTERRUPTED = told(
    AGENT, "attempt_interrupted", 280.0, state="CANCELLED", exit_code=143, signal=15, reason="SIGTERM", wall_s=70.0
)


def test_an_end_by_a_signal_from_outside_is_not_settled_before_the_scheduler_has_spoken() -> None:
    shown = folded(SUBMITTED, STARTED, INTERRUPTED)
    said = told(COLLECT, "ended_by_scheduler", state="PREEMPTED", raw="PREEMPTED", reason="slurm says PREEMPTED")
    settled = folded(SUBMITTED, STARTED, INTERRUPTED, said)

    assert (shown.state, shown.is_settled, shown.cause, shown.reason) == (State.CANCELLED, False, None, "SIGTERM")
    assert (settled.state, settled.is_settled, settled.cause) == (State.PREEMPTED, True, Cause.PREEMPTION)
    assert settled.reason == "slurm says PREEMPTED"
    for known in (shown, settled):  # what the agent saw stays known, whoever says why
        assert (known.exit_code, known.t_end, known.wall_s) == (143, 280.0, 70.0)


def test_a_run_that_its_scheduler_put_back_into_the_queue_waits_again() -> None:
    requeued = told(
        replace(COLLECT, attempt=2, file="2-login1-collect.jsonl"), "submitted", 900.0, why="requeued by slurm"
    )

    known = folded(SUBMITTED, STARTED, INTERRUPTED, requeued)

    assert (known.state, known.is_settled, known.reason) == (State.PENDING, True, "requeued by slurm")
    assert (known.job_id, known.scheduler, known.attempt) == ("123", "local", 2)  # the earlier ticket holds


@pytest.mark.parametrize(
    ("name", "details", "cause"),
    [
        ("attempt_ended", {"state": "COMPLETED"}, None),
        ("attempt_ended", {"state": "FAILED"}, Cause.UNKNOWN),
        ("attempt_ended", {"state": "FAILED", "cause": "gpu_fault"}, Cause.GPU_FAULT),
        ("attempt_ended", {"state": "FAILED", "cause": "a word of a newer hpcml"}, Cause.UNKNOWN),
        ("attempt_ended", {"state": "TIMEOUT"}, Cause.TIME_LIMIT),
        ("attempt_ended", {"state": "OUT_OF_MEMORY"}, Cause.UNKNOWN),  # of the host or of the GPU?
        ("ended_by_scheduler", {"state": "NODE_FAIL", "cause": "node_failure"}, Cause.NODE_FAILURE),
        ("ended_by_scheduler", {"state": "CANCELLED", "raw": None}, Cause.CANCELLED),
        ("cancelled", {}, Cause.CANCELLED),
        ("lost", {}, Cause.UNKNOWN),
        ("submission_failed", {"reason": "no such account"}, Cause.SUBMISSION),
        ("submission_failed", {"state": "TIMEOUT"}, Cause.SUBMISSION),
        ("attempt_started", {}, None),
        ("submitted", {}, None),
    ],
)
def test_the_cause_is_of_the_event_that_decides(name: str, details: dict[str, Any], cause: Cause | None) -> None:
    assert folded(told(COLLECT, name, **details)).cause == cause


def test_a_requeue_that_failed_leaves_what_the_attempt_before_it_was() -> None:
    left = told(AGENT, "attempt_ended", 300.0, state="TIMEOUT", exit_code=75, wall_s=90.0, checkpointed=True)
    waits = told(WAITS, "submitted", 301.0, why="left at a checkpoint", by="agent")
    failed = told(WAITS, "submission_failed", 302.0, 1, state="TIMEOUT", reason="qsub: over your limit")

    known = folded(STARTED, left, waits, failed)

    assert (known.state, known.reason, known.wall_s) == (State.TIMEOUT, "qsub: over your limit", 90.0)


def test_the_job_is_the_one_that_the_latest_attempt_names_and_what_all_say_of_it_adds_up() -> None:
    array = {"job_id": "77", "array_index": 3}
    first = told(LAUNCH, "submitted", scheduler="slurm", **array, job_name="sweep.s-1", pack="s-1/3")
    agent = told(AGENT, "attempt_started", 150.0, **array, job_name=None, pack=None)
    again = told(WAITS, "submitted", 301.0, scheduler="slurm", job_id="99", job_name="sweep.u-r1", pack=None)

    in_first, in_second = folded(first, agent), folded(first, agent, again)

    assert (in_first.job_id, in_first.array_index, in_first.job_name, in_first.is_shared) == (
        "77",
        3,
        "sweep.s-1",
        True,
    )
    assert (in_second.job_id, in_second.array_index, in_second.job_name) == ("99", None, "sweep.u-r1")
    assert not in_second.is_shared


def test_a_login_nodes_clock_that_is_ahead_does_not_hide_the_job_that_the_agent_is_in() -> None:
    submitted = told(LAUNCH, "submitted", 5000.0, scheduler="slurm", job_id="77")

    assert folded(submitted, told(AGENT, "attempt_started", 200.0, job_id="78")).job_id == "78"


@st.composite
def happenings(
    draw: st.DrawFn, *, writers: Sequence[str] = ("launch", "agent", "agent1", "rank0", "collect")
) -> list[Happening]:
    """Anything that up to four attempts' journals might say, sensible or not."""
    told_of = []
    ends = [state.value for state in State if state.is_final]
    for number in range(draw(st.integers(1, 12))):
        attempt, writer = draw(st.integers(0, 3)), draw(st.sampled_from(writers))
        journal = JournalStart(file=f"{attempt}-{writer}", writer=writer, attempt=attempt, t0=100.0 * attempt)
        details: dict[str, Any] = {"state": draw(st.sampled_from(ends)), "wall_s": draw(st.integers(0, 9))}
        details |= {"job_id": draw(st.sampled_from([None, "1", "2"])), "checkpointed": draw(st.booleans())}
        details |= {"scheduler": "slurm", "job_name": draw(st.sampled_from([None, "a"])), "exit_code": number}
        name = draw(st.sampled_from([*DECISIVE, "checkpoint"]))
        told_of.append(told(journal, name, draw(st.floats(1, 1000)), number, **details))
    return told_of


def folded_as_given(of: Sequence[Happening]) -> RunFacts:
    return fold(list({happening.journal.file: happening.journal for happening in of}.values()), of)


@given(happenings(), st.randoms())
def test_the_order_in_which_journals_are_found_does_not_matter(of: list[Happening], rng: random.Random) -> None:
    assert folded_as_given(rng.sample(of, len(of))) == folded_as_given(of)


@given(happenings(writers=("launch", "agent", "rank0", "collect")), st.randoms())
def test_late_news_never_turns_time_back(of: list[Happening], rng: random.Random) -> None:
    told_late = rng.sample(of, len(of))
    for count in range(1, len(of)):
        before, after = folded_as_given(told_late[:count]), folded_as_given(told_late[: count + 1])
        decided = max((rank(happening) for happening in told_late[:count]), default=NOTHING)
        late = rank(told_late[count])
        if late < decided:
            assert verdict(after) == verdict(before)
        if before.state.is_final and late[0] == decided[0] and decided[1] >= DECISIVE["attempt_interrupted"]:
            assert after.state.is_final
            assert after.is_settled >= before.is_settled


NOTHING = (-1, -1)


def rank(happening: Happening) -> tuple[int, int]:
    return (happening.journal.attempt, DECISIVE[happening.name]) if happening.name in DECISIVE else NOTHING


def verdict(known: RunFacts) -> tuple[object, ...]:
    return (known.state, known.is_settled, known.cause, known.reason)


def test_places_that_runs_share_and_that_changed_are_one_fact_of_all_attempts() -> None:
    first = told(AGENT, "shared_changed", 250.0, paths=["mine/data", "/home/me/out.csv"])
    later = told(AGENT_2, "shared_changed", 1100.0, paths=["mine/data"])

    assert folded(STARTED, first, later).facts == {"changed_outside": "/home/me/out.csv, mine/data"}
    assert folded(STARTED, told(AGENT, "shared_changed", paths="mine/data")).facts == {}
