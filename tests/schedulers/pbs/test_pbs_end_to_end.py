"""The `hpcml` command on a PBS site, from the words a user types to the record of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Hpcml, program
from tests.cluster.pbs.double import PbsDouble

SALOMON = ["cluster=salomon", "resources.walltime=00:10:00"]
ACCOUNT = "resources.account=OPEN-0-0"


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "a project"
    cwd.mkdir()
    return Hpcml(environ=hpcml_environ, cwd=cwd)


@pytest.fixture
def hpcml_environ(pbs: PbsDouble, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "XDG_", "SUBMITIT_"))}
    home = tmp_path / "home"
    return {**kept, "HOME": str(home), "HPCML_HOME": str(home / "hpcml"), "PATH": f"{pbs.bin}:{kept['PATH']}"}


def submitted(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found if isinstance(found, list) else [found]


def states(hpcml: Hpcml, *, timeout_s: float = 300) -> list[str]:
    """Return the states of all runs once all have ended."""
    until = time.monotonic() + timeout_s
    while True:
        found = [run["state"] for run in hpcml.runs()]
        if not set(found) & {"PENDING", "RUNNING"}:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.3)


def test_a_run_goes_through_pbs_and_is_recorded(hpcml: Hpcml) -> None:
    code = "import os; print('accuracy 0.5'); print(os.environ['PBS_JOBID'], os.getcwd())"

    done = hpcml("run", *SALOMON, ACCOUNT, program(code), "--detach", "--json")

    (run,) = submitted(done)
    assert (run["scheduler"], run["job_id"], run["array_index"]) == ("pbs", "1.pbs01", None)
    assert states(hpcml) == ["COMPLETED"]
    assert f"1.pbs01 {hpcml.cwd}" in hpcml("logs", run["uid"]).stdout


def test_a_sweep_is_one_array(hpcml: Hpcml, pbs: PbsDouble) -> None:
    words = [*SALOMON, ACCOUNT, program("import os; print(os.environ['PBS_ARRAY_INDEX'])")]

    runs = submitted(hpcml("run", "-m", *words, "seed=1,2,3", "resources.array_parallelism=2", "--detach", "--json"))

    assert [(run["job_id"], run["array_index"]) for run in runs] == [("1[].pbs01", index) for index in range(3)]
    assert states(hpcml) == ["COMPLETED"] * 3
    assert pbs.calls()["qsub"] == 1


def test_a_dry_run_shows_what_would_be_sent_and_sends_nothing(hpcml: Hpcml, pbs: PbsDouble) -> None:
    done = hpcml("run", *SALOMON, ACCOUNT, program("pass"), "--dry-run")

    assert done.returncode == 0, done.stderr
    assert "#PBS -A OPEN-0-0\n" in done.stdout
    assert "#PBS -l select=1:ncpus=24\n" in done.stdout
    assert pbs.calls() == {"qstat": 1}  # whether it would take the job


def test_a_missing_account_is_told_before_pbs_is_asked(hpcml: Hpcml, pbs: PbsDouble) -> None:
    done = hpcml("run", *SALOMON, program("pass"))

    assert done.returncode == 2
    assert "account" in done.stderr
    assert pbs.calls()["qsub"] == 0


def test_a_refusal_reaches_the_user_in_pbs_words(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(refusal="Project OPEN-0-0 has no hours left.")

    done = hpcml("run", *SALOMON, ACCOUNT, program("pass"), "--detach")

    assert done.returncode == 3
    assert "PBS refused the job: qsub: Project OPEN-0-0 has no hours left." in done.stderr


def test_waiting_and_running_are_told_and_a_run_can_be_cancelled(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    (run,) = submitted(hpcml("run", *SALOMON, ACCOUNT, program("import time; time.sleep(60)"), "--detach", "--json"))
    (waiting,) = json.loads(hpcml("status", "--json").stdout)
    pbs.set()
    until = time.monotonic() + 300
    while (running := json.loads(hpcml("status", "--json").stdout)[0])["state"] != "RUNNING":
        assert time.monotonic() < until, running

    done = hpcml("cancel", run["uid"], "-y")

    assert done.returncode == 0, done.stderr
    assert waiting["state"] == "PENDING"
    assert states(hpcml) == ["CANCELLED"]


def test_a_job_that_has_the_id_of_a_run_now_is_not_cancelled_for_it(hpcml: Hpcml, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    (run,) = submitted(hpcml("run", *SALOMON, ACCOUNT, program("pass"), "--detach", "--json"))
    pbs.stop()  # a server that was set up anew counts from 1
    pbs.start()
    script = hpcml.cwd / "other.sh"
    script.write_text("#!/bin/bash\nsleep 60\n")
    sent = subprocess.run(["qsub", "-N", "mine", script], env=hpcml.environ, capture_output=True, text=True, check=True)

    done = hpcml("cancel", run["uid"], "-y")

    assert sent.stdout.strip() == run["job_id"]
    assert done.returncode == 0, done.stderr
    assert pbs.calls()["qdel"] == 0
    assert hpcml("status").returncode == 0
    assert [one["state"] for one in hpcml.runs()] == ["CANCELLED"]


def test_a_run_that_fails_is_recorded_as_failed(hpcml: Hpcml) -> None:
    submitted(hpcml("run", *SALOMON, ACCOUNT, program("raise SystemExit(7)"), "--detach", "--json"))

    assert states(hpcml) == ["FAILED"]


def test_a_server_that_is_down_does_not_change_what_is_known(hpcml: Hpcml, pbs: PbsDouble) -> None:
    submitted(hpcml("run", *SALOMON, ACCOUNT, program("import time; time.sleep(30)"), "--detach", "--json"))
    time.sleep(1.5)
    pbs.set(down=["qstat"])

    done = hpcml("status", "--json")

    assert [one["state"] for one in json.loads(done.stdout)] == ["RUNNING"]


def test_runs_on_two_nodes_know_each_other(hpcml: Hpcml) -> None:
    code = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'])"
    words = ["strategy=ddp", "strategy.processes_per_node=2", "resources.nodes=2", "resources.cpus_per_task=4"]

    (run,) = submitted(hpcml("run", *SALOMON, ACCOUNT, program(code), *words, "--detach", "--json"))

    assert states(hpcml) == ["COMPLETED"]
    printed = [hpcml("logs", run["uid"], "--rank", str(rank)).stdout.strip() for rank in range(4)]
    assert printed == [f"{rank} 4 pbs01" for rank in range(4)]


def test_without_pbs_the_user_is_told(hpcml: Hpcml) -> None:
    done = hpcml("run", *SALOMON, ACCOUNT, program("pass"), "--detach", PATH=f"{Path(sys.executable).parent}:/usr/bin")

    assert done.returncode != 0
    assert "qsub" in done.stderr


REFUSES_THE_SECOND = """\
#!/bin/bash
echo call >> {calls}
if [ "$(wc -l < {calls})" = 2 ]; then echo "qsub: would exceed complex's per-user limit" >&2; exit 38; fi
exec {qsub} "$@"
"""


def test_a_sweep_that_is_refused_half_way_is_recorded_and_completed_by_missing(
    hpcml: Hpcml, pbs: PbsDouble, tmp_path: Path
) -> None:
    front = tmp_path / "front"
    front.mkdir()
    (front / "qsub").write_text(REFUSES_THE_SECOND.format(calls=tmp_path / "calls", qsub=pbs.bin / "qsub"))
    (front / "qsub").chmod(0o755)
    sweep = ["run", "-m", *SALOMON, ACCOUNT, program("pass"), "seed=range(5)", "cluster.max_array_size=2", "--detach"]

    refused = hpcml(*sweep, PATH=f"{front}:{hpcml.environ['PATH']}")

    assert refused.returncode == 3
    said = refused.stderr.splitlines()[-1]
    assert "would exceed complex's per-user limit (more jobs than the site lets you have queued" in said
    assert "(1 of 5 runs were submitted before; hpcml run --missing" in said
    assert sorted(states(hpcml)) == ["COMPLETED"] + ["FAILED"] * 4

    resumed = hpcml(*sweep, "--missing")

    assert resumed.returncode == 0, resumed.stderr
    assert "1 of 5 configurations are done or under way" in resumed.stderr
    states(hpcml)  # until all have ended
    good = [run["params"]["seed"] for run in hpcml.runs() if run["state"] == "COMPLETED"]
    assert sorted(good) == [0, 1, 2, 3, 4]
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
    assert pbs.calls()["qsub"] == 1 + 2


def test_different_requests_of_a_sweep_are_different_submissions(hpcml: Hpcml, pbs: PbsDouble) -> None:
    words = ["run", "-m", *SALOMON, ACCOUNT, program("pass"), "seed=0,1", "resources.cpus_per_task=2,4"]

    runs = submitted(hpcml(*words, "--detach", "--json"))

    assert len({run["job_id"] for run in runs}) == 2
    assert pbs.calls()["qsub"] == 2
    assert states(hpcml) == ["COMPLETED"] * 4


NOTES_WHEN = """
import os, pathlib, time
diary = pathlib.Path("diary") / os.environ["HPCML_RUN_ID"]
diary.write_text(f"{time.time()} ")
time.sleep(2)
diary.write_text(f"{diary.read_text()}{time.time()}")
"""


def most_at_once(diary: Path) -> int:
    """Return how many of the programs that noted their begin and end there ran at the same time."""
    times = [tuple(map(float, path.read_text().split())) for path in diary.iterdir()]
    return max(sum(begin <= moment < end for begin, end in times) for moment, _ in times)


def test_one_limit_is_divided_among_all_arrays_of_a_sweep(hpcml: Hpcml) -> None:
    (hpcml.cwd / "diary").mkdir()
    words = ["run", "-m", *SALOMON, ACCOUNT, program(NOTES_WHEN), "seed=range(5)", "cluster.max_array_size=2"]

    runs = submitted(hpcml(*words, "resources.array_parallelism=3", "--detach", "--json"))

    assert states(hpcml) == ["COMPLETED"] * 5
    assert len({run["job_id"] for run in runs}) == 3
    assert most_at_once(hpcml.cwd / "diary") <= 3


def test_a_dry_run_shows_the_limit_of_each_array(hpcml: Hpcml) -> None:
    words = ["run", "-m", *SALOMON, ACCOUNT, program("pass"), "cluster.max_array_size=4", "seed=range(6)", "--dry-run"]

    shown = hpcml(*words, "resources.array_parallelism=3").stdout

    assert [line for line in shown.splitlines() if line.startswith("#PBS -J")] == ["#PBS -J 0-2%1", "#PBS -J 0-2%2"]


def test_a_run_waits_for_runs_by_their_ids_and_experiments(hpcml: Hpcml) -> None:
    wait = program("import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)")
    words = ["run", "-m", *SALOMON, ACCOUNT, "--detach", "--json"]
    sweep = submitted(hpcml(*words, wait, "seed=1,2", "experiment=first"))
    single = submitted(hpcml(*words, wait, "experiment=other"))[0]

    shown = hpcml(*words[:-2], program("pass"), "resources.dependency='afterok:first,afterany:@1'", "--dry-run")
    (third,) = submitted(hpcml(*words, program("pass"), "resources.dependency='afterok:first,afterany:@1'"))
    by_id = f"resources.dependency=afterok:{single['uid']}"
    (fourth,) = submitted(hpcml(*words, program("pass"), by_id, "seed=7"))

    assert "#PBS -W depend=afterok:1[].pbs01,afterany:2.pbs01\n" in shown.stdout, shown.stderr
    held = {run["uid"]: run["state"] for run in hpcml.runs()}
    assert (held[third["uid"]], held[fourth["uid"]]) == ("PENDING", "PENDING")
    (hpcml.cwd / "go").touch()
    assert states(hpcml) == ["COMPLETED"] * 5
    assert {run["uid"] for run in sweep} < set(held)


def test_a_run_that_waits_in_vain_is_cancelled_and_says_for_whom(hpcml: Hpcml) -> None:
    words = ["run", *SALOMON, ACCOUNT, "--detach", "--json"]
    fails = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\nraise SystemExit(1)"
    (first,) = submitted(hpcml(*words, program(fails)))
    (second,) = submitted(hpcml(*words, program("pass"), "resources.dependency=afterok:@1"))

    (hpcml.cwd / "go").touch()
    until = time.monotonic() + 300
    while (run := next(run for run in hpcml.runs() if run["uid"] == second["uid"]))["state"] == "PENDING":
        assert time.monotonic() < until
        hpcml("status", HPCML_POLL_INTERVAL_S="0")
        time.sleep(0.3)

    assert (run["state"], run["cause"]) == ("CANCELLED", "dependency")
    assert f"it waits for run {first['uid']} (afterok), which is FAILED" in run["reason"]


def test_what_keeps_all_runs_from_a_retry_is_said_once(hpcml: Hpcml, pbs: PbsDouble, tmp_path: Path) -> None:
    breaks = program("import sys; sys.exit('NCCL error: unhandled system error')")
    hpcml("run", "-m", *SALOMON, ACCOUNT, breaks, "seed=1,2,3", "schedule.retry=1", "--detach")
    assert states(hpcml) == ["FAILED"] * 3
    front = tmp_path / "front"
    front.mkdir()
    (front / "qsub").write_text('#!/bin/sh\necho "qsub: would exceed complex\'s per-user limit" >&2\nexit 38\n')
    (front / "qsub").chmod(0o755)

    said = hpcml("sync", PATH=f"{front}:{hpcml.environ['PATH']}")

    (line,) = [line for line in (said.stdout + said.stderr).splitlines() if "could not be retried" in line]
    assert "3 runs (" in line
    assert "would exceed complex's per-user limit (more jobs than the site lets you have queued" in line
    assert pbs.calls()["qsub"] == 1
