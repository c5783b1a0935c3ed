"""`hpcml run` killed with SIGKILL around qsub, then `hpcml sync`: PBS has exactly one job for each run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, program
from tests.cluster.pbs.double import PbsDouble
from tests.effort import times

SITE = ["cluster=salomon", "resources.walltime=00:10:00", "resources.account=OPEN-0-0"]
COUNTS = program("import os; open(os.environ['HPCML_RUN_ID'], 'a').write('x')")
KILL = "kill -9 $PPID"  # hpcml
BEFORE = f"{KILL}; exit 1"
AFTER = f'"$REAL" "$@"; {KILL}'
ON_ITS_WAY = f'(sleep 1; "$REAL" "$@") >/dev/null 2>&1 & {KILL}'
LATE = f'{KILL}; until [ -e "${{0%/*}}/go" ]; do sleep 0.1; done; "$REAL" "$@"'
CTRL_C = f'{KILL.replace("-9", "-INT")}; exec "$REAL" "$@"'


@pytest.fixture
def hpcml(pbs: PbsDouble, tmp_path: Path) -> Hpcml:
    cwd, home = tmp_path / "project", tmp_path / "home"
    cwd.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "XDG_", "SUBMITIT_"))}
    own = {"HOME": str(home), "HPCML_HOME": str(home / "hpcml"), "HPCML_POLL_INTERVAL_S": "0"}
    return Hpcml(environ={**kept, **own, "PATH": f"{pbs.bin}:{kept['PATH']}"}, cwd=cwd)


@pytest.fixture
def wrapped(pbs: PbsDouble, hpcml: Hpcml, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Put a qsub in front of the real one that does *body* at its call number *at_call*."""

    def variables(body: str, *, at_call: int = 1) -> dict[str, str]:
        folder = tmp_path / "wrapper"
        folder.mkdir(exist_ok=True)
        script = folder / "qsub"
        script.write_text(
            f"#!/bin/bash\nREAL={shlex.quote(str(pbs.bin / 'qsub'))}\n"
            f"echo >> {folder}/calls\n"
            f'if [ "$(wc -l < {folder}/calls)" = {at_call} ]; then {body}; else exec "$REAL" "$@"; fi\n'
        )
        script.chmod(0o755)
        return {"PATH": f"{folder}:{hpcml.environ['PATH']}"}

    return variables


def events(run: dict[str, Any], name: str) -> list[dict[str, Any]]:
    files = RunDir(Path(run["path"])).journal_files()
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [line["d"] for line in lines if line.get("n") == name]


def job_names(pbs: PbsDouble) -> list[str]:
    """Return the names of all jobs that PBS ever took."""
    return [words[words.index("-N") + 1] for words in pbs.call_words() if words[0] == "qsub"]


def assert_one_job_for_each(hpcml: Hpcml, pbs: PbsDouble, *, runs: int, jobs: int) -> None:
    end = time.monotonic() + 300
    while [run["state"] for run in hpcml.runs()] != ["COMPLETED"] * runs:
        hpcml("status")
        assert time.monotonic() < end, [(run["state"], run["reason"]) for run in hpcml.runs()]
        time.sleep(0.3)
    names = job_names(pbs)
    assert len(names) == len(set(names)) == jobs
    for run in hpcml.runs():
        (started,) = events(run, "attempt_started")
        submitted = events(run, "submitted")  # none where the job itself has told already
        assert len(submitted) <= 1
        assert {said["job_name"] for said in [started, *submitted]} <= set(names)
        assert (hpcml.cwd / run["uid"]).read_text() == "x"


@pytest.mark.parametrize("body", [BEFORE, AFTER, ON_ITS_WAY], ids=["before", "after", "on its way"])
@pytest.mark.parametrize("seeds", ["seed=1", "seed=1,2,3"])
def test_killed_around_qsub_there_is_one_job(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]], body: str, seeds: str
) -> None:
    done = hpcml("run", "-m", *SITE, COUNTS, seeds, "--detach", **wrapped(body))
    assert done.returncode == -signal.SIGKILL

    synced = hpcml("sync")

    assert synced.returncode == 0, synced.stderr
    assert "1 interrupted submission finished" in synced.stdout
    assert_one_job_for_each(hpcml, pbs, runs=len(seeds.split(",")), jobs=1)


@pytest.mark.parametrize(
    ("at_call", "said"),
    [
        (
            1,
            "1 of 3 runs was submitted: hpcml cancel --submission ID ends it, hpcml run --missing ... submits the rest",
        ),
        (3, "3 of 3 runs were submitted: hpcml cancel --submission ID ends them"),
    ],
)
def test_ctrl_c_while_a_sweep_is_submitted_says_what_stays_queued(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]], at_call: int, said: str
) -> None:
    environ = wrapped(CTRL_C, at_call=at_call)

    done = hpcml("run", "-m", SITE[0], SITE[2], "resources.walltime=10m,20m,30m", COUNTS, "--detach", **environ)

    submission = hpcml.runs()[0]["submission"]
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == f"hpcml: interrupted: {said.replace('ID', submission)}"
    assert "interrupted" not in hpcml("status").stderr
    assert len(job_names(pbs)) == at_call
    ended = [run["reason"] for run in hpcml.runs() if run["state"] == "FAILED"]
    assert ended == ["interrupted before it was submitted"] * (3 - at_call)


def test_what_qsub_says_of_each_job_of_a_sweep_is_said_once(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]]
) -> None:
    says = 'echo \'qsub: -l nodes= is deprecated\' >&2; exec "$REAL" "$@"'
    environ = wrapped(f"true; fi; if true; then {says}")

    done = hpcml("run", "-m", SITE[0], SITE[2], "resources.walltime=10m,20m", COUNTS, "--detach", **environ)

    assert (done.returncode, len(job_names(pbs))) == (0, 2), done.stderr
    assert done.stderr.count("is deprecated") == 1
    assert "hpcml: warning: qsub said: -l nodes= is deprecated" in done.stderr


def test_of_two_jobs_of_a_run_since_a_wrapper_submitted_after_sync_did_one_carries_it_out(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    done = hpcml("run", *SITE, COUNTS, "--detach", **wrapped(LATE))
    assert done.returncode == -signal.SIGKILL

    assert hpcml("sync").returncode == 0

    (tmp_path / "wrapper" / "go").touch()
    until(lambda: len(job_names(pbs)) == 2)
    until(lambda: len(events(hpcml.runs()[0], "attempt_left")) == 1)
    (run,) = hpcml.runs()
    assert (run["state"], (hpcml.cwd / run["uid"]).read_text()) == ("COMPLETED", "x")


@pytest.mark.parametrize("step", range(times(4, 25)))
def test_killed_in_any_window_of_a_slow_wrapper_there_is_one_job(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]], step: int, tmp_path: Path
) -> None:
    slow = wrapped('sleep 0.8; "$REAL" "$@"; sleep 0.8')
    client = Hpcml(environ={**hpcml.environ, **slow}, cwd=hpcml.cwd).start("run", *SITE, COUNTS, "--detach")
    until((tmp_path / "wrapper" / "calls").exists)
    time.sleep(2.4 * step / times(4, 25))
    client.kill()
    client.communicate()

    synced = hpcml("sync")

    assert synced.returncode == 0, synced.stderr
    assert_one_job_for_each(hpcml, pbs, runs=1, jobs=1)


@pytest.mark.parametrize("body", [BEFORE, AFTER], ids=["before", "after"])
def test_a_pack_is_one_job_too(hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]], body: str) -> None:
    sweep = ("-m", *SITE, COUNTS, "precision=fp32,bf16", "schedule.pack=precision", "schedule.repeats=2", "--detach")
    assert hpcml("run", *sweep, **wrapped(body)).returncode == -signal.SIGKILL

    assert hpcml("sync").returncode == 0

    assert_one_job_for_each(hpcml, pbs, runs=4, jobs=1)
    (name,) = job_names(pbs)
    packs = {said["pack"] for run in hpcml.runs() for said in events(run, "attempt_started")}
    assert packs == {f"{name.partition('.')[2]}/0"}


def test_killed_between_two_batches_each_is_there_once(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]]
) -> None:
    sweep = ("-m", *SITE, COUNTS, "seed=1,2", "resources.walltime=00:10:00,00:20:00", "--detach")
    done = hpcml("run", *sweep, **wrapped(BEFORE, at_call=2))
    assert done.returncode == -signal.SIGKILL

    assert hpcml("sync").returncode == 0

    assert_one_job_for_each(hpcml, pbs, runs=4, jobs=2)


def test_a_server_that_is_silent_delays_the_answer_and_nothing_is_guessed(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]]
) -> None:
    hpcml("run", *SITE, COUNTS, "--detach", **wrapped(BEFORE))
    pbs.set(down=["qsub", "qstat", "qselect"])

    waits = hpcml("sync")
    assert waits.returncode == 3
    assert "cannot be finished now" in waits.stderr
    assert "hpcml sync finishes it first" in hpcml("run", *SITE, COUNTS, "--missing").stderr

    pbs.set()
    assert hpcml("sync").returncode == 0
    assert_one_job_for_each(hpcml, pbs, runs=1, jobs=1)


def test_two_that_sync_at_once_submit_once(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]]
) -> None:
    hpcml("run", *SITE, COUNTS, "--detach", **wrapped(BEFORE))

    both = [hpcml.start("sync") for _ in range(3)]
    said = [one.communicate(timeout=300)[0] for one in both]

    assert sum("interrupted submission finished" in text for text in said) == 1
    assert_one_job_for_each(hpcml, pbs, runs=1, jobs=1)


def test_missing_leaves_what_was_ended_from_outside_until_pbs_has_said_why(hpcml: Hpcml, pbs: PbsDouble) -> None:
    sleeps = program("import time; time.sleep(60)")
    done = hpcml("run", *SITE, sleeps, "--detach", "--json")
    (submitted,) = json.loads(done.stdout)
    until(lambda: bool(list((Path(submitted["path"]) / "logs").glob("*-rank0.out"))))

    subprocess.run([pbs.bin / "qdel", submitted["job_id"]], check=True)
    until(lambda: bool(events(submitted, "attempt_interrupted")))

    assert "nothing to submit" in hpcml("run", *SITE, sleeps, "--missing", "--detach").stdout
    until(lambda: hpcml("status").returncode == 0 and bool(events(submitted, "ended_by_scheduler")))
    assert "1 submitted" in hpcml("run", *SITE, sleeps, "--missing", "--detach").stdout


def until_it_is(hpcml: Hpcml, state: str) -> None:
    """Ask until the only run is in *state*."""
    until(lambda: hpcml("status").returncode == 0 and hpcml.runs()[0]["state"] == state)


def failed_once(hpcml: Hpcml) -> dict[str, Any]:
    """Return a run that has failed, and would complete if it were started once more."""
    second_time = "import os, sys; f = open(os.environ['HPCML_RUN_ID'], 'a'); f.write('x'); sys.exit(f.tell() < 2)"
    done = hpcml("run", *SITE, program(second_time), "--detach", "--json")
    (run,) = json.loads(done.stdout)
    until_it_is(hpcml, "FAILED")
    return dict(run)


@pytest.mark.parametrize("body", [BEFORE, AFTER, ON_ITS_WAY], ids=["before", "after", "on its way"])
def test_a_retry_that_is_killed_around_qsub_is_made_once(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]], body: str
) -> None:
    run = failed_once(hpcml)

    killed = hpcml("retry", run["uid"], "-y", "--walltime", "00:20:00", **wrapped(body))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert hpcml("sync").returncode == 0

    until_it_is(hpcml, "COMPLETED")
    assert (hpcml.cwd / run["uid"]).read_text() == "xx"
    names = job_names(pbs)
    assert len(names) == len(set(names)) == 2
    assert names[1].endswith(f"{run['uid']}-r1")
    assert hpcml.runs()[0]["attempt"] == 1


@pytest.mark.parametrize("body", ["kill -9 $$", '"$REAL" "$@" >/dev/null; kill -9 $$'], ids=["not queued", "queued"])
def test_a_retry_whose_qsub_is_killed_is_made_once(
    hpcml: Hpcml, pbs: PbsDouble, wrapped: Callable[..., dict[str, str]], body: str
) -> None:
    run = failed_once(hpcml)

    told = hpcml("retry", run["uid"], "-y", "--walltime", "00:20:00", **wrapped(body))
    again = hpcml("retry", run["uid"], "-y", "--walltime", "00:20:00")

    assert (told.returncode, "hpcml sync finishes this submission" in told.stderr) in [(3, True), (0, False)], told
    assert again.returncode != 0, again.stdout  # the first was finished by it, or stands
    until_it_is(hpcml, "COMPLETED")
    assert (hpcml.cwd / run["uid"]).read_text() == "xx"
    assert len(job_names(pbs)) == 2


def until(holds: Callable[[], bool], *, timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)
