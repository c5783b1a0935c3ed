"""LSF's answers, in the shapes that its documentation and public clients show; none was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.lsf import LSF, known_of, refusals, rows, submitted

WAIT = "LSF is processing your request. Please wait ...\n"


def answer(*records: dict[str, str]) -> str:
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": list(records)}).replace("/", "\\/")


def test_the_id_is_found_behind_notices_of_the_site() -> None:
    notice = "Your job requests 12 slots per GPU.\nJob <1> was your last\n"

    assert submitted(f"{notice}Job <4242> is submitted to queue <gpu_h100>.\n") == ["4242"]
    assert submitted(f"{WAIT}Job <26238> is submitted to default queue <batch>.\n") == ["26238"]
    assert submitted("Cannot connect to LSF. Please wait ...\n") == []


def test_elements_are_told_apart_by_their_index_and_errors_are_no_jobs() -> None:
    text = answer(
        {"JOBID": "301970", "JOBINDEX": "1", "STAT": "DONE"},
        {"JOBID": "301970", "JOBINDEX": "2", "STAT": "RUN"},
        {"JOBID": "321", "JOBINDEX": "0", "STAT": "PEND"},
        {"JOBID": "999999", "ERROR": "Job <999999> is not found"},
    )

    jobs = rows(WAIT + "{ not this }\n" + text)

    assert jobs is not None
    assert [(row.number, row.index) for row in jobs] == [("301970", 1), ("301970", 2), ("321", None)]
    assert rows("No unfinished job found\n") is None
    assert LSF.queue.unknown is not None
    assert LSF.queue.unknown.findall("Job <2> is not found\nJob <3[4]> is not found\n") == ["2", "3[4]"]


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
    (row,) = rows(answer({"JOBID": "1", "JOBINDEX": "3", "STAT": "RUN", "JOB_NAME": "mine.20261121-0[3]"})) or []

    assert row.name == "mine.20261121-0"


def test_of_bkill_only_refusals_count() -> None:
    said = (
        "Job <11> is being terminated\nJob <33>: Job has already finished\nJob <66>: No matching job found\n"
        "Job <77>: User permission denied\n"
    )

    assert refusals(Answer(returncode=255, stdout=said, stderr="")) == ["Job <77>: User permission denied"]


def test_no_call_can_mean_all_jobs_of_a_user() -> None:
    with pytest.raises(HpcmlError, match="is no job id of LSF"):
        Driver(scheduler=LSF, submissions=Path("none")).cancel([Ticket(scheduler="lsf", job_id="0")])
