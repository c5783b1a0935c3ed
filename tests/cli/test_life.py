"""What a user does with runs after starting them: repeat, look, read, stop."""

import json
import subprocess
import sys

from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.cli.test_run import SLEEPS, wait_for, wait_until_ended


def test_missing_runs_only_what_is_neither_done_nor_under_way(hpcml: Hpcml) -> None:
    fails_once = "import os, sys; done = os.path.exists('again'); open('again', 'w'); sys.exit(0 if done else 1)"
    sweep = ("run", "-m", program(fails_once), "seed=0,1,2", "cluster.max_parallel=1")
    assert hpcml(*sweep).returncode == 1

    again = hpcml(*sweep, "--missing")

    assert again.returncode == 0, again.stderr
    assert "2 of 3 configurations are done or under way" in again.stderr
    states = sorted((run["params"]["seed"], run["state"]) for run in hpcml.runs())
    assert states == [(0, "COMPLETED"), (0, "FAILED"), (1, "COMPLETED"), (2, "COMPLETED")]
    assert "nothing to submit" in hpcml(*sweep, "--missing").stdout


def test_of_several_that_submit_what_is_missing_at_once_one_submits_each_run(hpcml: Hpcml) -> None:
    sweep = ("run", "-m", program("pass"), "seed=range(8)", "--missing", "--detach")

    several = [hpcml.start(*sweep) for _ in range(3)]
    told = [one.communicate(timeout=300) for one in several]

    assert [one.returncode for one in several] == [0, 0, 0], told
    assert sorted(run["params"]["seed"] for run in hpcml.runs()) == list(range(8))
    assert sum("nothing to submit" in out for out, _ in told) == 2


def test_what_is_missing_is_submitted_though_who_did_it_before_died(hpcml: Hpcml) -> None:
    locks = hpcml.home / "submissions" / "locks"
    dying = f"""
import os
from pathlib import Path
from hpcml.runs.lock import try_lock
try_lock(Path({str(locks)!r}), "deciding")
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", dying], check=False)
    assert locks.is_dir()

    done = hpcml("run", program("pass"), "--missing", "--detach")

    assert done.returncode == 0, done.stderr
    assert "waiting" not in done.stderr
    assert len(hpcml.runs()) == 1


def test_a_repeat_is_named_and_run_again_as_a_replicate(hpcml: Hpcml) -> None:
    hpcml("run", program("pass"))
    (first,) = hpcml.runs()

    done = hpcml("run", program("pass"))

    assert f"1 of 1 configurations are done or under way, the last as {first['uid']}: run again" in done.stderr
    assert len({run["spec_hash"] for run in hpcml.runs()}) == 1
    assert len(hpcml.runs()) == 2


def test_logs_show_what_was_printed_by_stream_and_rank(hpcml: Hpcml) -> None:
    code = "import os, sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr)"
    hpcml("run", program(code), "strategy=ddp", "strategy.processes_per_node=2")
    uid = hpcml.runs()[0]["uid"]

    both = hpcml("logs", uid)
    assert both.stdout == "out 0\nerr 0\n"
    assert both.stderr == "==> standard output <==\n==> standard error <==\n"
    assert hpcml("logs", uid, "--out", "--rank", "1").stdout == "out 1\n"
    assert hpcml("logs", uid, "--err", "--rank", "1").stdout == "err 1\n"
    absent = hpcml("logs", uid, "--rank", "7")
    assert absent.returncode == 2
    assert "no output of rank 7: there is rank 0, 1" in said_in_one_line(absent)


def test_a_run_that_spoke_on_one_stream_alone_is_shown_by_that_and_no_heading(hpcml: Hpcml) -> None:
    hpcml("run", program("raise SystemExit('no such file')"))
    uid = hpcml.runs()[0]["uid"]

    done = hpcml("logs", uid)

    assert (done.returncode, done.stdout, done.stderr) == (0, "no such file\n", "")
    assert hpcml("logs", uid, "--out").stdout == ""


def test_status_lists_what_has_not_ended(hpcml: Hpcml) -> None:
    assert "no run is waiting or running" in hpcml("status").stderr
    uid = json.loads(hpcml("run", program(SLEEPS), "--json").stdout)[0]["uid"]
    wait_for(hpcml.cwd / "started")

    (entry,) = json.loads(hpcml("status", "--json").stdout)
    assert (entry["uid"], entry["state"], entry["scheduler"]) == (uid, "RUNNING", "local")
    (entry,) = json.loads(hpcml("status", "--experiment", "default", "--json").stdout)
    assert entry["uid"] == uid
    assert "no runs match" in hpcml("status", "--experiment", "another").stderr

    hpcml("cancel", uid, "-y")
    wait_until_ended(hpcml, 1)
    (entry,) = json.loads(hpcml("status", uid, "--json").stdout)
    assert (entry["state"], entry["cause"], entry["reason"][:9]) == ("CANCELLED", "cancelled", "cancelled")
