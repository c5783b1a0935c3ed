"""Requests that a real Slurm refuses: its own words arrive, in one line, and nothing is queued."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcml.errors import SubmissionError
from tests.cluster.slurm.account import Account
from tests.schedulers.slurm import as_user

pytestmark = pytest.mark.slurm

GPU = ("resources.partition=qgpu", "resources.gpus_per_node=1")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["resources.account=nosuch"], "Invalid account or account/partition combination specified (set resources.acc"),
        (["resources.partition=nosuch"], "invalid partition specified: nosuch"),
        (["resources.qos=nosuch"], "Invalid qos specification"),
        ([*GPU, "cluster.gpu_request='--gpus-per-node=a100:{gpus}'"], "Requested node configuration is not available"),
        (["resources.gpus_per_node=1"], "Requested node configuration is not available"),
        ([*GPU, "resources.partition=qgpu_exp", "resources.walltime=10:00:00"], "Requested time limit is invalid"),
        (["resources.cpus_per_task=64", "cluster.cores_per_node=null"], "More processors requested than permitted"),
        (["resources.mem=100G"], "Memory specification can not be satisfied"),
        (["resources.constraint=haswell"], "Invalid feature specification"),
        (["resources.nodelist=nosuch"], "Invalid node name specified"),
        (["resources.reservation=nosuch"], "Requested reservation is invalid"),
        (["resources.extra_directives=['--nosuch=1']"], "unrecognized option '--nosuch=1'"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_request_that_cannot_be_met_is_refused_in_slurms_words(
    slurm: Account, folder: Path, count: int, overrides: list[str], words: str
) -> None:
    with pytest.raises(SubmissionError) as refused:
        slurm.call(as_user.submit, folder, ["echo never"] * count, *overrides)

    assert str(refused.value).startswith("Slurm refused the job: ")
    assert words in str(refused.value)
    assert "sbatch: error" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_array_beyond_the_sites_limit_is_refused_with_what_to_do(slurm: Account, folder: Path) -> None:
    with pytest.raises(SubmissionError, match=r"Invalid job array specification \(.*cluster\.max_array_size"):
        slurm.call(as_user.submit_copies, folder, 1002)


def test_more_jobs_than_the_site_lets_a_user_queue_are_refused_with_what_to_do(
    slurm_alone: Account, folder: Path
) -> None:
    limit = ["sacctmgr", "-i", "-Q", "modify", "user", "hpcuser", "set"]
    environ = slurm_alone.cluster.environ
    subprocess.run([*limit, "MaxSubmitJobs=3"], env=environ, check=True, capture_output=True)
    try:
        with pytest.raises(SubmissionError, match=r"SubmitJobLimit.*\(more jobs than the site lets.*schedule\.pack"):
            slurm_alone.call(as_user.submit_copies, folder, 4)
    finally:
        subprocess.run([*limit, "MaxSubmitJobs=-1"], env=environ, check=True, capture_output=True)
