"""What a real Slurm says of a job before it is submitted: by sbatch --test-only."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.schedulers.slurm import as_user
from tests.schedulers.slurm.user import Hpcml

pytestmark = pytest.mark.slurm


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    return Hpcml(slurm, folder)


@pytest.fixture
def hpcml_alone(slurm_alone: Account, folder: Path) -> Hpcml:
    """For tests that change what others would see."""
    return Hpcml(slurm_alone, folder)


def as_root(account: Account, *words: str) -> str:
    done = subprocess.run(words, env={**account.cluster.environ}, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["resources.account=nosuch"],
            "Invalid account or account/partition combination specified (set resources.account",
        ),
        (["resources.partition=nosuch"], "invalid partition specified: nosuch"),
        (["resources.qos=nosuch"], "Invalid qos specification"),
        (["resources.partition=qgpu_exp", "resources.walltime=10h"], "Requested time limit is invalid"),
        (["resources.constraint=haswell"], "Invalid feature specification"),
        (["resources.reservation=gone"], "Requested reservation is invalid"),
        (["resources.extra_directives=['--nosuch=1']"], "unrecognized option '--nosuch=1'"),
    ],
)
def test_what_slurm_would_refuse_is_refused_in_its_words_and_nothing_is_written(
    hpcml: Hpcml, words: list[str], says: str
) -> None:
    done = hpcml.run(*words, "workload.command=true")

    (line,) = [line for line in done.stderr.decode().splitlines() if "warning" not in line]
    assert done.returncode == 3
    assert says in line
    assert line.endswith("nothing was written or queued")
    assert not (hpcml.home / "runs").exists() or not list((hpcml.home / "runs").iterdir())
    assert hpcml.runs() == []


def test_a_failure_that_is_not_slurms_own_refuses_nothing(hpcml: Hpcml, slurm: Account, folder: Path) -> None:
    # a site's wrapper that does not know --test-only
    text = (
        '#!/bin/sh\n[ "$1" = --test-only ] && { echo "usage: sbatch SCRIPT" >&2; exit 1; }\nexec /usr/bin/sbatch "$@"\n'
    )
    wrappers = slurm.call(as_user.write_program, folder / "wrappers", "sbatch", text)

    done = hpcml.run("workload.command=true", PATH=f"{wrappers}:{slurm.environ['PATH']}")

    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.decode().split())
    assert "Slurm did not say whether it would take the job: exit status 1" in said
    assert [run["state"] for run in hpcml.runs_once_ended()] == ["COMPLETED"]


def test_a_job_whose_nodes_are_all_drained_is_taken_and_one_that_none_of_them_can_run_is_not(
    hpcml_alone: Hpcml, slurm_alone: Account
) -> None:
    as_root(slurm_alone, "scontrol", "update", "NodeName=cpu1", "State=DRAIN", "Reason=test")
    try:
        waits = hpcml_alone.run("workload.command=true")
        never = hpcml_alone.run("resources.mem=900G", "workload.command=true")
        asked = hpcml_alone("status").stdout.decode()
    finally:
        as_root(slurm_alone, "scontrol", "update", "NodeName=cpu1", "State=RESUME")

    assert waits.returncode == 0, waits.stderr
    assert "Slurm says of the job: " in " ".join(waits.stderr.decode().split())
    assert "PENDING" in asked
    assert never.returncode == 3
    assert "Slurm refused the job" in never.stderr.decode()
    assert sorted(run["state"] for run in hpcml_alone.runs_once_ended()) == ["COMPLETED", "FAILED"]


def test_the_expected_start_is_told_where_the_nodes_are_taken(hpcml: Hpcml) -> None:
    holds = ["resources.cpus_per_task=8", "resources.walltime=30m", "workload.command='sleep 600'"]
    hpcml.submit(*holds)
    hpcml.until_running()
    time.sleep(1)

    done = hpcml.run("-n", *holds)
    held = hpcml.run("-n", "resources.extra_directives=[--hold]", *holds)

    assert "the scheduler expects the start in" in done.stdout.decode()
    assert "expects the start" not in held.stdout.decode()
    hpcml("cancel", hpcml.runs()[0]["uid"], "-y")
    hpcml.runs_once_ended()


def test_a_slurm_that_does_not_answer_stops_nothing_here(hpcml: Hpcml, folder: Path) -> None:
    programs = folder / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(
        '#!/bin/sh\ncase "$*" in *--test-only*) kill -9 $$;; esac\nexec /usr/bin/sbatch "$@"\n'
    )
    (programs / "sbatch").chmod(0o755)

    done = hpcml.run("workload.command=true", PATH=f"{programs}:{hpcml.account.environ['PATH']}")

    assert done.returncode == 0, done.stderr
    assert "Slurm did not say whether it would take the job" in " ".join(done.stderr.decode().split())
    assert [run["state"] for run in hpcml.runs_once_ended()] == ["COMPLETED"]
