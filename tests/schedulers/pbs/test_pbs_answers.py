"""What PBS says, as a real server said it: the files in tests/schedulers/pbs/captures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.model.state import State
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.pbs.scheduler import PBS, known_of, parse_jobs, rows, submitted

CAPTURES = Path(__file__).resolve().parent / "captures"


def capture(name: str) -> tuple[str, str]:
    """Return stdout and stderr."""
    text = (CAPTURES / f"{name}.txt").read_text()
    _, _, rest = text.partition("--- stdout\n")
    out, _, err = rest.partition("--- stderr\n")
    return out, err


def jobs_of(name: str) -> dict[str, dict[str, str]]:
    """Return the jobs of a capture in JSON, as `qstat -f -w` would have written them."""
    jobs = json.loads(capture(name)[0])["Jobs"]
    flat = {}
    for job_id, said in jobs.items():
        parts = {key: value for key, value in said.items() if not isinstance(value, dict)}
        flat[job_id] = {key: str(value) for key, value in parts.items()}
    return flat


def test_ids_are_read_in_every_form() -> None:
    spelled = ("12", "12.isrv5.domain", "12[].isrv5", "12[3].isrv5")

    assert [PBS.number_of(text) for text in spelled] == ["12"] * 4
    assert [PBS.number_of(text) for text in ("abc", "")] == [None, None]


def test_the_id_is_found_among_a_sites_own_lines() -> None:
    assert submitted("Welcome!\nYou have 12.5 hours left\n123[].pbs01\n") == ["123[].pbs01"]
    assert submitted("123.pbs01 \nGood luck.\n") == ["123.pbs01"]
    assert submitted("") == []


def test_a_running_job_is_read_from_a_real_answer() -> None:
    (row,) = rows(capture("qstat-f-w")[0])

    assert (row.number, row.limit_s) == ("1091", 600)
    assert row.known is not None
    assert row.known.state is State.RUNNING


def test_several_jobs_are_all_read() -> None:
    found = rows(capture("qstat-multi-_f_w_5009_5010")[0])

    assert {row.number: row.known.state for row in found if row.known} == {
        "5009": State.PENDING,
        "5010": State.PENDING,
    }


def test_no_value_can_forge_an_attribute() -> None:
    text = "Job Id: 1.s\n    job_state = R\n"
    text += "    Variable_List = A=x\\n    job_state = F\\nJob Id: 2.s\n    job_state = Q\n\n"

    assert parse_jobs(text) == {
        "1.s": {"job_state": "R", "Variable_List": "A=x\\n    job_state = F\\nJob Id: 2.s"},
    }


@pytest.mark.parametrize(
    ("name", "job_id", "state", "exit_code", "reason"),
    [
        ("exit-exit0-qstat", None, State.COMPLETED, "0", None),
        ("exit-exit3-qstat", None, State.FAILED, "3", "exit status 3"),
        ("exit-selfkill-qstat", None, State.FAILED, "137", "signal 9"),
        ("walltime-term.sh-qstat", None, State.TIMEOUT, "-29", "walltime exceeded"),
        ("qdel-term.sh-qstat", None, State.CANCELLED, "0", "terminated by hpcuser@localhost"),
        ("qdel-trapexit.sh-qstat", None, State.CANCELLED, "271", "terminated by hpcuser@localhost"),
        ("dep-afterok-of-failed", None, State.CANCELLED, None, "its dependency cannot be met"),
        ("dep-unknown-qstat", None, State.CANCELLED, None, "its dependency cannot be met"),
        ("never-ngpus16-qstat", None, State.PENDING, None, "Can Never Run: Insufficient amount of resource: ngpus"),
        ("never-3nodes-qstat", None, State.PENDING, None, "Can Never Run: Not enough total nodes available"),
        ("multinode-qstat", None, State.COMPLETED, "0", None),
        ("momkill-qstat", "2002.pbs01", State.RUNNING, None, None),
        ("arr-final-xt-json", "1092[0].pbs01", State.COMPLETED, "0", None),
        ("arr-final-xt-json", "1092[2].pbs01", State.FAILED, "2", "exit status 2"),
        ("arr-final-xt-json", "1092[8].pbs01", State.CANCELLED, None, "deleted before it ran"),
        ("arr-qstat-tf-json", "1092[0].pbs01", State.RUNNING, None, None),
        ("arr-qstat-tf-json", "1092[5].pbs01", State.PENDING, None, None),
    ],
)
def test_every_end_is_judged_as_it_was(
    name: str, job_id: str | None, state: State, exit_code: str | None, reason: str | None
) -> None:
    jobs = jobs_of(name)
    known = known_of(jobs[job_id or next(iter(jobs))])

    assert known is not None
    assert (known.state, known.exit_code, known.was_killed) == (state, exit_code, exit_code == "137")
    assert (known.reason is None) if reason is None else (reason in (known.reason or ""))


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({"Exit_status": "-4", "comment": "and failed"}, State.NODE_FAIL),
        ({"Exit_status": "-27", "comment": "and exceeded resource mem"}, State.OUT_OF_MEMORY),
        ({"Exit_status": "271", "comment": "and exceeded resource walltime"}, State.TIMEOUT),
        ({"Exit_status": "-1", "comment": "and failed"}, State.FAILED),
        ({"Exit_status": "265", "comment": "and failed"}, State.FAILED),
        ({"Exit_status": "0", "substate": "91"}, State.CANCELLED),
        ({"Exit_status": "many"}, State.FAILED),
        ({}, State.CANCELLED),
    ],
)
def test_the_verdict_looks_at_more_than_the_exit_status(said: dict[str, str], state: State) -> None:
    known = known_of({"job_state": "F", "run_count": "1", "substate": "93", **said})

    assert known is not None
    assert known.state is state


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            {"comment": "job held, too many failed attempts to run"},
            "job held, too many failed attempts to run: does",
        ),
        ({}, "held after failed attempts to run: does the node see the folder"),  # the server forgot it in a restart
    ],
)
def test_a_job_that_the_node_could_not_start_waits_with_a_hint(said: dict[str, str], reason: str) -> None:
    held = {"job_state": "H", "Hold_Types": "s", "substate": "20", "run_count": "21", "Exit_status": "-3"}
    known = known_of({**held, **said})

    assert known is not None
    assert (known.state, known.exit_code) == (State.PENDING, None)
    assert (known.reason or "").startswith(reason)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"job_state": "Q", "Hold_Types": "u"}, "held: qrls releases it"),  # of an array that is held
        ({"job_state": "H", "Hold_Types": "u"}, "held: qrls releases it"),
        (
            {"job_state": "Q", "Hold_Types": "ou", "comment": "Job held by root on Fri Nov 27 12:06:20 2026"},
            "Job held by root on Fri Nov 27 12:06:20 2026: an operator of PBS has to release it",
        ),
        (
            {"job_state": "H", "Hold_Types": "s", "comment": "no budget left"},  # a hook's
            "no budget left: PBS itself or an administrator has to release it",
        ),
        (
            {"job_state": "Q", "Hold_Types": "s", "depend": "afterok:1.pbs01@pbs01"},
            "waits for other jobs (depend=afterok:1.pbs01@pbs01)",
        ),
        (
            {"job_state": "W", "Hold_Types": "n", "Execution_Time": "Fri Nov 27 23:59:00 2026"},
            "waits until Fri Nov 27 23:59:00 2026",
        ),
        ({"job_state": "Q", "Hold_Types": "n", "comment": "Not Running: Queue not started."}, None),
    ],
)
def test_a_job_that_is_held_says_who_releases_it(said: dict[str, str], reason: str | None) -> None:
    known = known_of(said)  # as recorded from PBS 23.06.06

    assert known is not None
    assert known.state is State.PENDING
    assert known.reason == (reason or said["comment"])
    assert known.is_stuck == ("held" in known.reason or "release it" in known.reason)


def test_every_letter_of_pbs_has_a_state_and_others_have_none() -> None:
    states = {letter: known_of({"job_state": letter}) for letter in "QHWTMRSUBEFX"}

    assert all(states.values())
    assert known_of({"job_state": "C"}) is None
    assert known_of({}) is None


def test_an_expected_start_is_written_as_iso_8601() -> None:
    known = known_of({"job_state": "Q", "estimated.start_time": "Sat Nov 21 04:53:44 2026"})
    odd = known_of({"job_state": "Q", "estimated.start_time": "UNKNOWN"})

    assert known is not None
    assert known.expected_start == "2026-11-21T04:53:44"
    assert odd is not None
    assert odd.expected_start is None


def test_what_pbs_does_not_know_is_read_from_its_complaints() -> None:
    assert PBS.queue.unknown is not None
    for name, numbers in (("qstat-unknown", ["999999"]), ("qstat-finished-nox", ["1"]), ("serverdown-qstat", [])):
        found = [next(filter(None, match.groups())) for match in PBS.queue.unknown.finditer(capture(name)[1])]
        assert [PBS.number_of(text) for text in found] == numbers


def test_complaints_become_one_line_without_the_usage_text() -> None:
    def one_line(text: str) -> str:
        return PBS.words(Answer(returncode=1, stdout="", stderr=text))

    assert one_line(capture("name-space")[1]) == "qsub: illegal -N value"
    assert one_line(capture("hook-reject")[1]) == ("qsub: Project (-A) is mandatory.; See https://example.invalid/docs")
    assert one_line(capture("serverdown-qsub")[1]).startswith("Connection refused; qsub: cannot connect to server")
    assert one_line("qsub: *****\nRefused by the site.\nSee https://site\n*****\n") == (
        "Refused by the site.; See https://site"  # a hook of OpenPBS 23.06.06
    )
    assert one_line("") == "exit status 1 and not a word"
