"""What PBS sites want their jobs said like, and what a run may ask of PBS in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.pbs import PbsRequest, PbsSite
from hpcml.schedulers.pbs.scheduler import options
from hpcml.schedulers.request import request_for
from tests.conftest import ComposeOne
from tests.schedulers.slurm.test_slurm_script import draft
from tests.schedulers.test_golden_scripts import job_on

TWO = ("strategy=ddp", "resources.nodes=2")


def said(profile: str, project: Path, *words: str) -> list[str]:
    """Return the options of qsub for a run on *profile* with more *words*."""
    request = request_for(job_on(profile, project, *words).manifest)
    found = options(draft(request, logs=Path("/logs")))
    return [" ".join(option) for option in found if option[0] in ("-q", "-A", "-P", "-l") or "group" in option[1]]


def test_a_site_without_select_is_asked_for_the_totals_of_all_nodes(tmp_path: Path) -> None:
    words = ["resources.nodes=2", "strategy=ddp", "resources.gpus_per_node=4", "resources.mem=300G"]

    found = said("gadi", tmp_path, *words, "resources.pbs.options.storage=gdata/ab1+scratch/ab1")

    assert found == [
        "-q gpuvolta",
        "-P ACCOUNT",
        "-l ncpus=96",
        "-l ngpus=8",
        "-l mem=614400mb",
        "-l storage=gdata/ab1+scratch/ab1",
        "-l walltime=02:00:00",
    ]


def test_resources_of_the_job_are_named_and_spelled_by_whoever_asks_for_them(tmp_path: Path) -> None:
    found = said(
        "gadi", tmp_path, "resources.pbs.options={jobfs: 100GB, fast: true}", "+resources.pbs.options.level=1.10"
    )

    assert {"-l jobfs=100GB", "-l fast=true", "-l level=1.10"} <= set(found)


def test_a_site_whose_gpus_have_a_fixed_number_of_cores_refuses_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ncpus=8: cluster=gadi wants 12 cores for each GPU, 12 a node"):
        said("gadi", tmp_path, "resources.cpus_per_task=8")


def test_what_a_site_without_select_has_no_word_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resources\.pbs\.mpiprocs=4: cluster=gadi has no select"):
        said("gadi", tmp_path, "resources.pbs.mpiprocs=4")


def test_ranks_threads_place_and_further_chunks_have_names(tmp_path: Path) -> None:
    words = ["resources.pbs.mpiprocs=4", "resources.pbs.ompthreads=2", "resources.pbs.place=scatter:exclhost"]

    found = said("polaris", tmp_path, *words, "resources.pbs.chunks=['1:ncpus=8:model=mil']", *TWO)

    assert "-l select=2:mpiprocs=4:ompthreads=2:system=polaris+1:ncpus=8:model=mil" in found
    assert "-l place=scatter:exclhost" in found


def test_an_mpi_program_asks_for_a_slot_of_each_rank(tmp_path: Path) -> None:
    found = said("derecho", tmp_path, "strategy=mpi", "resources.gpus_per_node=4", "resources.cpus_per_task=16")

    assert "-l select=1:ncpus=64:ngpus=4:mem=491520mb:mpiprocs=4:ompthreads=16" in found


def test_an_account_is_a_project_or_a_group_where_the_site_says_so(tmp_path: Path) -> None:
    assert "-P ACCOUNT" in said("aspire2a", tmp_path)
    assert "-W group_list=ACCOUNT" in said("cabeus", tmp_path)


def test_an_exclusive_job_takes_its_nodes_from_the_others_of_a_shared_place(tmp_path: Path) -> None:
    assert "-l place=scatter:shared" in said("cabeus", tmp_path)
    assert "-l place=scatter:excl" in said("cabeus", tmp_path, "resources.exclusive=true")


@pytest.mark.parametrize(
    "asked",
    [
        {"place": "anywhere"},
        {"mpiprocs": 0},
        {"chunks": ["ncpus=8"]},
        {"chunks": ["1:ncpus=8 -W x=y"]},
        {"options": {"a b": "c"}},
        {"options": {"storage": "a,walltime=1"}},
        {"filesystems": "home\n#PBS -q x"},
    ],
)
def test_what_would_add_to_a_request_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"resources\.pbs"):
        PbsRequest(**asked)  # type: ignore[arg-type]


def test_pbss_words_are_refused_where_slurm_takes_the_jobs(compose_one: ComposeOne) -> None:
    with pytest.raises(ConfigError, match=r"resources\.pbs\.mpiprocs is a word of PBS: cluster=karolina takes jobs by"):
        compose_one("+cluster=karolina", "resources.account=x", "resources.pbs.mpiprocs=4")
    with pytest.raises(ConfigError, match=r"cluster\.pbs is for PBS: cluster=x takes jobs by slurm"):
        Cluster(name="x", scheduler=SchedulerName.slurm, pbs=PbsSite(place="scatter"))


def test_limits_by_nodes_and_a_shortest_walltime_are_the_queues(tmp_path: Path) -> None:
    for words, says in (
        (["resources.partition=prod"], r"resources\.nodes=1: queue prod of cluster=polaris begins at 10"),
        (["strategy=ddp", "resources.nodes=3"], r"resources\.nodes=3: queue debug of cluster=polaris allows 2"),
        (["resources.walltime=2m"], r"resources\.walltime=2m: queue debug of cluster=polaris wants 5m or more"),
    ):
        with pytest.raises(ConfigError, match=says):
            job_on("polaris", tmp_path, *words)


def test_an_nvidia_image_is_refused_where_the_gpus_are_intels(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is for GPUs of NVIDIA, and aurora has Intel's"):
        job_on("aurora", tmp_path, "+container=ngc_pytorch")
