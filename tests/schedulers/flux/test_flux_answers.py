"""Flux's answers, as flux-core 0.88.0 was recorded to give them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcml.model.state import State
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.description import JobDraft
from hpcml.schedulers.flux import FLUX, known_of, parse_jobs, refusals, row_of, submitted
from tests.schedulers.slurm.test_slurm_script import request

DONE = {
    "jobid": "\u01929WCi5UT", "name": "arr2", "state": "INACTIVE", "result": "COMPLETED", "returncode": 0,
    "t_run": 1.0, "runtime": 0.5, "exception": {"occurred": False},
}  # fmt: skip


def failed(kind: str, note: str, **more: float) -> dict[str, Any]:
    return {
        "state": "INACTIVE",
        "result": "FAILED",
        "exception": {"occurred": True, "type": kind, "note": note},
        **more,
    }


def test_ids_are_plain_whatever_the_locale_and_stand_between_banners() -> None:
    assert submitted("Welcome\n\u01929WBE6C7\nf9WCi5UT\n") == ["f9WBE6C7", "f9WCi5UT"]


def test_a_single_job_comes_without_the_list_around_it() -> None:
    several, one = json.dumps({"jobs": [DONE]}), json.dumps(DONE)

    assert parse_jobs(f"motd {{x}}\n{several}\n") == parse_jobs(one) == [DONE]
    assert parse_jobs('{"jobs": []}') == []
    assert parse_jobs("") is None
    assert row_of(DONE).number == "9WCi5UT"


@pytest.mark.parametrize(
    ("said", "state", "words"),
    [
        (DONE, State.COMPLETED, None),
        ({"state": "SCHED", "urgency": 0}, State.PENDING, "held: flux job urgency"),
        ({"state": "DEPEND", "dependencies": ["after-success=fYN"]}, State.PENDING, "waits for after-success=fYN"),
        ({"state": "CLEANUP"}, State.RUNNING, "ending"),
        ({**DONE, "result": "FAILED", "returncode": 137}, State.FAILED, "exit status 137, as after signal 9"),
        ({**DONE, "result": "TIMEOUT", "returncode": 142}, State.TIMEOUT, None),
        ({"state": "INACTIVE", "result": "CANCELED", "returncode": -128}, State.CANCELLED, None),
        (failed("dependency", "after-success can never be satisfied"), State.CANCELLED, "its dependency cannot be met"),
        (failed("alloc", "unsatisfiable request"), State.FAILED, "alloc: unsatisfiable request"),
        (failed("preempt", "site preempts"), State.PREEMPTED, "site preempts"),
        (failed("exec", "task rank 1 on host gpu2 exited", t_run=1.0, returncode=5), State.FAILED, "host gpu2"),
    ],
)
def test_results_and_exceptions_are_what_a_run_ended_by(said: dict[str, Any], state: State, words: str | None) -> None:
    known = known_of(said)

    assert known is not None
    assert known.state is state
    assert known.was_killed == (137 in said.values() or "137" in said.values())
    assert words is None or words in (known.reason or "")


def test_a_job_that_can_never_be_placed_is_told_from_one_that_failed() -> None:
    assert row_of(failed("alloc", "unsatisfiable request: need 9")).never_placed == "unsatisfiable request: need 9"
    assert row_of(failed("exec", "no")).never_placed is None
    assert known_of({"state": "NOSUCH"}) is None


def test_of_a_cancellation_only_refusals_count() -> None:
    said = (
        "flux-cancel: ERROR: \u0192MLuHREF: job is inactive\nflux-cancel: ERROR: \u01921: unknown job id\n"
        "flux-cancel: ERROR: \u01922: Operation not permitted\n"
    )

    assert refusals(Answer(returncode=1, stdout="", stderr=said)) == ["\u01922: Operation not permitted"]


def test_jobs_of_one_call_log_beside_their_script_whatever_the_folders_are_called() -> None:
    script = Path("/x/job.logs/job.sh")
    draft = JobDraft(
        request=request(), name="n", token="", remark="", folder=script.parent, logs=script.parent, script=script,
        command=["agent"], array_size=2,
    )  # fmt: skip

    assert "--output=/x/job.logs/job-{cc}.log" in FLUX.submit(draft)
