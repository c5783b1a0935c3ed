"""A wrapper of qsub that takes a script, ends well, and submits it much later: the job is found, and runs once."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import events, read_journal
from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, program
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.site import SALOMON, status, until, user_of

TAKES = """#!/bin/sh
printf '%s\\n' "$@" >{spool}/words
cat >{spool}/script
pwd >{spool}/folder
echo 'thank you'
"""


@pytest.fixture
def hpcml(pbs: PbsDouble, tmp_path: Path) -> Hpcml:
    return user_of(pbs, tmp_path)


@pytest.fixture
def wrapped(hpcml: Hpcml, tmp_path: Path) -> Hpcml:
    """The same user, whose qsub is a wrapper that keeps what it is given."""
    (bin_ := tmp_path / "wrappers").mkdir()
    (spool := tmp_path / "spool").mkdir()
    (bin_ / "qsub").write_text(TAKES.format(spool=spool))
    (bin_ / "qsub").chmod(0o755)
    return Hpcml(environ={**hpcml.environ, "PATH": f"{bin_}:{hpcml.environ['PATH']}"}, cwd=hpcml.cwd)


def take(wrapped: Hpcml, *words: str) -> list[dict[str, Any]]:
    done = wrapped("run", *SALOMON, *words, "--detach")
    assert done.returncode == 3, done.stderr
    assert "qsub printed no job id; should a job called " in done.stderr
    runs = wrapped.runs()
    assert {run["state"] for run in runs} == {"FAILED"}
    return runs


def submit_late(pbs: PbsDouble, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    words = (spool / "words").read_text().splitlines()
    with (spool / "script").open() as script:
        subprocess.run([pbs.bin / "qsub", *words], cwd=(spool / "folder").read_text().strip(), stdin=script, check=True)


def minutes_pass(hpcml: Hpcml) -> None:
    for path in (hpcml.home / "submissions" / "unseen").glob("*.json"):
        os.utime(path, (time.time() - 600, time.time() - 600))


def begun(run: dict[str, Any]) -> int:
    chunks = [read_journal(path) for path in RunDir(Path(run["path"])).journal_files()]
    return len(list(events(chunks, "attempt_started")))


@pytest.mark.parametrize("words", [["seed=1"], ["-m", "seed=1,2,3"]], ids=["job", "array"])
def test_a_job_that_comes_late_waits_is_not_retried_and_runs_once(
    hpcml: Hpcml, wrapped: Hpcml, pbs: PbsDouble, tmp_path: Path, words: list[str]
) -> None:
    pbs.set(closed=True)
    runs = take(wrapped, *words, program("pass"))
    submit_late(pbs, tmp_path)
    minutes_pass(hpcml)

    shown = status(hpcml)
    retried = hpcml("retry", "--yes")
    pbs.set(closed=False)
    ended = until(hpcml, lambda runs: {run["state"] for run in runs} == {"COMPLETED"})

    assert [(one["state"], one["scheduler_state"]) for one in shown] == [("PENDING", "Q")] * len(runs)
    assert retried.stderr == "no failed run matches\n"
    assert pbs.calls()["qsub"] == 1
    assert [begun(run) for run in ended] == [1] * len(runs)
    assert not list((hpcml.home / "submissions" / "unseen").iterdir())


def test_a_late_job_that_was_begun_before_anybody_looked_is_the_runs(
    hpcml: Hpcml, wrapped: Hpcml, pbs: PbsDouble, tmp_path: Path
) -> None:
    take(wrapped, program("pass"))
    submit_late(pbs, tmp_path)
    until(hpcml, lambda runs: {run["state"] for run in runs} == {"COMPLETED"})
    minutes_pass(hpcml)

    assert status(hpcml) == []
    assert not list((hpcml.home / "submissions" / "unseen").iterdir())


def test_a_run_whose_job_never_comes_stays_failed_and_is_retried(hpcml: Hpcml, wrapped: Hpcml) -> None:
    (run,) = take(wrapped, program("pass"))
    minutes_pass(hpcml)

    assert status(hpcml) == []
    assert hpcml("retry", run["uid"], "--yes").returncode == 0
    until(hpcml, lambda runs: {one["state"] for one in runs} == {"COMPLETED"})
    minutes_pass(hpcml)
    hpcml("status")
    assert not list((hpcml.home / "submissions" / "unseen").iterdir())


def test_missing_looks_for_the_late_job_first(hpcml: Hpcml, wrapped: Hpcml, pbs: PbsDouble, tmp_path: Path) -> None:
    pbs.set(closed=True)
    take(wrapped, program("pass"))
    submit_late(pbs, tmp_path)
    minutes_pass(hpcml)

    done = hpcml("run", *SALOMON, program("pass"), "--detach", "--missing", "--json")

    assert json.loads(done.stdout or "[]") == []
    assert pbs.calls()["qsub"] == 1


def test_a_run_that_is_cancelled_before_its_late_job_comes_never_begins(
    hpcml: Hpcml, wrapped: Hpcml, pbs: PbsDouble, tmp_path: Path
) -> None:
    (run,) = take(wrapped, program("pass"))

    cancelled = hpcml("cancel", run["uid"], "-y")
    submit_late(pbs, tmp_path)
    minutes_pass(hpcml)
    hpcml("status")
    (ended,) = until(hpcml, lambda runs: {one["state"] for one in runs} == {"CANCELLED"})

    assert cancelled.stdout == f"{run['uid']}  cancelling\n"
    chunks = [read_journal(path) for path in RunDir(Path(ended["path"])).journal_files()]
    assert not list(events(chunks, "workload_started"))
