"""A real Open MPI program on two nodes of the PBS double: mpirun over the node file, by PBS's own remote shells."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from hpcml.model.state import State
from hpcml.schedulers.contract import Job
from hpcml.schedulers.driver import Driver
from tests.cluster.mpi import building
from tests.cluster.pbs.double import PbsDouble
from tests.parts import require
from tests.schedulers.pbs.runs import batch_of, events, output, until_final, wait_for_start, write_job

TWO_NODES = ("strategy=mpi", "strategy.processes_per_node=2", "resources.nodes=2")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    require("Open MPI", building.missing())
    return building.build(tmp_path)


def mpi_job(submitter: Driver, folder: Path, program: Path, doing: str, *words: str) -> Job:
    return write_job(submitter, folder, [str(program), *doing.split()], *TWO_NODES, *building.settings(), *words)


def said(job: Job) -> list[str]:
    return [path.read_text() for path in sorted(job.run_dir.logs.iterdir())]


def test_an_mpi_program_runs_as_one_job_over_the_node_file(submitter: Driver, folder: Path, program: Path) -> None:
    job = mpi_job(submitter, folder, program, "sum")

    (ticket,) = submitter.submit(batch_of([job]))
    known = until_final(submitter, [ticket])[ticket]

    assert known.state is State.COMPLETED, said(job)
    assert [output(job, rank=rank) for rank in range(4)] == [
        f"rank {rank} of 4 sum 10 as {rank} of 4 on -\n" for rank in range(4)
    ]
    assert (job.run_dir.mpi(0) / "hosts").read_text() == "pbs01 slots=2\npbs02 slots=2\n"
    assert sorted(int(str(start["node"])) for start in events(job, "attempt_started")) == [0, 1]
    assert [end["state"] for end in events(job, "attempt_ended")] == ["COMPLETED", "COMPLETED"]


def test_the_second_node_is_reached_by_what_pbs_has_for_it(
    submitter: Driver, folder: Path, program: Path, pbs: PbsDouble
) -> None:
    job = mpi_job(submitter, folder, program, "sum", "workload.launcher=pbsdsh", "cluster.launcher=pbs_tmrsh")

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].state is State.COMPLETED, said(job)
    daemons = [words for words in pbs.call_words() if "orted" in " ".join(words)]
    assert {words[0] for words in daemons} == {"pbsdsh"}
    assert "pbs02" in {words[2] for words in daemons}  # and pbs01, which is not the name of this machine


def test_the_rank_that_fails_ends_all_and_is_named(submitter: Driver, folder: Path, program: Path) -> None:
    job = mpi_job(submitter, folder, program, "fail 3 9")

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].exit_code == "9", said(job)
    reasons = [str(end["reason"]) for end in (*events(job, "attempt_ended"), *events(job, "attempt_interrupted"))]
    assert len(reasons) == 2
    assert all("rank 3 on " in reason or "ended first" in reason for reason in reasons), reasons
    (ended, *_) = events(job, "attempt_ended")
    assert ended["exit_code"] == 9


def test_ranks_of_a_job_that_is_deleted_are_gone_on_all_nodes(submitter: Driver, folder: Path, program: Path) -> None:
    job = mpi_job(submitter, folder, program, "wait")
    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_start(job, agents=4)

    submitter.cancel([ticket])

    assert until_final(submitter, [ticket])[ticket].state is State.CANCELLED
    until = time.monotonic() + 60
    while any(str(program) in words for words in _command_lines()):
        assert time.monotonic() < until
        time.sleep(0.2)


def test_without_a_launcher_the_run_says_which_one_is_missing(
    submitter: Driver, folder: Path, program: Path, pbs: PbsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bash", "env", "awk", "sleep", "date", "cat", "rm", "sh", "python3", "mkdir"):
        (pbs.bin / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    monkeypatch.setenv("PATH", str(pbs.bin))
    job = mpi_job(submitter, folder, program, "sum")

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].state is State.FAILED
    assert [end["reason"] for end in events(job, "attempt_ended")][:1] == [
        "cannot start mpirun: No such file or directory"
    ]


def _command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [words for words in found if "pytest" not in words]
