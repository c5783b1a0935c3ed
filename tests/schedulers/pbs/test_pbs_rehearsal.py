"""What PBS is asked before a submission: its queue; on the double, whose ``qstat -Q`` answers as a recorded one did."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Hpcml
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.site import SALOMON, user_of


@pytest.fixture
def hpcml(pbs: PbsDouble, folder: Path) -> Hpcml:
    return user_of(pbs, folder)


def run(hpcml: Hpcml, *words: str) -> subprocess.CompletedProcess[str]:
    return hpcml("run", *SALOMON, "--detach", "workload.command=true", *words)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"queue_disabled": True}, "resources.partition=qprod: this queue takes no jobs now"),
        ({"no_queues": ["qprod"]}, "resources.partition=qprod: qstat: Unknown queue destination qprod"),
    ],
)
def test_what_the_queue_does_not_take_is_refused_and_nothing_is_written(
    hpcml: Hpcml, pbs: PbsDouble, faults: dict[str, Any], says: str
) -> None:
    pbs.set(**faults)

    done = run(hpcml)

    assert done.returncode == 3
    errors = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert len(errors) == 1
    assert says in errors[0]
    assert errors[0].endswith("nothing was written or queued")
    assert "qsub" not in pbs.calls()
    assert hpcml.runs() == []
    assert not list(hpcml.home.glob("runs/*"))


def test_a_stopped_queue_is_said_and_takes_the_job(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(queue_stopped=True)

    done = run(hpcml)

    assert done.returncode == 0
    assert "queue qprod is stopped: no job starts in it now" in " ".join(done.stderr.split())
    assert len(hpcml.runs()) == 1


def test_a_server_that_does_not_answer_this_is_said_and_stops_nothing(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(fail_next={"qstat": 1})

    done = run(hpcml)

    assert done.returncode == 0, done.stderr
    assert "PBS did not say whether it would take the job" in " ".join(done.stderr.split())
    assert len(hpcml.runs()) == 1


def test_who_does_not_want_the_question_is_not_asked(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(no_queues=["qprod"])

    done = run(hpcml, "schedule.preflight=false")

    assert done.returncode == 0, done.stderr
    assert "qstat" not in pbs.calls()


def test_a_dry_run_asks_too_and_says_what_would_be_refused(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(queue_disabled=True)

    done = run(hpcml, "-n")

    assert done.returncode == 0
    assert "this queue takes no jobs now" in " ".join(done.stderr.split())


def test_a_reservation_that_is_gone_is_called_that(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(no_queues=["R123"])

    done = run(hpcml, "resources.queue=R123")

    assert done.returncode == 3
    assert "a reservation that has expired" in done.stderr
