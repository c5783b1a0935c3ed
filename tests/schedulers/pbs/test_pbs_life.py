"""Runs on a PBS site from their submission to their end: how often PBS is asked, and what follows from its answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml, program
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.site import (
    SALOMON,
    SLEEPS,
    age,
    age_journals,
    status,
    stopped_agent,
    submit,
    until,
    until_running,
    user_of,
)


@pytest.fixture
def hpcml(pbs: PbsDouble, tmp_path: Path) -> Hpcml:
    return user_of(pbs, tmp_path)


def test_many_questions_from_many_processes_cost_pbs_one(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    submit(hpcml, "-m", "seed=0,1,2", SLEEPS)
    before = pbs.calls()["qstat"]
    minute = {**hpcml.environ, "HPCML_POLL_INTERVAL_S": "60"}

    first = [Hpcml(environ=minute, cwd=hpcml.cwd).start("status", "--json") for _ in range(4)]
    said = [json.loads(one.communicate(timeout=300)[0]) for one in first]
    again = status(hpcml, HPCML_POLL_INTERVAL_S="60")

    assert pbs.calls()["qstat"] == before + 1
    assert {entry["state"] for answer in [*said, again] for entry in answer} == {"PENDING"}
    assert {entry["scheduler_state"] for entry in again} == {"Q"}
    assert all(entry["scheduler_said_at"] for entry in again)


def test_what_ended_a_run_from_outside_is_asked_within_seconds(hpcml: Hpcml, pbs: PbsDouble) -> None:
    submit(hpcml, SLEEPS)
    until_running(hpcml)
    status(hpcml, HPCML_POLL_INTERVAL_S="600")

    subprocess.run([pbs.bin / "qdel", "1.pbs01"], check=True)
    waited = hpcml("wait", "--timeout", "60", HPCML_POLL_INTERVAL_S="600")

    assert waited.returncode == 1, waited.stderr
    assert "CANCELLED" in waited.stdout


def test_a_run_named_alone_is_asked_about_together_with_all_others(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    one, other = submit(hpcml, SLEEPS)[0], submit(hpcml, SLEEPS, "seed=1")[0]
    before = pbs.calls()["qstat"]

    status(hpcml, one["uid"], HPCML_POLL_INTERVAL_S="60")

    assert status(hpcml, other["uid"], HPCML_POLL_INTERVAL_S="60")[0]["scheduler_state"] == "Q"
    assert pbs.calls()["qstat"] == before + 1


def test_the_age_of_an_answer_is_shown(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    submit(hpcml, SLEEPS)
    hpcml("status")
    time.sleep(5.5)

    shown = hpcml("status", HPCML_POLL_INTERVAL_S="60").stdout

    assert re.search(r" Q, \d[\dm.]*s ago$", shown, re.MULTILINE), shown


def test_an_interval_that_is_no_number_is_one_line(hpcml: Hpcml) -> None:
    done = hpcml("status", HPCML_POLL_INTERVAL_S="often")

    assert done.returncode == 2
    assert done.stderr == "hpcml: HPCML_POLL_INTERVAL_S=often: give seconds, 0 or more (60 unless it is set)\n"


def test_a_server_that_is_away_is_a_warning_and_is_left_alone_for_a_while(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    submit(hpcml, SLEEPS)
    status(hpcml)
    asked = pbs.calls()["qstat"]
    pbs.set(closed=True, down=["qstat"])
    hpcml("status")
    failed = pbs.calls()["qstat"]

    done = hpcml("status", "--json", HPCML_POLL_INTERVAL_S="60")

    assert done.returncode == 0
    assert failed > asked
    assert pbs.calls()["qstat"] == failed
    (line,) = done.stderr.splitlines()
    assert line.startswith("hpcml: warning: ")
    assert "Connection refused" in line
    assert "asked again in 1" in line  # 120 s: twice the interval after one failure
    assert json.loads(done.stdout)[0]["scheduler_state"] == "Q"


def test_a_forgotten_job_is_lost_once_its_journals_are_quiet(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    (run,) = submit(hpcml, SLEEPS)
    pbs.set(closed=True, forgotten=[1])

    assert status(hpcml)[0]["state"] == "PENDING"
    age(run)
    (entry,) = status(hpcml)

    assert (entry["state"], entry["reason"]) == ("LOST", "pbs has forgotten job 1.pbs01 and it recorded no outcome")


def test_a_forgotten_job_whose_agent_gives_signs_of_life_goes_on_though_its_program_reports_nothing(
    hpcml: Hpcml, pbs: PbsDouble
) -> None:
    (run,) = submit(hpcml, SLEEPS)
    until_running(hpcml)
    pbs.set(forgotten=[1])  # as where the scheduler of another cluster is asked, with the same file system
    age_journals(run)

    before = status(hpcml)[0]["state"]
    with stopped_agent(run):
        age(run)
        after = status(hpcml)[0]["state"]

    assert (before, after) == ("RUNNING", "LOST")


def test_the_job_of_another_that_got_the_same_id_is_not_ours(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    (run,) = submit(hpcml, SLEEPS)
    pbs.stop()
    pbs.start()  # it has forgotten everything, its count of ids too
    pbs.set(closed=True)
    subprocess.run([pbs.bin / "qsub", "-N", "other", "--", "/bin/sleep", "60"], check=True, stdout=subprocess.PIPE)
    age(run)

    assert status(hpcml)[0]["state"] == "LOST"


def test_ids_are_shown_as_pbs_prints_and_takes_them(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    said = hpcml("run", *SALOMON, "-m", "seed=0,1", SLEEPS, "--detach").stdout
    uid = said.splitlines()[1].split()[0]

    shown = [hpcml("show", uid).stdout, hpcml("top", uid, "--once").stdout]

    assert re.findall(r"pbs (\S+)", said) == ["1[0].pbs01", "1[1].pbs01"]
    assert all("1[1].pbs01" in text for text in shown), shown
    (word,) = re.findall(r"1\[1\]\.pbs01", said)
    subprocess.run([pbs.bin / "qdel", word], check=True)
    pbs.set(closed=True, forgotten=[1])
    age(next(run for run in hpcml.runs() if run["uid"] == uid))
    assert "pbs has forgotten job 1[1].pbs01" in next(run["reason"] for run in status(hpcml) if run["uid"] == uid)


def test_a_job_deleted_by_somebody_before_it_began_is_cancelled(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    runs = submit(hpcml, "-m", "seed=0,1", SLEEPS)
    subprocess.run([pbs.bin / "qdel", "1[1].pbs01"], check=True)

    status(hpcml)

    states = {run["uid"]: (run["state"], run["cause"]) for run in hpcml.runs()}
    assert states == {runs[0]["uid"]: ("PENDING", None), runs[1]["uid"]: ("CANCELLED", "cancelled")}


def test_cancelling_a_sweep_is_one_call_and_asks_first(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    submit(hpcml, "-m", "seed=0,1,2", SLEEPS, "experiment=mine")

    refused = hpcml("cancel", "--experiment", "mine")
    assert refused.returncode == 2
    assert "Cancel 3 runs? There is nobody here to ask: -y" in refused.stderr
    assert pbs.calls()["qdel"] == 0

    done = hpcml("cancel", "--experiment", "mine", "-y")
    assert done.returncode == 0, done.stderr
    assert pbs.calls()["qdel"] == 1
    status(hpcml)
    assert {run["state"] for run in hpcml.runs()} == {"CANCELLED"}


def test_a_wish_that_pbs_lost_is_told_again(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True, qdel_ignored=True)
    (run,) = submit(hpcml, SLEEPS)
    hpcml("cancel", run["uid"], "-y")
    assert status(hpcml)[0]["state"] == "PENDING"
    mark = Path(run["path"]) / "cancel"
    os.utime(mark, (time.time() - 60, time.time() - 60))
    pbs.set(closed=True)

    status(hpcml)
    hpcml("sync")
    hpcml("sync")

    assert pbs.calls()["qdel"] == 2
    assert hpcml.runs()[0]["state"] == "CANCELLED"


def test_a_server_that_is_away_when_runs_are_cancelled_hears_of_it_later(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    (run,) = submit(hpcml, SLEEPS)
    pbs.set(closed=True, down=["qdel"])

    done = hpcml("cancel", run["uid"], "-y")

    assert done.returncode == 3
    assert "hpcml sync tells again" in done.stderr


def test_a_running_job_deleted_by_somebody_is_cancelled_in_pbs_words(hpcml: Hpcml, pbs: PbsDouble) -> None:
    submit(hpcml, SLEEPS)
    until_running(hpcml)

    subprocess.run([pbs.bin / "qdel", "1.pbs01"], check=True)

    (run,) = until(hpcml, lambda runs: runs[0]["state"] == "CANCELLED" and runs[0]["is_settled"])
    assert run["cause"] == "cancelled"
    assert "pbs says F" in run["reason"]


def test_a_retry_is_another_job_and_the_same_run(hpcml: Hpcml, pbs: PbsDouble) -> None:
    fails_once = "import os, sys; sys.exit(3 if os.environ['HPCML_ATTEMPT'] == '0' else 0)"
    (run,) = submit(hpcml, program(fails_once))
    assert hpcml("wait", run["uid"]).returncode == 1

    done = hpcml("retry", run["uid"], "--cause", "program", "--walltime", "20m", "-y")

    assert done.returncode == 0, done.stderr
    assert "pbs 2.pbs01" in done.stdout
    assert hpcml("wait", run["uid"]).returncode == 0
    (again,) = hpcml.runs()
    assert (again["state"], again["attempt"], again["job_id"]) == ("COMPLETED", 1, "2.pbs01")
    assert "walltime=00:20:00" in (Path(run["path"]) / "retries" / "1.sh").read_text()
    assert pbs.calls()["qsub"] == 2
