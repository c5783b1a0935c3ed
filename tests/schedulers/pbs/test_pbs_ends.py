"""How jobs end on a PBS site, by its own hand and by others', and what hpcml then says of the runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Hpcml, program
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.site import SLEEPS, submit, until, until_running, user_of

HANGING_AGENT = program("import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(60)")


@pytest.fixture
def hpcml(pbs: PbsDouble, tmp_path: Path) -> Hpcml:
    return user_of(pbs, tmp_path)


def jobs(pbs: PbsDouble) -> int:
    return pbs.calls()["qsub"]


def shown(hpcml: Hpcml, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hpcml("show", run["uid"], "--json").stdout)
    return found


def test_pbs_own_walltime_is_a_timeout(hpcml: Hpcml) -> None:
    submit(hpcml, HANGING_AGENT, "resources.walltime=6s")

    (run,) = until(hpcml, lambda runs: runs[0]["state"] != "PENDING" and runs[0]["state"] != "RUNNING")

    assert (run["state"], run["cause"]) == ("TIMEOUT", "time_limit"), run["reason"]
    assert 6 <= run["wall_s"] < run["t_end"] - run["t_start"] + 1
    (end,) = [event["details"] for event in shown(hpcml, run)["events"] if event["name"] == "ended_by_scheduler"]
    assert (end["exit_status"], end["reason"]) == ("-29", "pbs says F (walltime exceeded), exit code -29")
    assert {"cpu_s", "max_memory_mb"} <= end.keys()


def test_a_deleted_job_that_ends_with_0_is_no_success(hpcml: Hpcml, pbs: PbsDouble) -> None:
    stubborn = "trap 'exit 0' TERM; echo here; while :; do sleep 0.1; done"
    submit(hpcml, f'workload.command=bash -c "{stubborn}"')
    until_running(hpcml)

    subprocess.run([pbs.bin / "qdel", "1.pbs01"], check=True)

    (run,) = until(hpcml, lambda runs: runs[0]["state"] not in ("PENDING", "RUNNING") and runs[0]["is_settled"])
    assert (run["state"], run["cause"]) == ("CANCELLED", "cancelled"), run["reason"]


def test_a_dependency_that_cannot_be_met_is_told(hpcml: Hpcml) -> None:
    (first,) = submit(hpcml, program("raise SystemExit(1)"))
    until(hpcml, lambda runs: runs[0]["state"] == "FAILED")

    submit(hpcml, SLEEPS, f"resources.dependency=afterok:{first['job_id']}", "name=second")

    runs = until(hpcml, lambda runs: all(run["state"] not in ("PENDING", "RUNNING") for run in runs))
    second = next(run for run in runs if run["name"] == "second")
    assert (second["state"], second["cause"]) == ("CANCELLED", "dependency")
    assert "its dependency cannot be met" in second["reason"]


def test_deleting_an_array_does_not_change_what_had_ended(hpcml: Hpcml, pbs: PbsDouble) -> None:
    quick_or_slow = program("import os, time; time.sleep(0 if os.environ['PBS_ARRAY_INDEX'] == '0' else 60)")
    submit(hpcml, "-m", "seed=0,1", quick_or_slow)
    until(hpcml, lambda runs: sorted(run["state"] for run in runs) == ["COMPLETED", "RUNNING"])

    subprocess.run([pbs.bin / "qdel", "1[].pbs01"], check=True)  # PBS gives both the array's exit status now

    runs = until(hpcml, lambda runs: all(run["is_settled"] and run["state"] != "RUNNING" for run in runs))
    assert {run["array_index"]: run["state"] for run in runs} == {0: "COMPLETED", 1: "CANCELLED"}


def test_a_site_without_history_is_told_by_the_journals(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(history=False)
    submit(hpcml, program("raise SystemExit(4)"))

    (run,) = until(hpcml, lambda runs: runs[0]["state"] not in ("PENDING", "RUNNING"))

    assert (run["state"], run["exit_code"]) == ("FAILED", 4)


def test_a_server_that_hangs_does_not_hang_the_user(hpcml: Hpcml, pbs: PbsDouble) -> None:
    submit(hpcml, program("import time; time.sleep(600)"))
    until_running(hpcml)
    pbs.set(hung=["qstat", "qselect"])
    impatient = (
        "from hpcml.schedulers.driver import Driver; Driver.__init__.__kwdefaults__['ask_timeout_s'] = 2.0; "
        "from hpcml.cli.main import main; main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", impatient, "status"],
        env=hpcml.environ,
        cwd=hpcml.cwd,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "qstat gave no answer within 2 s" in done.stderr
    assert hpcml.runs()[0]["state"] == "RUNNING"
    pbs.set()


def test_a_rerun_after_a_lost_node_is_another_attempt_of_the_same_run(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(operator=True)
    submit(hpcml, program("import os, time; time.sleep(60 if os.environ['HPCML_ATTEMPT'] == '0' else 0)"))
    until_running(hpcml)

    subprocess.run([pbs.bin / "qrerun", "1.pbs01"], check=True)

    (run,) = until(hpcml, lambda runs: runs[0]["state"] == "COMPLETED")
    assert run["attempt"] == 1
    assert jobs(pbs) == 1


def test_a_walltime_that_was_raised_while_the_job_ran_is_used(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(operator=True)
    submit(
        hpcml, program("import time; time.sleep(25)"), "resources.walltime=40s"
    )  # the agent would stop it after 20 s
    until_running(hpcml)

    subprocess.run([pbs.bin / "qalter", "-l", "walltime=00:10:00", "1.pbs01"], check=True)

    (run,) = until(hpcml, lambda runs: runs[0]["state"] != "RUNNING")
    assert run["state"] == "COMPLETED", run["reason"]
    (told,) = [event["details"] for event in shown(hpcml, run)["events"] if event["name"] == "time_limit"]
    assert told == {"limit_s": 600, "before_s": 40}


@pytest.mark.parametrize("asked", ["10m", "null"], ids=["lowered", "the site's own"])
def test_the_walltime_that_a_job_has_once_it_begins_is_kept_whatever_was_asked_for(
    hpcml: Hpcml, pbs: PbsDouble, asked: str
) -> None:
    pbs.set(closed=True)
    submit(hpcml, SLEEPS, f"resources.walltime={asked}")
    subprocess.run([pbs.bin / "qalter", "-l", "walltime=00:00:20", "1.pbs01"], check=True)

    pbs.set()

    (run,) = until(hpcml, lambda runs: runs[0]["state"] not in ("PENDING", "RUNNING"))
    assert (run["state"], run["reason"]) == ("TIMEOUT", "walltime of 20 s reached but for the last 10 s")


@pytest.mark.torch
def test_a_recipe_that_ran_out_of_time_ends_with_the_same_weights(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pytest.importorskip("torch")
    words = ["model=mnist_mlp", "precision=amp", "training.steps=2000", "training.eval_every=2000"]
    words += ["resources.gpus_per_node=0", "resources.cpus_per_task=1"]
    submit(hpcml, *words, "experiment=whole")
    (submitted,) = submit(hpcml, *words, "experiment=broken")
    agent = pid_after_some_steps(hpcml, submitted)
    os.kill(agent, signal.SIGUSR1)  # as PBS warns of the end of the walltime, however fast this machine is

    runs = until(hpcml, lambda runs: all(run["state"] == "COMPLETED" for run in runs), timeout_s=900)

    whole, broken = sorted(runs, key=lambda run: str(run["experiment"]), reverse=True)
    assert whole["attempt"] == 0
    assert broken["attempt"] >= 1, "it was not interrupted"
    assert jobs(pbs) == 2 + broken["attempt"]  # each attempt is a job of its own
    assert final_weights(whole) == final_weights(broken)
    assert broken["metrics"]["loss"]["n"] == 2000


def pid_after_some_steps(hpcml: Hpcml, submitted: dict[str, Any]) -> int:
    """Return the process id of the run's agent once its program has reported a few steps."""

    def has_begun(_: object) -> bool:
        return any('"i":20' in path.read_text() for path in Path(submitted["path"]).glob("journal/0-*rank0*"))

    until(hpcml, has_begun)
    (started,) = [event for event in shown(hpcml, submitted)["events"] if event["name"] == "attempt_started"]
    return int(started["details"]["pid"])


def final_weights(run: dict[str, object]) -> object:
    """Return the sum over the final weights that the recipe reported."""
    lines = [line for path in Path(str(run["path"])).glob("journal/*rank0*") for line in path.read_text().splitlines()]
    (final,) = [line for line in lines if '"n":"final"' in line]
    return json.loads(final)["d"]["sha256"]


def test_a_killed_agent_has_a_cause_of_its_own(hpcml: Hpcml) -> None:
    submit(hpcml, program("import os, signal; os.kill(os.getppid(), signal.SIGKILL)"))

    (run,) = until(hpcml, lambda runs: runs[0]["state"] not in ("PENDING", "RUNNING"))

    assert (run["state"], run["cause"]) == ("FAILED", "agent_killed"), run["reason"]
    assert hpcml("retry", "--cause", "agent_killed", "-n").stdout.count("nobody saw its end: again as it was") == 1
