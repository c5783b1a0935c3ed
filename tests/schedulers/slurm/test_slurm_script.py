"""The sbatch script: what it says, whole, and that no value can say more than it should."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster, SchedulerName, Slurm
from hpcml.schedulers.batches import name_of
from hpcml.schedulers.commands import advised
from hpcml.schedulers.description import JobDraft
from hpcml.schedulers.request import Request
from hpcml.schedulers.script import agent_array_command, agent_command
from hpcml.schedulers.slurm import SLURM, clusters_in, environ, explain, render

NAME, TOKEN = "demo.20261121-101500-222abcde", "20261121-101500-222abcde"
FOLDER = Path("/scratch/runs/demo/20261121-101500-222abcde")


def request(**changes: object) -> Request:
    nothing = dict.fromkeys(
        (
            *("account", "partition", "qos", "cpus_per_node", "mem_mb", "walltime_s", "constraint", "reservation"),
            *("nodelist", "exclude", "dependency", "mail_user", "mail_type", "array_parallelism"),
        )
    )
    cluster = Cluster(name="test", scheduler=SchedulerName.slurm)
    plain = Request(nodes=1, gpus_per_node=0, exclusive=False, extra_directives=(), cluster=cluster, **nothing)  # type: ignore[arg-type]
    return replace(plain, **changes)  # type: ignore[arg-type]


def draft(asked: Request, **more: object) -> JobDraft:
    folder = more.get("folder", FOLDER)
    assert isinstance(folder, Path)
    plain = JobDraft(
        request=asked, name=NAME, token=TOKEN, remark="hpcml run x", folder=folder, logs=folder / "logs",
        script=folder / "job.sh", command=["agent"],
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


def directives(asked: Request, **more: object) -> list[str]:
    text = render(draft(asked, **more))
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_a_script_says_every_directive_before_its_first_command() -> None:
    asked = request(
        account="OPEN-1-2",
        partition="qgpu",
        qos="high",
        gpus_per_node=2,
        cpus_per_node=32,
        mem_mb=64_000,
        walltime_s=49 * 3600 + 90,
        constraint="a100&nvme",
        exclusive=True,
        mail_user="me@example.org",
        mail_type="END,FAIL",
        extra_directives=("--licenses=x:2",),
        cluster=Cluster(
            name="test", scheduler=SchedulerName.slurm, modules=["Python/3.11", "CUDA 12"], prelude=["ulimit -n 4096"]
        ),
    )

    text = render(draft(asked, command=["python", "-m", "agent", "a b"]))

    assert (
        text
        == """\
#!/bin/bash
# hpcml run x
#SBATCH --account=OPEN-1-2
#SBATCH --partition=qgpu
#SBATCH --qos=high
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=64000M
#SBATCH --time=49:01:30
#SBATCH --constraint="a100&nvme"
#SBATCH --exclusive
#SBATCH --mail-user=me@example.org
#SBATCH --mail-type=END,FAIL
#SBATCH --requeue
#SBATCH --chdir=/scratch/runs/demo/20261121-101500-222abcde
#SBATCH --output=/scratch/runs/demo/20261121-101500-222abcde/slurm.log
#SBATCH --open-mode=append
#SBATCH --gpus-per-node=2
#SBATCH --licenses=x:2
#SBATCH --job-name=demo.20261121-101500-222abcde
#SBATCH --comment=hpcml:20261121-101500-222abcde

command -v module >/dev/null || . /etc/profile
module load Python/3.11 || exit 1
module load 'CUDA 12' || exit 1
set -e
ulimit -n 4096
exec python -m agent 'a b'
"""
    )


def test_several_nodes_start_one_agent_each_and_name_the_first() -> None:
    text = render(draft(request(nodes=3, cpus_per_node=8), command=["a"]))

    assert text.splitlines()[-5:] == [
        "",
        'HPCML_MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export HPCML_MASTER_ADDR",
        "set -e",
        "exec srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=1 --export=ALL a",
    ]


def test_what_was_not_asked_for_is_not_said() -> None:
    assert [line.partition("=")[0] for line in directives(request())] == [
        *("--nodes", "--ntasks-per-node", "--requeue", "--chdir", "--output", "--open-mode", "--job-name", "--comment")
    ]


def test_a_site_says_itself_how_gpus_are_asked_for() -> None:
    site = Cluster(name="t", scheduler=SchedulerName.slurm, gpu_type="a100", gpu_request="--gres=gpu:{gpu_type}:{gpus}")

    assert "--gres=gpu:a100:4" in directives(request(gpus_per_node=4, cluster=site))
    assert not any("gres" in line for line in directives(request(cluster=site)))


def test_a_site_whose_queue_gives_whole_gpu_nodes_is_not_asked_for_gpus() -> None:
    site = Cluster(name="lonestar6", scheduler=SchedulerName.slurm, gpu_request="", whole_nodes=True)

    asked = directives(request(gpus_per_node=3, cluster=site))

    assert not any("gpu" in line or "gres" in line or not line.strip() for line in asked)


def test_what_a_site_refuses_is_not_said() -> None:
    refused = ["ntasks-per-node", "requeue", "signal"]
    site = Cluster(name="archer2_gpu", scheduler=SchedulerName.slurm, slurm=Slurm(refuses=refused))

    text = render(draft(request(warning_s=180, cluster=site)))

    words = [line.partition("=")[0] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert words == [f"#SBATCH --{name}" for name in ("nodes", "chdir", "output", "open-mode", "job-name", "comment")]
    assert "trap" not in text  # no signal comes early that would end the shell


@pytest.mark.parametrize(("parallelism", "words"), [(None, "--array=0-9"), (3, "--array=0-9%3")])
def test_an_array_counts_from_zero_and_may_be_throttled(parallelism: int | None, words: str) -> None:
    asked = directives(request(array_parallelism=parallelism), array_size=10)

    assert words in asked
    assert f"--output={FOLDER}/slurm-%a.log" in asked


def test_a_value_with_quotes_and_backslashes_is_quoted_as_sbatch_reads_it() -> None:
    asked = directives(request(), name='a "b" \\c; $(d) #e')

    assert asked[-2] == r'--job-name="a \"b\" \\c; $(d) #e"'


@pytest.mark.parametrize("end", ["\n", "\r", "\0"])
@pytest.mark.parametrize("where", ["name", "token", "remark"])
def test_a_line_break_in_a_value_is_refused(where: str, end: str) -> None:
    with pytest.raises(ConfigError, match="line break"):
        directives(request(), **{where: f"x{end}rm -rf ~"})


@pytest.mark.parametrize("option", ["--clusters=cm4", "--cluster cm4", "-M cm4", '-M "cm4"', "-Mcm4"])
def test_the_cluster_that_a_directive_names_outvotes_that_of_the_shell_and_is_read_off_the_script(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "serial")
    script = render(draft(request(extra_directives=(option,))))

    assert script.index("#SBATCH --clusters=serial") < script.index(f"#SBATCH {option}")  # sbatch takes the last
    assert clusters_in(script) == "cm4"
    assert "export HPCML_JOB_CLUSTER=$SLURM_CLUSTER_NAME" in script.splitlines()  # for who submits it by hand


@pytest.mark.parametrize("option", ["--cluster-constraint=big", "--mem=1G", "--mail-user=-M"])
def test_other_options_are_not_taken_for_it(option: str) -> None:
    script = render(draft(request(extra_directives=(option,))))

    assert clusters_in(script) is None
    assert "HPCML_JOB_CLUSTER" not in script


def test_percent_signs_of_a_folder_are_no_patterns_to_slurm() -> None:
    assert "--output=/s/100%%j/slurm.log" in directives(request(), folder=Path("/s/100%j"))


def test_a_folder_with_a_backslash_has_one_log_since_slurm_then_knows_no_patterns() -> None:
    asked = directives(request(), folder=Path("/s/a\\b%j"), array_size=2)

    assert r'--output="/s/a\\\\b%j/slurm.log"' in asked


def test_the_token_at_the_end_of_a_job_name_outlives_a_long_label() -> None:
    name = name_of("ž" * 500, "20261121-101500-222abcde")

    assert name.endswith(".20261121-101500-222abcde")
    assert len(name.encode()) <= 255


def test_the_agent_is_started_by_the_python_that_submits() -> None:
    start = [sys.executable, "-P", "-c", "from hpcml.agent.main import begin; begin()"]

    assert agent_command("/r") == [*start, "/r"]
    assert agent_array_command("/b.json") == [*start, "--batch", "/b.json"]


def test_sbatch_hears_of_an_outer_job_only_what_reaches_the_cluster() -> None:
    variables = {
        "HOME": "/home/me", "SLURM_CONF": "/etc/c", "SLURM_JOB_ID": "1", "SBATCH_EXPORT": "NONE", "SBATCH_WAIT": "1",
    }  # fmt: skip

    assert environ(variables, request()) == {
        "HOME": "/home/me", "SLURM_CONF": "/etc/c", "SBATCH_EXPORT": "NONE",
    }  # fmt: skip


def test_a_users_default_account_counts_where_none_is_asked_for() -> None:
    variables = {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "p"}

    assert environ(variables, request()) == variables
    assert environ(variables, request(account="other")) == {"SBATCH_PARTITION": "p"}
    words = advised("Invalid account", SLURM.advice)
    assert explain(words, variables) == "Invalid account (set resources.account): SBATCH_ACCOUNT=mine was read"
    assert explain(words, {"SBATCH_PARTITION": "p"}) == "Invalid account (set resources.account)"


def test_no_job_gets_the_login_of_a_registry() -> None:
    variables = {"HOME": "/home/me", "NGC_API_KEY": "k", "APPTAINER_DOCKER_PASSWORD": "p"}

    assert environ(variables, request()) == {"HOME": "/home/me"}


def test_a_job_that_waits_for_a_run_ends_if_that_fails() -> None:
    waits = request(dependency="afterok:1", ends_with_dependency=True)

    assert {"--dependency=afterok:1", "--kill-on-invalid-dep=yes"} <= set(directives(waits))
    assert "--kill-on-invalid-dep=yes" not in directives(replace(waits, dependency=None))  # a retry, years later
    assert "--kill-on-invalid-dep=yes" not in directives(request(dependency="afterok:1"))
