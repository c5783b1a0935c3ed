"""Wrappers of a site that hide that a scheduler did not answer: by their exit status 0, or with words of their own.

A job must not be taken for one that is not there then: it would be submitted again, or called LOST. The programs are
scripts that say what Slurm's and PBS's own do when their server is away (recorded), by exit status 0.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.schedulers.batches import own_batch
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.contract import Batch, Ticket
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.pbs.scheduler import PBS
from hpcml.schedulers.slurm import SLURM
from tests.schedulers.jobs import write_job
from tests.schedulers.slurm.as_user import CONF

NAME = "default.20261121-083015-222abcde"
SLURM_AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
MASKED = {
    "error-on-stderr": f"echo '{SLURM_AWAY}' >&2",
    "error-on-stdout": f"echo '{SLURM_AWAY}'",
    "page": "echo '<html><h1>502 Bad Gateway</h1></html>'",
    "noise": r"printf '\377\000\001'",
}
TICKET = Ticket(scheduler="slurm", job_id="4711", array_index=None, job_name=NAME)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(scheduler=SLURM, submissions=tmp_path / "submissions", ask_timeout_s=20.0)


@pytest.fixture
def batch(driver: Driver, tmp_path: Path) -> Batch:
    return own_batch(write_job(driver, CONF, tmp_path, "cluster=testslurm", "workload.command=[true]"))


def write(folder: Path, name: str, line: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{line}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("line", MASKED.values(), ids=MASKED)
def test_a_squeue_that_hides_its_failure_proves_nothing(
    programs: Path, driver: Driver, batch: Batch, line: str
) -> None:
    write(programs, "squeue", line)
    write(programs, "sacct", "exit 0")

    with pytest.raises(NoAnswerError, match="squeue"):
        driver.find(batch)
    answers = driver.query([TICKET])

    assert answers.known == {}
    assert answers.unanswered[TICKET].startswith("Slurm cannot be asked: squeue: ")
    assert not answers.has_queue


def test_a_queue_that_told_of_all_jobs_was_not_silent_though_the_accounting_is(programs: Path, driver: Driver) -> None:
    write(programs, "squeue", rf"printf '4711\037FAILED\037None\037N/A\037\037\037{NAME}\n'")
    write(programs, "sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")

    answers = driver.query([TICKET])

    assert (answers.known[TICKET].raw, answers.trouble) == ("FAILED", "")


def test_an_accounting_that_hides_its_failure_proves_nothing(programs: Path, driver: Driver, batch: Batch) -> None:
    write(programs, "squeue", "exit 0")
    write(programs, "sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2")

    with pytest.raises(NoAnswerError, match="Problem talking to the database"):
        driver.find(batch)
    answers = driver.query([TICKET])
    assert list(answers.unanswered) == [TICKET]
    assert answers.unanswered[TICKET].startswith(
        "gone from the queue, and the history, which knows the end, is silent: Slurm cannot be asked: sacct: "
    )
    assert answers.has_queue


def test_an_empty_queue_is_an_answer(programs: Path, driver: Driver, batch: Batch) -> None:
    write(programs, "sacct", "exit 0")
    write(programs, "squeue", "exit 0")
    assert driver.find(batch) is None
    assert driver.query([TICKET]).unanswered == {}


@pytest.mark.parametrize(
    "line", ["echo 'Connection refused\nqselect: cannot connect to server pbs01 (errno=15010)' >&2", MASKED["page"]]
)
def test_a_qselect_that_hides_its_failure_proves_nothing(
    programs: Path, driver: Driver, batch: Batch, line: str
) -> None:
    write(programs, "qselect", line)

    with pytest.raises(NoAnswerError, match="PBS cannot be asked"):
        replace(driver, scheduler=PBS).find(batch)
