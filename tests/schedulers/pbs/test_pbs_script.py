"""What PBS is asked for: whole scripts, whole command lines, and what is refused before PBS sees it."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.schedulers.pbs.scheduler import PBS, directives, log_place, options, render, submit
from hpcml.schedulers.request import Request
from tests.schedulers.slurm.test_slurm_script import draft

SITE = Cluster(name="site", scheduler=SchedulerName.pbs)
REQUEST = Request(
    account=None, partition=None, qos=None, nodes=1, gpus_per_node=0, cpus_per_node=None, mem_mb=None, walltime_s=None,
    constraint=None, reservation=None, nodelist=None, exclude=None, exclusive=False, dependency=None, mail_user=None,
    mail_type=None, array_parallelism=None, extra_directives=(), cluster=SITE,
)  # fmt: skip
LOGS = Path("/home/me/runs/1/logs")


def said(**words: object) -> str:
    """Return the options of qsub for a request that differs in *words*."""
    request = replace(REQUEST, **words)
    return " ".join(" ".join(option) for option in options(draft(request, name="run", logs=LOGS)))


def test_a_whole_script_says_everything_and_can_be_submitted_by_hand() -> None:
    site = replace(SITE, modules=["CUDA/12.4"], prelude=["ulimit -s unlimited"])
    request = replace(
        REQUEST,
        account="OPEN-00-00",
        partition="qnvidia",
        gpus_per_node=4,
        cpus_per_node=16,
        mem_mb=65536,
        walltime_s=26 * 3600,
        array_parallelism=8,
        extra_directives=("-l license=1",),
        cluster=site,
    )

    script = render(
        draft(
            request, name="my_sweep", remark="a sweep", logs=Path("/home/a b/sub"),
            script=Path("/home/a b/sub/job.sh"), command=["/venv/bin/python", "-m", "x", "y z"], array_size=100,
        )
    )  # fmt: skip

    assert script == (
        "#!/bin/bash\n"
        "# a sweep\n"
        "#PBS -q qnvidia\n"
        "#PBS -A OPEN-00-00\n"
        "#PBS -l select=1:ncpus=16:ngpus=4:mem=65536mb\n"
        "#PBS -l walltime=26:00:00\n"
        "#PBS -J 0-99%8\n"
        "#PBS -W umask=022\n"
        "#PBS -j oe\n"
        "#PBS -k oed\n"
        '#PBS -o "/home/a b/sub/"\n'
        "#PBS -m n\n"
        "#PBS -r y\n"
        "#PBS -l license=1\n"
        "#PBS -N my_sweep\n"
        "\n"
        'cd "${PBS_O_WORKDIR:-.}"\n'
        'export PATH="${PBS_O_PATH:-$PATH}"  # PBS gives /bin:/usr/bin only; this is where it was submitted\n'
        "command -v module >/dev/null || . /etc/profile\n"
        "module load CUDA/12.4 || exit 1\n"
        "set -e\n"
        "ulimit -s unlimited\n"
        "exec /venv/bin/python -m x 'y z'\n"
    )


def test_the_submission_says_the_same_without_a_login_shell() -> None:
    request = replace(REQUEST, partition="qgpu", extra_directives=("-l place=pack:excl -N mine -P 'a project'",))

    argv = submit(draft(request, name="run", logs=LOGS, script=Path("/home/me/runs/1/job.sh")))

    assert argv[:3] == ["qsub", "-q", "qgpu"]
    assert argv[-11:-3] == ["-l", "place=pack:excl", "-N", "mine", "-P", "a project", "-N", "run"]
    assert argv[-3:] == ["--", "/bin/bash", "/home/me/runs/1/job.sh"]


def test_directives_and_command_line_are_the_same_words() -> None:
    wanted = draft(replace(REQUEST, account="OPEN 00/00", walltime_s=60), name="run", logs=Path("/a b/c,d"))

    assert [tuple(shlex.split(line)) for line in directives(wanted)] == options(wanted)


def test_several_nodes_are_scattered_and_whole_nodes_are_not_shared() -> None:
    assert "-l select=2 -l place=scatter " in said(nodes=2)
    assert "-l place=scatter:excl " in said(nodes=2, exclusive=True)
    assert "-l select=1:ncpus=24 -W" in said(cluster=replace(SITE, whole_nodes=True, cores_per_node=24))


def test_gpus_are_asked_for_in_the_sites_words() -> None:
    assert "select=1:ncpus=8:ngpus=2 " in said(gpus_per_node=2, cpus_per_node=8)
    assert "select=1:gpu_v100=2 " in said(gpus_per_node=2, cluster=replace(SITE, gpu_request=":gpu_v100={gpus}"))
    assert "gpu" not in said(gpus_per_node=0, cluster=replace(SITE, gpu_request=":gpu_v100={gpus}"))
    assert "select=1:ncpus=8 " in said(gpus_per_node=2, cpus_per_node=8, cluster=replace(SITE, gpu_request=""))


def test_words_of_slurm_that_have_a_meaning_are_translated() -> None:
    assert "-q R123 " in said(partition="qprod", reservation="R123.isrv5")
    assert "select=1:ncpus=4:cpu_type=rome " in said(cpus_per_node=4, constraint="cpu_type=rome")
    assert "select=1:ncpus=4:host=n1+1:ncpus=4:host=n2 " in said(nodes=2, cpus_per_node=4, nodelist="n1,n2")
    assert "-W depend=afterok:12.srv:13,afterany:14 " in said(dependency="afterok:12.srv:13,afterany:14")
    assert "-m ae -M me@example.org " in said(mail_user="me@example.org", mail_type="END,FAIL")
    assert "-M me@example.org" in said(mail_user="me@example.org")
    assert "-m n " in said()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"qos": "high"}, "no quality of service"),
        ({"exclude": "n1"}, "which nodes to avoid"),
        ({"constraint": "a100&ib"}, "knows no features"),
        ({"constraint": "a=1 -q other"}, "knows no features"),
        ({"nodelist": "n[1-4]"}, "without brackets"),
        ({"nodelist": "n1,n2"}, "exactly one name for each"),
        ({"dependency": "singleton"}, "afternotok"),
        ({"dependency": "afterok:1 -q x"}, "afternotok"),
        ({"mail_type": "TIME_LIMIT"}, "PBS has NONE"),
        ({"extra_directives": ("-l a=1\ncurl evil",)}, "line break"),
        ({"extra_directives": ("-l a=1\rcurl evil",)}, "line break"),
        ({"extra_directives": ("-l a=1\0",)}, "line break"),
    ],
)
def test_words_without_a_meaning_are_refused_with_the_reason(words: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        said(**words)


def test_what_cannot_be_split_into_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be split"):
        said(extra_directives=("-l 'a",))


def test_an_account_cannot_add_a_line_or_break_out_of_its_quotes() -> None:
    wanted = draft(replace(REQUEST, account='a" -q other'), name="run", logs=LOGS)

    with pytest.raises(ConfigError, match="cannot be written as a #PBS line"):
        directives(wanted)
    assert ("-A", 'a" -q other') in options(wanted)


def test_names_are_what_every_pbs_takes() -> None:
    assert PBS.job_name("a b/c:d,é$(x)", "t") == "a_b_c_d____x_.t"
    assert PBS.job_name("20261121-x", "t") == "j20261121-x.t"
    assert PBS.job_name("", "t") == "j.t"
    assert len(PBS.job_name("x" * 500, "t" * 40)) <= 230  # qsub refuses 231
    assert set(PBS.job_name("".join(map(chr, range(1, 300))), "t")) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-"
    )


@pytest.mark.parametrize("folder", ["/home/é", "/a/$x", "/a/`x`", '/a/"', "/a\nb", "/a/^array_index^"])
def test_a_folder_that_qsub_would_misread_gets_its_log_from_the_script_itself(folder: str) -> None:
    script = render(draft(REQUEST, logs=Path(folder), script=Path(folder) / "job.sh"))

    assert log_place(Path(folder)) == "/dev/null"
    assert "#PBS -o /dev/null\n" in script
    assert f'exec >>{shlex.quote(folder)}/"${{PBS_JOBID:-by-hand}}".OU' in script


@pytest.mark.parametrize("nodes", [1, 2])
def test_scripts_are_valid_bash(nodes: int) -> None:
    request = replace(REQUEST, nodes=nodes, cluster=replace(SITE, modules=["a b"], prelude=["x=1"]))
    script = render(
        draft(request, logs=Path("/it's/$HOME"), script=Path("/it's/$HOME/job.sh"), command=["echo", "it's"])
    )

    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
