"""LSF's answers, in the shapes that its documentation and public clients show; none was recorded."""

from __future__ import annotations

import json

import pytest

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.lsf import submission
from hpcml.schedulers.lsf.answers import (
    find_submitted_id,
    is_ours,
    known_of,
    parse_history,
    parse_jobs,
    parse_unknown,
    refusals_of_kill,
)
from hpcml.schedulers.lsf.query import key_of
from hpcml.schedulers.lsf.site import lsf_site

WAIT = "LSF is processing your request. Please wait ...\n"


def answer(*records: dict[str, str]) -> str:
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": list(records)}).replace("/", "\\/")


def test_the_id_is_found_behind_notices_of_the_site() -> None:
    notice = "Your job requests 12 slots per GPU.\nJob <1> was your last\n"

    assert find_submitted_id(f"{notice}Job <4242> is submitted to queue <gpu_h100>.\n") == "4242"
    assert find_submitted_id(f"{WAIT}Job <26238> is submitted to default queue <batch>.\n") == "26238"
    assert find_submitted_id("Cannot connect to LSF. Please wait ...\n") is None


def test_elements_are_told_apart_by_their_index_and_errors_are_no_jobs() -> None:
    text = answer(
        {"JOBID": "301970", "JOBINDEX": "1", "STAT": "DONE"},
        {"JOBID": "301970", "JOBINDEX": "2", "STAT": "RUN"},
        {"JOBID": "321", "JOBINDEX": "0", "STAT": "PEND"},
        {"JOBID": "999999", "ERROR": "Job <999999> is not found"},
    )

    jobs = parse_jobs(WAIT + "{ not this }\n" + text)

    assert jobs is not None
    assert list(jobs) == [("301970", 1), ("301970", 2), ("321", None)]
    assert parse_jobs("No unfinished job found\n") is None
    assert parse_unknown("Job <2> is not found\nJob <3[4]> is not found\n") == {"2", "3[4]"}


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        ({"STAT": "PEND", "PEND_REASON": "New job is waiting for scheduling;"}, State.PENDING, "New job is waiting"),
        ({"STAT": "PSUSP"}, State.PENDING, "suspended before it began: bresume lets it start"),
        ({"STAT": "PSUSP", "PEND_REASON": "The job was suspended by the user while pending;"}, State.PENDING,
         "suspended by the user while pending: bresume"),
        ({"STAT": "PROV"}, State.PENDING, "its host is being prepared"),
        ({"STAT": "SSUSP"}, State.RUNNING, "suspended by LSF"),
        ({"STAT": "USUSP"}, State.RUNNING, "suspended by its owner"),
        ({"STAT": "UNKWN"}, State.RUNNING, "lost sight"),
        ({"STAT": "ZOMBI"}, State.NODE_FAIL, "may still run"),
        ({"STAT": "POST_ERR"}, State.COMPLETED, None),
        ({"STAT": "EXIT", "EXIT_CODE": "140", "EXIT_REASON": "TERM_RUNLIMIT: job"}, State.TIMEOUT, "TERM_RUN"),
        ({"STAT": "EXIT", "EXIT_CODE": "137", "EXIT_REASON": "TERM_MEMLIMIT: job"}, State.OUT_OF_MEMORY, "TERM_MEM"),
        ({"STAT": "EXIT", "EXIT_REASON": "TERM_OWNER: job killed by owner"}, State.CANCELLED, "TERM_OWNER"),
        ({"STAT": "EXIT", "EXIT_CODE": "7"}, State.FAILED, "exit status 7"),
        ({"STAT": "EXIT", "EXIT_CODE": "137"}, State.FAILED, "as after signal 9"),
        ({"STAT": "EXIT"}, State.CANCELLED, "ended before it ran"),
    ],
)  # fmt: skip
def test_every_state_means_something_and_none_is_taken_for_success(
    said: dict[str, str], state: State, reason: str | None
) -> None:
    known = known_of(said)

    assert known is not None
    assert known.state is state
    assert known.was_killed == (137 in said.values() or "137" in said.values())
    assert (reason is None and known.reason is None) or (reason or "") in (known.reason or "")


def test_a_state_that_lsf_does_not_have_means_nothing() -> None:
    assert known_of({"STAT": "BLOCKED"}) is None


def test_what_a_job_used_is_read_in_both_forms() -> None:
    known = known_of({"STAT": "DONE", "RUN_TIME": "16038 second(s)", "CPU_USED": "59:32:51", "MAX_MEM": "40.8 Gbytes"})

    assert known is not None
    assert known.used is not None
    assert (known.used.wall_s, known.used.cpu_s, known.used.max_memory_mb) == (16038.0, 214371.0, 41779.2)


def test_a_name_is_compared_without_the_index_of_its_element() -> None:
    assert is_ours({"JOB_NAME": "mine.20261121-083015-222abcde-0[3]"}, "mine.20261121-083015-222abcde-0")
    assert not is_ours({"JOB_NAME": "other"}, "mine")


def test_the_event_logs_tell_of_an_end_that_bjobs_has_forgotten() -> None:
    text = (
        "Mon May  6 22:58:03: Exited with exit code 140. The CPU time used is 3601.2 seconds;\n"
        "Mon May  6 22:58:03: Completed <exit>; TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n"
    )

    known = parse_history(text)

    assert known is not None
    assert (known.state, known.exit_code, known.is_live) == (State.TIMEOUT, "140", False)
    assert parse_history("Mon May  6 21:58:03: Dispatched to <ebi6-054>;\n") is None


def test_what_a_script_says_is_no_end_in_the_event_logs() -> None:
    text = (
        "Job <8>, Job Name <x>, Command <#!/bin/bash; echo a: Done successfully>\n"
        "Mon May  6 22:58:03: Exited with exit code 3. The CPU time used is 1.2 seconds;\n"
        "Mon May  6 22:58:03: Completed <exit>;\n"
    )

    known = parse_history(text)

    assert known is not None
    assert (known.state, known.exit_code) == (State.FAILED, "3")
    assert parse_history(text.splitlines()[0]) is None


def test_of_bkill_only_refusals_count() -> None:
    said = (
        "Job <11> is being terminated\nJob <33>: Job has already finished\nJob <66>: No matching job found\n"
        "Job <77>: User permission denied\n"
    )

    assert refusals_of_kill(said) == ["Job <77>: User permission denied"]


def test_no_call_can_mean_all_jobs_of_a_user() -> None:
    with pytest.raises(HpcmlError, match="is no job id of LSF"):
        key_of(Ticket(scheduler="lsf", job_id="0"))
    with pytest.raises(AssertionError):
        submission.kill([])
    with pytest.raises(AssertionError):
        submission.kill(["0"])


def test_a_site_is_read_though_it_says_more() -> None:
    site = lsf_site("hello\nbatch^Open:Active^1440.0^-\nold^Closed:Inact^-^-\n", "gpu1^8^4\ngpu2^8^4\nlogin^-^-\n", "")

    assert [(queue.name, queue.max_walltime_s, queue.closed) for queue in site.queues] == [
        ("batch", 86400, None),
        ("old", None, "was Closed:Inact when asked"),
    ]
    assert [(kind.count, kind.cores, kind.gpus) for kind in site.queues[0].kinds] == [(2, 8, 4)]
