"""What a scheduler's word means, from words that were seen on real ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcml.commands.ends.judge import ACCOUNTED_WITHIN_S, Circumstances, MissingEvent, by_scheduler
from hpcml.model.failure_causes import Cause
from hpcml.model.records import JobUsage, Known, RunRecord
from hpcml.model.state import State
from hpcml.runs.liveness import FORGOTTEN_SILENCE_S

WAITS = RunRecord(
    uid="20261121-080000-22222222",
    path="/runs/default/20261121-080000-22222222",
    experiment="default",
    name=None,
    spec_hash="0" * 16,
    state=State.PENDING,
    reason=None,
    exit_code=None,
    attempt=0,
    scheduler="slurm",
    job_id="4711",
    array_index=None,
    job_name=None,
    is_shared=False,
    submission=None,
    is_settled=True,
    cause=None,
    submitted_at="2026-11-21T08:00:00+00:00",
    t_start=None,
    t_end=None,
    wall_s=None,
    seed=0,
    precision="fp32",
    precision_effective=None,
    numerics="native",
    git_commit=None,
    git_dirty=None,
)
RUNS = replace(WAITS, state=State.RUNNING)
INTERRUPTED = replace(WAITS, state=State.CANCELLED, is_settled=False, reason="SIGTERM received")
STARTED = Circumstances(ran_as="4711")


def says(word: str, *, reason: str | None = None, live: bool = True, exit_code: str | None = None) -> Known:
    first = word.partition(" ")[0]
    state = State(first) if first in State.__members__ else State.RUNNING
    return Known(state=state, raw=word, reason=reason, is_live=live, exit_code=exit_code)


def ended(verdict: MissingEvent | None) -> tuple[str, str]:
    assert verdict is not None
    assert verdict.name == "ended_by_scheduler", verdict
    return str(verdict.details["state"]), str(verdict.details["reason"])


def test_a_job_that_was_cancelled_before_it_began_has_no_exit_code() -> None:
    about = Circumstances(was_final_before=True)

    cancelled = by_scheduler(WAITS, says("CANCELLED by 1001", reason="JobHeldUser", live=False, exit_code="0:0"), about)
    completed = by_scheduler(WAITS, says("COMPLETED", live=False, exit_code="0:0"), about)

    assert ended(cancelled) == ("CANCELLED", "slurm says CANCELLED by 1001 (JobHeldUser)")
    assert ended(completed)[1].startswith("slurm says COMPLETED, exit code 0:0; it never started")


def test_a_run_of_which_the_agent_of_one_node_was_killed_was_cancelled_by_nobody() -> None:
    about = replace(STARTED, untold=(1,))

    verdict = by_scheduler(INTERRUPTED, says("FAILED", reason="NonZeroExitCode", exit_code="9:0"), about)

    why = "slurm says FAILED (NonZeroExitCode), exit code 9:0; the agent of node 1 told no end"
    assert ended(verdict) == ("FAILED", why)
    assert verdict is not None
    assert verdict.otherwise is Cause.AGENT_KILLED
    cancelled = by_scheduler(INTERRUPTED, says("CANCELLED by 1001"), about)
    assert ended(cancelled)[0] == "CANCELLED"
    wanted = by_scheduler(INTERRUPTED, says("FAILED"), replace(about, is_cancelled=True))
    assert ended(wanted)[0] == "CANCELLED"


def test_an_element_that_has_begun_was_not_cancelled_before_it_began_whatever_the_accounting_lacks() -> None:
    lacking = Known(state=State.CANCELLED, raw="CANCELLED", is_live=False, never_began=True)
    about = replace(STARTED, was_final_before=True)

    waited = by_scheduler(WAITS, lacking, about)
    began = by_scheduler(RUNS, lacking, replace(about, quiet_s=FORGOTTEN_SILENCE_S))

    assert ended(waited)[0] == "CANCELLED"
    assert by_scheduler(RUNS, lacking, replace(about, quiet_s=1.0)) is None
    assert began is not None
    assert began.name == "lost"


GONE = Known(state=State.LOST, raw="RUNNING", reason="squeue has no such job any more", is_live=False)
LONG_QUIET = replace(STARTED, quiet_s=ACCOUNTED_WITHIN_S, was_final_before=True)


def test_a_job_of_whose_end_the_accounting_is_never_told_is_lost_in_the_end() -> None:
    verdict = by_scheduler(RUNS, GONE, LONG_QUIET)

    assert verdict is not None
    why = "slurm says RUNNING (squeue has no such job any more) and it recorded no outcome"
    assert (verdict.name, verdict.details["reason"]) == ("lost", why)
    verdict = by_scheduler(INTERRUPTED, GONE, LONG_QUIET)
    assert ended(verdict)[0] == "CANCELLED"


def test_of_a_job_that_waited_and_is_gone_nothing_is_known() -> None:
    assert by_scheduler(WAITS, GONE, LONG_QUIET) is None


@pytest.mark.parametrize("record", [RUNS, INTERRUPTED])
@pytest.mark.parametrize("changed", [{"quiet_s": ACCOUNTED_WITHIN_S - 1.0}, {"was_final_before": False}])
def test_the_accounting_is_given_time_to_hear_of_an_end(record: RunRecord, changed: dict[str, Any]) -> None:
    assert by_scheduler(record, GONE, replace(LONG_QUIET, **changed)) is None


def test_a_cancelled_job_that_is_gone_needs_no_word_of_the_accounting() -> None:
    about = replace(STARTED, is_cancelled=True, was_final_before=True, quiet_s=1.0)

    verdict = by_scheduler(RUNS, GONE, about)

    assert verdict is not None
    assert verdict.name == "cancelled"


@pytest.mark.parametrize("record", [WAITS, RUNS])
@pytest.mark.parametrize("word", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_a_job_that_goes_on_means_nothing_new(record: RunRecord, word: str) -> None:
    assert by_scheduler(record, says(word), STARTED) is None


def test_a_job_that_waits_after_it_ran_was_requeued() -> None:
    for record in (RUNS, INTERRUPTED):
        verdict = by_scheduler(record, says("PENDING", reason="BeginTime"), STARTED)
        assert verdict is not None
        assert (verdict.attempt, verdict.name, verdict.is_end) == (1, "submitted", False)
        assert verdict.details == {"why": "requeued by slurm", "by": "collect"}


def test_only_the_queue_itself_is_believed_that_a_running_job_waits_again() -> None:
    assert by_scheduler(RUNS, says("PENDING", live=False), STARTED) is None
    assert by_scheduler(WAITS, says("PENDING"), Circumstances()) is None


def test_a_run_that_was_started_by_hand_beside_its_waiting_job_was_not_requeued() -> None:
    assert by_scheduler(RUNS, says("PENDING"), Circumstances(ran_as=None)) is None
    assert by_scheduler(RUNS, says("PENDING"), Circumstances(ran_as="4712")) is None


@pytest.mark.parametrize("word", ["NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED"])
def test_the_queues_own_word_for_an_end_holds_at_once(word: str) -> None:
    state, reason = ended(by_scheduler(RUNS, says(word, exit_code="0:0"), STARTED))

    assert (state, reason) == (word, f"slurm says {word}")


def test_an_end_that_a_requeue_may_undo_is_heard_twice_where_the_accounting_says_it() -> None:
    word = says("NODE_FAIL", live=False)

    assert by_scheduler(RUNS, word, STARTED) is None
    assert ended(by_scheduler(RUNS, word, replace(STARTED, was_final_before=True)))[0] == "NODE_FAIL"


def test_a_job_that_ended_well_gets_time_to_say_so_itself() -> None:
    done = says("COMPLETED", exit_code="0:0")

    assert by_scheduler(RUNS, done, STARTED) is None
    assert ended(by_scheduler(RUNS, done, replace(STARTED, was_final_before=True)))[0] == "FAILED"


def test_a_run_that_waits_again_is_not_judged_by_its_past() -> None:
    again = replace(WAITS, attempt=1)

    assert by_scheduler(again, says("TIMEOUT", live=False), STARTED) is None
    assert ended(by_scheduler(again, says("TIMEOUT", live=True), STARTED))[0] == "TIMEOUT"


def test_why_a_run_was_interrupted_is_the_schedulers_to_say() -> None:
    state, reason = ended(by_scheduler(INTERRUPTED, says("CANCELLED by 1001"), STARTED))
    assert state == "CANCELLED"
    assert reason == "slurm says CANCELLED by 1001; SIGTERM received"
    assert ended(by_scheduler(INTERRUPTED, says("PREEMPTED"), STARTED))[0] == "PREEMPTED"


@pytest.mark.parametrize("word", ["FAILED", "COMPLETED"])
def test_a_signal_from_somebody_else_is_a_cancellation_however_the_job_ended(word: str) -> None:
    verdict = by_scheduler(INTERRUPTED, says(word), STARTED)

    assert ended(verdict)[0] == "CANCELLED"
    assert verdict is not None
    assert verdict.details["cause"] == "cancelled"


def test_an_interrupted_run_whose_job_is_forgotten_was_cancelled() -> None:
    state, reason = ended(by_scheduler(INTERRUPTED, None, Circumstances(quiet_s=1.0)))

    assert (state, reason) == ("CANCELLED", "SIGTERM received; slurm has forgotten job 4711")


@pytest.mark.parametrize("record", [WAITS, RUNS])
def test_a_forgotten_job_whose_journals_are_quiet_is_lost(record: RunRecord) -> None:
    assert by_scheduler(record, None, Circumstances(quiet_s=FORGOTTEN_SILENCE_S - 1)) is None

    verdict = by_scheduler(record, None, Circumstances(quiet_s=FORGOTTEN_SILENCE_S + 1))

    assert verdict is not None
    assert (verdict.name, verdict.attempt) == ("lost", 0)
    assert verdict.details["reason"] == "slurm has forgotten job 4711 and it recorded no outcome"


def test_a_forgotten_job_that_was_cancelled_is_cancelled() -> None:
    verdict = by_scheduler(WAITS, None, Circumstances(is_cancelled=True, quiet_s=1.0))

    assert verdict is not None
    assert verdict.name == "cancelled"


def test_a_failure_after_a_wish_to_end_is_that_wish_come_true() -> None:
    about = replace(STARTED, is_cancelled=True)

    assert ended(by_scheduler(RUNS, says("FAILED", exit_code="0:15"), about))[0] == "CANCELLED"
    assert ended(by_scheduler(RUNS, says("NODE_FAIL"), about))[0] == "NODE_FAIL"


def test_a_job_that_failed_before_its_agent_spoke_says_where_to_look() -> None:
    assert "does the node see the run directory?" in ended(by_scheduler(WAITS, says("FAILED"), Circumstances()))[1]
    assert "run directory" not in ended(by_scheduler(RUNS, says("FAILED"), STARTED))[1]
    lost = ended(by_scheduler(WAITS, says("FAILED", exit_code="120:0"), Circumstances()))[1]
    assert lost.endswith("; it never started: its log could not be written: is the disk full, or a quota used up?")
    complained = Circumstances(not_started="job.sh: line 25: /v/bin/python: No such file or directory")
    assert ended(by_scheduler(WAITS, says("FAILED"), complained))[1].endswith(
        "; it never started: job.sh: line 25: /v/bin/python: No such file or directory"
    )


@pytest.mark.parametrize(("word", "state"), [("TIMEOUT", "CANCELLED"), ("NODE_FAIL", "NODE_FAIL")])
def test_a_run_whose_turn_in_a_shared_job_never_came_did_not_use_up_its_own_time(word: str, state: str) -> None:
    verdict = by_scheduler(replace(WAITS, is_shared=True), says(word), Circumstances())

    assert ended(verdict)[0] == state
    assert "turn had not come" in ended(verdict)[1]


def test_a_run_that_waited_for_what_cannot_come_says_so() -> None:
    word = says("CANCELLED", reason="DependencyNeverSatisfied")
    about = Circumstances(never="20261121-075900-22222222 is FAILED")

    verdict = by_scheduler(WAITS, word, about)

    assert ended(verdict) == (
        "CANCELLED",
        "slurm says CANCELLED (DependencyNeverSatisfied); never ran: 20261121-075900-22222222 is FAILED",
    )
    assert verdict is not None
    assert verdict.details["cause"] == "dependency"
    by_us = by_scheduler(WAITS, word, replace(about, is_cancelled=True))
    assert "never ran" not in ended(by_us)[1]
    assert "never ran" not in ended(by_scheduler(RUNS, says("CANCELLED by 1001"), about))[1]


def test_an_agent_that_was_killed_is_the_cause_unless_something_printed_tells_another() -> None:
    word = replace(says("FAILED", exit_code="0:9"), was_killed=True)
    killed = by_scheduler(RUNS, word, STARTED)
    never_began = by_scheduler(WAITS, word, Circumstances())
    failed = by_scheduler(RUNS, says("FAILED", exit_code="1:0"), STARTED)

    assert [each and each.otherwise for each in (killed, never_began, failed)] == ["agent_killed", "unknown", "unknown"]


def test_a_run_of_several_nodes_failed_with_the_first_of_them_unless_somebody_ended_the_job() -> None:
    told = replace(
        INTERRUPTED, state=State.FAILED, scheduler="pbs", reason="node 1 (n2) ended first, with exit status 137"
    )

    failed = by_scheduler(told, Known(state=State.FAILED, raw="F", exit_code="137"), STARTED)
    deleted = by_scheduler(told, Known(state=State.CANCELLED, raw="F", reason="terminated by me"), STARTED)

    assert ended(failed) == ("FAILED", "node 1 (n2) ended first, with exit status 137")
    assert ended(deleted)[0] == "CANCELLED"


def test_what_the_scheduler_counted_of_a_job_that_it_killed_is_told() -> None:
    used = JobUsage(wall_s=37, cpu_s=2, max_memory_mb=14.3)
    known = Known(state=State.TIMEOUT, raw="F", reason="walltime exceeded", exit_code="-29", used=used)

    verdict = by_scheduler(RUNS, known, STARTED)
    shared = by_scheduler(replace(RUNS, is_shared=True), known, STARTED)

    assert verdict is not None
    counted = {name: verdict.details.get(name) for name in ("exit_status", "wall_s", "cpu_s", "max_memory_mb")}
    assert counted == {"exit_status": "-29", "wall_s": 37, "cpu_s": 2, "max_memory_mb": 14.3}
    assert shared is not None
    assert "wall_s" not in shared.details
