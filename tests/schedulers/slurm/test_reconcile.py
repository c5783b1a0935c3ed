"""`hpcml run` killed with SIGKILL around a real sbatch, then `hpcml sync`: Slurm has one job for each run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.effort import times
from tests.schedulers.slurm import as_user
from tests.schedulers.slurm.user import Hpcml, events

pytestmark = pytest.mark.slurm

KILL = "kill -9 $PPID"  # hpcml
BEFORE = f"{KILL}; exit 1"
AFTER = f'/usr/bin/sbatch "$@"; {KILL}'
ON_ITS_WAY = f'(sleep 1; /usr/bin/sbatch "$@") >/dev/null 2>&1 & {KILL}'
LATE = f'{KILL}; until [ -e "${{0%/*}}/go" ]; do sleep 0.1; done; /usr/bin/sbatch "$@"'
COUNTS = "workload.command=\"bash -c 'echo x >> $HPCML_RUN_DIR/count'\""


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    return Hpcml(slurm, folder)


@pytest.fixture
def wrapped(slurm: Account, folder: Path) -> Callable[..., dict[str, str]]:
    """Put an sbatch in front of the real one that does *body* at its submission number *at_call*."""

    def variables(body: str, *, at_call: int = 1) -> dict[str, str]:
        text = (
            '#!/bin/bash\n[ "$1" = --test-only ] && exec /usr/bin/sbatch "$@"  # asks, and submits nothing\n'
            'calls="${0%/*}/calls"; echo >> "$calls"\n'
            f'if [ "$(wc -l < "$calls")" = {at_call} ]; then {body}; else exec /usr/bin/sbatch "$@"; fi\n'
        )
        folder_of_it = slurm.call(as_user.write_program, folder / "wrappers", "sbatch", text)
        return {"PATH": f"{folder_of_it}:{slurm.environ['PATH']}"}

    return variables


def assert_one_job_for_each(hpcml: Hpcml, *, runs: int, jobs: int) -> None:
    found = hpcml.runs_once_ended()
    assert [run["state"] for run in found] == ["COMPLETED"] * runs
    names = set()
    for run in found:
        (started,) = events(run, "attempt_started")
        submitted = events(run, "submitted")  # none where the job itself has told already
        assert len(submitted) <= 1
        names |= {said["job_name"] for said in [started, *submitted]}
        assert (Path(run["path"]) / "count").read_text() == "x\n"
    shown = hpcml.account.run(["squeue", "--noheader", "--states=all", "--format=%F %j"], cwd=hpcml.project)
    told = [line.split(maxsplit=1) for line in shown.stdout.decode().splitlines()]
    assert len(names) == len({job_id for job_id, name in told if name in names}) == jobs


@pytest.mark.parametrize("body", [BEFORE, AFTER, ON_ITS_WAY], ids=["before", "after", "on its way"])
@pytest.mark.parametrize("seeds", ["seed=1", "seed=1,2,3"])
def test_killed_around_sbatch_there_is_one_job(
    hpcml: Hpcml, wrapped: Callable[..., dict[str, str]], body: str, seeds: str
) -> None:
    done = hpcml.run("-m", COUNTS, seeds, "--detach", **wrapped(body))
    assert done.returncode == -9, done.stderr

    synced = hpcml("sync")

    assert synced.returncode == 0, synced.stderr
    assert b"1 interrupted submission finished" in synced.stdout
    assert_one_job_for_each(hpcml, runs=len(seeds.split(",")), jobs=1)


def test_of_two_jobs_of_a_run_since_a_wrapper_submitted_after_sync_did_one_carries_it_out(
    hpcml: Hpcml, wrapped: Callable[..., dict[str, str]]
) -> None:
    environ = wrapped(LATE)
    assert hpcml.run(COUNTS, "--detach", **environ).returncode == -9

    assert hpcml("sync").returncode == 0

    Path(environ["PATH"].partition(":")[0], "go").touch()
    until = time.monotonic() + 120
    while not events(hpcml.runs()[0], "attempt_left"):
        assert time.monotonic() < until
        time.sleep(0.5)
    (run,) = hpcml.runs_once_ended()
    assert (run["state"], (Path(run["path"]) / "count").read_text()) == ("COMPLETED", "x\n")


@pytest.mark.parametrize(
    "body", ['/usr/bin/sbatch "$@"; kill -9 $$', '/usr/bin/sbatch "$@" >/dev/null; exit 1'], ids=["killed", "failed"]
)
def test_an_sbatch_that_dies_or_fails_after_queueing_is_no_refusal(
    hpcml: Hpcml, wrapped: Callable[..., dict[str, str]], body: str
) -> None:
    done = hpcml.run(COUNTS, "--detach", **wrapped(body))

    assert done.returncode == 0, done.stderr
    assert_one_job_for_each(hpcml, runs=1, jobs=1)


def test_killed_between_two_batches_each_is_there_once(hpcml: Hpcml, wrapped: Callable[..., dict[str, str]]) -> None:
    sweep = ("-m", COUNTS, "seed=1,2", "resources.mem=200M,300M", "--detach")
    assert hpcml.run(*sweep, **wrapped(BEFORE, at_call=2)).returncode == -9

    assert hpcml("sync").returncode == 0

    assert_one_job_for_each(hpcml, runs=4, jobs=2)


@pytest.mark.parametrize("step", range(times(3, 25)))
def test_killed_in_any_window_of_a_slow_wrapper_there_is_one_job(
    hpcml: Hpcml, wrapped: Callable[..., dict[str, str]], step: int
) -> None:
    """The wrapper kills hpcml at one moment of those before, while and after the real sbatch runs."""
    at_s = 2.0 * step / times(3, 25)
    killer = f"(sleep {at_s:.2f}; {KILL}) & "
    done = hpcml.run(COUNTS, "--detach", **wrapped(f'{killer}sleep 0.8; /usr/bin/sbatch "$@"; sleep 1.5'))
    assert done.returncode == -9, done.stderr

    assert hpcml("sync").returncode == 0

    assert_one_job_for_each(hpcml, runs=1, jobs=1)
