"""A real Open MPI program on two nodes of a real Slurm, started as one job; an agent watches on each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.mpi import building
from tests.cluster.slurm.account import Account
from tests.parts import require
from tests.schedulers.slurm.user import Hpcml, events

pytestmark = pytest.mark.slurm
TWO_NODES = ("resources.nodes=2", "resources.partition=qgpu", "strategy=mpi", "strategy.processes_per_node=2")


@pytest.fixture(scope="module")
def program(account: Account) -> Path:
    require("Open MPI", building.missing())
    return building.build(account.new_folder())


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    return Hpcml(slurm, folder)


def words(program: Path, doing: str, *more: str) -> list[str]:
    return [*TWO_NODES, "cluster.mpi=pmix", *building.settings(), f"workload.command='{program} {doing}'", *more]


def printed(run: dict[str, Any], attempt: int = 0) -> list[str]:
    return [(Path(run["path"]) / "logs" / f"{attempt}-rank{rank}.out").read_text() for rank in range(4)]


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_an_mpi_program_runs_as_one_job_on_two_nodes(hpcml: Hpcml, program: Path, launcher: str) -> None:
    hpcml.submit(*words(program, "sum", f"workload.launcher={launcher}"))

    (run,) = hpcml.runs_once_ended()
    if run["state"] == "COMPLETED":  # the first node's word: the second hears of the end, and tells its own, later
        hpcml.until(lambda runs: len(events(runs[0], "attempt_ended")) == 2)

    assert run["state"] == "COMPLETED", (run["reason"], [path.read_text() for path in Path(run["path"]).glob("logs/*")])
    nodes = ["gpu1", "gpu1", "gpu2", "gpu2"]
    assert printed(run) == [f"rank {rank} of 4 sum 10 as {rank} of 4 on {nodes[rank]}\n" for rank in range(4)]
    assert sorted(start["node"] for start in events(run, "attempt_started")) == [0, 1]
    assert [end["state"] for end in events(run, "attempt_ended")] == ["COMPLETED", "COMPLETED"]
    assert {told["node"] for told in events(run, "telemetry")} == {0, 1}
    assert len(events(run, "workload_started")) == 2  # the launcher, and who waits for its end: no rank twice


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_ranks_start_where_the_site_gives_memory_by_the_core(hpcml: Hpcml, program: Path, launcher: str) -> None:
    hpcml.submit(
        *words(program, "sum", f"workload.launcher={launcher}", "resources.cpus_per_task=2", "resources.mem=null")
    )

    (run,) = hpcml.runs_once_ended()

    assert run["state"] == "COMPLETED", (run["reason"], [path.read_text() for path in Path(run["path"]).glob("logs/*")])


@pytest.mark.parametrize("line", ["srun --mpi=pmix -n 4", "mpirun --bind-to none"])
def test_a_script_that_starts_the_ranks_itself_has_the_whole_job(hpcml: Hpcml, program: Path, line: str) -> None:
    script = f"echo $SLURM_NTASKS $SLURM_CPUS_PER_TASK; {line} {program} sum"
    own = (
        *TWO_NODES,
        *building.settings(),
        "workload.launcher=none",
        "resources.cpus_per_task=2",
        "resources.mem=null",
    )

    hpcml.submit(*own, "resources.walltime=3m", "--", "bash", "-c", script)

    (run,) = hpcml.runs_once_ended()
    out = (Path(run["path"]) / "logs" / "0-rank0.out").read_text().splitlines()
    assert run["state"] == "COMPLETED", (run["reason"], out)
    assert out[0] == "4 2"
    assert [line.partition(" as ")[0] for line in sorted(out[1:])] == [f"rank {rank} of 4 sum 10" for rank in range(4)]


def test_the_rank_that_fails_ends_all_and_is_named_with_its_own_code(hpcml: Hpcml, program: Path) -> None:
    hpcml.submit(*words(program, "fail 3 9"))

    (run,) = hpcml.runs_once_ended()

    assert (run["state"], run["exit_code"]) == ("FAILED", 9), run["reason"]
    assert run["reason"].startswith("rank 3 on "), run["reason"]
    assert run["reason"].partition("; ")[0].endswith("exit status 9")


def test_ranks_that_are_warned_leave_at_a_checkpoint_and_the_run_goes_on(hpcml: Hpcml, program: Path) -> None:
    hpcml.submit(*words(program, "leave", "schedule.max_requeues=1"))
    (run,) = hpcml.until_running()

    hpcml.account.run(["scancel", "--signal=USR1", "--batch", run["job_id"]], cwd=hpcml.project)

    (again,) = hpcml.until(lambda runs: runs[0]["attempt"] == 1 and runs[0]["state"] == "RUNNING")
    assert hpcml("cancel", again["uid"], "-y").returncode == 0
    first = [end for end in events(again, "attempt_ended") if end["attempt"] == 0]
    assert [(end["state"], end["checkpointed"]) for end in first] == [("TIMEOUT", True)] * 2


def test_ranks_whose_walltime_is_over_have_their_grace(hpcml: Hpcml, program: Path) -> None:
    hpcml.submit(
        *words(program, "wait", "resources.walltime=30s", "workload.stop_grace=10s", "schedule.max_requeues=0")
    )

    (run,) = hpcml.runs_once_ended()

    assert run["state"] == "TIMEOUT", run["reason"]
    assert all("ended in peace" in text for text in printed(run)), printed(run)


def test_a_pmi_that_the_program_does_not_get_is_said(hpcml: Hpcml, program: Path) -> None:
    hpcml.submit(*words(program, "sum", "cluster.mpi=none", "workload.launcher=srun"))

    (run,) = hpcml.runs_once_ended()

    assert run["state"] == "FAILED"
    assert "srun gave its processes no PMI, by which MPI programs find each other" in run["reason"], run["reason"]
