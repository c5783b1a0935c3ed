"""What starts the ranks of an MPI job, what it is told, and what its agents read of how the ranks ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpcml.agent.mpi.launch import Size, command, environment, host_file, hosts_of
from hpcml.agent.mpi.rank import refusal
from hpcml.agent.mpi.reach import choose
from hpcml.agent.mpi.records import RankEnd, Records, codes_of, named
from hpcml.agent.outcome import judge
from hpcml.model.state import State
from hpcml.runs.plan import MpiStart
from hpcml_client.client import Ranks, ranks_by_launcher

SIZE = Size(nodes=2, each=4, cpus=3)
OPEN_MPI = "mpirun (Open MPI) 4.1.4"  # mpirun --version, Debian 12
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2"


def answers(version: str, ompi_info: str = "") -> Callable[[Sequence[str]], str]:
    return lambda words: ompi_info if words[0] == "ompi_info" else version


def test_srun_starts_a_block_of_ranks_on_each_node_beside_the_agents() -> None:
    words = command(MpiStart(launcher="srun", pmi="pmix"), SIZE, ["rank"], {}, hosts=None, ask=answers(""))

    assert " ".join(words) == (
        "srun --overlap --mpi=pmix --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=3 --distribution=block "
        "--kill-on-bad-exit=1 --export=ALL rank"
    )


@pytest.mark.parametrize(("info", "is_reached"), [("mca:ras:slurm:version", True), ("mca:ras:tm:version", False)])
def test_open_mpi_gets_a_remote_shell_where_it_was_built_without_pbs(
    tmp_path: Path,
    info: str,
    is_reached: bool,  # noqa: FBT001 - what it is about
) -> None:
    hosts = tmp_path / "hosts"
    environ = {"PATH": "/bin", "A": "1", "CUDA_VISIBLE_DEVICES": "0", "PBS_TASKNUM": "2", "BASH_FUNC_ml%%": "x"}

    words = command(MpiStart(launcher="mpirun"), SIZE, ["rank"], environ, hosts=hosts, ask=answers(OPEN_MPI, info))

    assert ("hpcml.agent.mpi.reach" in " ".join(words)) is is_reached
    assert f"mpirun -np 8 --hostfile {hosts}" in " ".join(words)
    assert " ".join(words).endswith("--map-by ppr:4:node --bind-to none -x A -x PATH rank")


def test_another_mpi_is_told_in_the_words_of_hydra_and_pals(tmp_path: Path) -> None:
    environ = {"PBS_NODEFILE": "/var/spool/nodes"}

    words = command(MpiStart(launcher="mpiexec"), SIZE, ["rank"], environ, hosts=tmp_path / "hosts", ask=answers(HYDRA))

    assert words == ["mpiexec", "-n", "8", "--ppn", "4", "--hostfile", "/var/spool/nodes", "rank"]


def test_mpirun_in_a_slurm_job_hears_of_the_ranks_and_not_of_the_agents() -> None:
    around = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_ID": "0", "B": "1"}

    found = environment({**around, "PMI_RANK": "0"}, MpiStart(launcher="mpirun"), SIZE)

    assert (found["SLURM_NTASKS"], found["SLURM_TASKS_PER_NODE"], found["SLURM_OVERLAP"]) == ("8", "4(x2)", "1")
    assert not found.keys() & {"SLURM_STEP_ID", "PMI_RANK"}
    assert found["B"] == "1"


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "none"])
def test_a_step_beside_that_of_the_agents_has_the_memory_of_the_job(launcher: str) -> None:
    around = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "200", "SLURM_MEM_PER_GPU": "1000", "SLURM_CPUS_PER_TASK": "8"}

    found = environment(around, MpiStart(launcher=launcher), SIZE)

    assert (found["SLURM_OVERLAP"], found["SLURM_MEM_PER_NODE"]) == ("1", "0")
    assert not found.keys() & {"SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"}  # beside the other they end srun


def test_a_script_that_starts_the_ranks_itself_finds_the_job_as_it_would_have_asked_for_it() -> None:
    around = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_MEM_PER_CPU": "200", "SLURM_CPUS_PER_TASK": "8"}

    found = environment(around, MpiStart(launcher="none"), Size(nodes=1, each=4, cpus=2))

    assert (found["SLURM_NTASKS"], found["SLURM_CPUS_PER_TASK"]) == ("4", "2")
    assert found["SLURM_MEM_PER_CPU"] == "200"  # on one node there is no step of an agent beside its own
    assert "SLURM_OVERLAP" not in found


def test_the_nodes_of_pbs_are_named_once_with_their_slots(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("b\nb\na\n")

    assert host_file(hosts_of({"PBS_NODEFILE": str(nodes)}), 4) == "b slots=4\na slots=4\n"
    assert hosts_of({}) == []


def test_the_first_remote_shell_that_is_there_is_taken(tmp_path: Path) -> None:
    for name in ("ssh", "pbsdsh"):
        (tmp_path / name).touch(mode=0o755)

    assert choose({"PATH": str(tmp_path)}) == "ssh"
    assert choose({"PATH": str(tmp_path), "HPCML_MPI_REACH": "pbsdsh"}) == "pbsdsh"


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (3, 8, 1)),
        ({"PMI_RANK": "3", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "RANK": "0"}, (3, 8, 1)),
        ({"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "SLURM_PROCID": "0"}, (3, 8, 1)),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "3",
                "SLURM_NTASKS": "8",
                "SLURM_LOCALID": "1",
                "PMI_RANK": "3",
                "PMI_SIZE": "8",
            },
            (3, 8, 1),
        ),
        ({"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "8", "FLUX_TASK_LOCAL_ID": "1"}, (3, 8, 1)),
    ],
)
def test_a_rank_is_what_its_launcher_says(environ: dict[str, str], ranks: tuple[int, int, int]) -> None:
    assert ranks_by_launcher(environ) == ranks


def test_a_process_that_no_launcher_told_a_rank_has_none() -> None:
    assert ranks_by_launcher({"RANK": "0", "WORLD_SIZE": "2"}) is None


def test_a_program_that_would_run_alone_several_times_is_refused() -> None:
    told = {"PMIX_RANK": "0"}

    assert refusal(Ranks(0, 4, 0), told, launcher="srun", count=4) is None
    assert "no rank" in str(refusal(None, {}, launcher="mpirun", count=4))
    assert "started 1 process(es), and 4 were planned" in str(refusal(Ranks(0, 1, 0), told, launcher="m", count=4))
    assert "no PMI" in str(refusal(Ranks(0, 4, 0), {"SLURM_PROCID": "0"}, launcher="srun", count=4))


def end(code: int, at_s: float = 0.0, host: str = "n1") -> RankEnd:
    return RankEnd(code=code, at_s=at_s, host=host)


def test_the_ranks_codes_stand_for_the_launchers() -> None:
    assert codes_of(143, {0: end(0), 1: end(9)}, 2) == [0, 9]
    assert codes_of(137, {1: end(9)}, 2) == [-signal.SIGTERM, 9]
    assert codes_of(0, {0: end(75), 1: end(75)}, 2) == [75, 75]
    assert codes_of(1, {0: end(0), 1: end(0)}, 2) == [1]  # mpirun's own failure
    assert codes_of(213, {}, 2) == [213]


def test_a_rank_that_leaves_well_before_the_others_is_named_and_not_one_that_was_ended_for_it() -> None:
    ends = {0: end(-15, 2.0), 1: end(0, 1.0), 2: end(-15, 2.1)}

    outcome = named(judge(codes_of(1, ends, 3), None, warned=False, wall_s=1.0), ends, launcher="mpirun", said="")

    why = "left with exit status 0, without MPI_Finalize? mpirun then ended the others"
    assert outcome.reason is not None
    assert (outcome.reason.startswith("rank 1 on "), outcome.reason.endswith(why)) == (True, True)


def test_the_rank_that_failed_first_is_named_with_its_node() -> None:
    ends = {0: end(6, at_s=20.0), 1: end(9, at_s=10.0, host="n2"), 2: end(-15, at_s=9.0)}

    outcome = named(judge(codes_of(143, ends, 3), None, warned=False, wall_s=1.0), ends, launcher="srun", said="")

    assert (outcome.state, outcome.reason, outcome.exit_code) == (State.FAILED, "rank 1 on n2: exit status 9", 9)


def test_a_launcher_that_fails_by_itself_is_quoted() -> None:
    outcome = judge([213], None, warned=False, wall_s=1.0)

    found = named(outcome, {}, launcher="mpirun", said="There are not enough slots available\n-----\n")

    assert found.reason == "mpirun: exit status 213: There are not enough slots available"


def test_ranks_are_found_by_the_agent_of_their_node_only(tmp_path: Path) -> None:
    records = Records(tmp_path / "mpi")
    records.began(0, 0, os.getpid())
    records.began(1, 1, os.getppid())

    assert Records(tmp_path / "mpi").sessions_of(0) == {os.getpid()}
    assert Records(tmp_path / "nowhere").sessions_of(0) == set()


def test_the_end_is_told_to_the_other_nodes(tmp_path: Path) -> None:
    records = Records(tmp_path / "mpi")
    assert records.finished() is None

    records.finish(75)

    assert records.finished() == 75
