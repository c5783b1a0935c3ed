"""`hpcml run` killed with SIGKILL around a real sbatch, then `hpcml sync`: Slurm has one job for each run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.slurm import as_user
from tests.slurm.user import Hpcml, events

pytestmark = pytest.mark.slurm

BEFORE = "kill -9 $PPID; exit 1"
AFTER = '/usr/bin/sbatch "$@"; kill -9 $PPID'
ON_ITS_WAY = '(sleep 1; /usr/bin/sbatch "$@") >/dev/null 2>&1 & kill -9 $PPID'
COUNTS = "workload.command=\"bash -c 'echo x >> $HPCML_RUN_ID'\""


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    return Hpcml(slurm, folder)


@pytest.fixture
def wrapped(slurm: Account, folder: Path) -> Callable[..., dict[str, str]]:
    """Put an sbatch in front of the real one that does *body* at its call number *at_call*."""

    def variables(body: str, *, at_call: int = 1) -> dict[str, str]:
        text = (
            '#!/bin/bash\ncalls="${0%/*}/calls"; echo >> "$calls"\n'
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
        assert (hpcml.project / run["uid"]).read_text() == "x\n"
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


def test_killed_between_two_batches_each_is_there_once(hpcml: Hpcml, wrapped: Callable[..., dict[str, str]]) -> None:
    sweep = ("-m", COUNTS, "seed=1,2", "resources.mem=200M,300M", "--detach")
    assert hpcml.run(*sweep, **wrapped(BEFORE, at_call=2)).returncode == -9

    assert hpcml("sync").returncode == 0

    assert_one_job_for_each(hpcml, runs=4, jobs=2)
