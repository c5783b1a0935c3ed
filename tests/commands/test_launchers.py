"""Which launcher starts the ranks of an MPI program, and what is refused before anything queues."""

from __future__ import annotations

import pytest

from hpcml.commands.submit.strategy import mpi_start_of
from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster, Lsf, SchedulerName
from hpcml.runs.plan import MpiStart
from tests.conftest import ComposeOne

TWO = ("strategy=mpi", "strategy.processes_per_node=2", "resources.account=x", "workload.command=./solve")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (("+cluster=karolina", "cluster.mpi=pmix"), MpiStart(launcher="srun", pmi="pmix")),
        (("+cluster=karolina", "cluster.mpi=pmix", "workload.launcher=mpirun"), MpiStart(launcher="mpirun")),
        (("+cluster=dgx2", "resources.gpus_per_node=2"), MpiStart(launcher="mpirun")),
        (("+cluster=dgx2", "workload.launcher=pbsdsh"), MpiStart(launcher="pbsdsh")),
        (("+cluster=dgx2", "cluster.mpi_launcher=mpiexec"), MpiStart(launcher="mpiexec")),
        (("workload.launcher=none",), MpiStart(launcher="none")),
        (("+cluster=tuolumne",), MpiStart(launcher="mpirun")),
        (("+cluster=tuolumne", "resources.nodes=2", "cluster.mpi_launcher=mpiexec"), MpiStart(launcher="mpiexec")),
        ((), MpiStart(launcher="mpirun")),
    ],
)
def test_the_ranks_are_started_by_what_the_scheduler_or_the_site_has(
    compose_one: ComposeOne, words: tuple[str, ...], start: MpiStart
) -> None:
    assert mpi_start_of(compose_one(*words, "resources.gpus_per_node=2", *TWO)) == start


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("workload.launcher=srun",), "cluster=local takes jobs by local, which has mpirun, mpiexec"),
        (("+cluster=karolina", "workload.launcher=pbsdsh"), "takes jobs by slurm, which has srun, mpirun, mpiexec"),
        (
            ("+cluster=dgx2", "cluster.mpi_launcher=mpiexec", "workload.launcher=mpirun"),
            "workload.launcher=mpirun: cluster=dgx2 starts MPI programs by mpiexec",
        ),
        (("workload.command='mpirun ./solve'",), "mpirun starts the processes itself, and strategy=mpi would start it"),
        (
            ("+cluster=tuolumne", "resources.nodes=2"),
            "strategy=mpi on 2 nodes: mpirun hears of no other node in jobs of",
        ),
        (
            ("+cluster=summit", "resources.nodes=2", "resources.account=ABC123"),
            "cluster=summit (lsf), and hpcml starts",
        ),
        (("strategy=ddp", "workload.launcher=mpirun"), "means something with strategy=mpi and horovod only, not ddp"),
    ],
)
def test_what_cannot_be_started_so_is_refused_in_one_line(
    compose_one: ComposeOne, words: tuple[str, ...], says: str
) -> None:
    run = compose_one("resources.gpus_per_node=2", *TWO, *words)

    with pytest.raises(ConfigError) as refused:
        mpi_start_of(run)

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_strategies_are_started_by_the_agents(compose_one: ComposeOne) -> None:
    assert mpi_start_of(compose_one()) is None
    assert mpi_start_of(compose_one("strategy=horovod", "strategy.processes_per_node=2")) is None
    asked = compose_one("strategy=horovod", "strategy.processes_per_node=2", "workload.launcher=mpirun")
    assert mpi_start_of(asked) == MpiStart(launcher="mpirun")


def test_a_word_for_srun_is_of_slurm_alone() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.mpi=pmix is what srun is told: cluster=x takes jobs by pbs"):
        Cluster(name="x", scheduler=SchedulerName.pbs, mpi="pmix")
    with pytest.raises(ConfigError, match=r"cluster\.mpi='pmix; rm': write one of the words"):
        Cluster(name="x", scheduler=SchedulerName.slurm, mpi="pmix; rm")


def test_runs_that_were_recorded_before_keep_their_identity(compose_one: ComposeOne) -> None:
    assert compose_one("workload.launcher=auto").spec_hash == compose_one().spec_hash


def test_the_words_of_lsf_are_refused_for_another_scheduler() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.lsf is for LSF: cluster=x takes jobs by slurm"):
        Cluster(name="x", scheduler=SchedulerName.slurm, lsf=Lsf(launcher="jsrun"))
