import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import pytest

from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.cluster import Queue, SchedulerName
from hpcml.schedulers.commands import Answer, NoAnswerError
from hpcml.schedulers.discover import Found, ask_scheduler, describe
from hpcml.schedulers.sites import pbs_site, slurm_site

TODAY = date(2026, 11, 21)
# sinfo -h -e -o "%P|%a|%l|%L|%h|%D|%c|%m|%G" of Slurm 22.05.8
SINFO = """\
qcpu*|up|2-00:00:00|1:00:00|NO|1|8|8000|(null)
qgpu|up|2-00:00:00|1:00:00|NO|2|8|8000|gpu:v100:4
qgpu_exp|up|1:00:00|10:00|NO|2|8|8000|gpu:v100:4
"""
CONFIG = """\
Configuration data as of 2026-11-21T09:50:00
ClusterName             = hpcml
MaxArraySize            = 1001
SLURM_VERSION           = 22.05.8
"""
# pbsnodes -a -F json, qstat -Q -f -F json and qstat -B -f -F json of OpenPBS 23.06.06
PBSNODES = """{
	"timestamp":	1795234662, "pbs_version":	"23.06.06", "pbs_server":	"pbs01",
	"nodes":	{
		"pbs01":	{"Mom": "pbs01", "state": "free", "pcpus":	2,
			"resources_available":	{"arch": "linux", "mem": "256gb", "ncpus": 32, "ngpus": 4, "vnode": "pbs01"}},
		"pbs02":	{"Mom": "pbs02", "state": "free", "pcpus":	2,
			"resources_available":	{"arch": "linux", "mem": "256gb", "ncpus": 32, "ngpus": 4, "vnode": "pbs02"}}
	}
}"""
QSTAT_QUEUES = """{
	"timestamp":	1795234662, "pbs_version":	"23.06.06", "pbs_server":	"pbs01",
	"Queue":	{
		"workq":	{"queue_type": "Execution", "total_jobs": 0, "enabled": "True", "started": "True"},
		"qnvidia":	{"queue_type": "Execution", "total_jobs": 0,
			"resources_max": {"walltime": "48:00:00"}, "resources_default": {"walltime": "01:00:00"},
			"enabled": "True", "started": "True"},
		"qgpu":	{"queue_type": "Execution", "total_jobs": 0, "enabled": "True", "started": "True"}
	}
}"""
QSTAT_SERVER = (
    """{"pbs_version": "23.06.06", "Server": {"pbs01": {"default_queue": "qgpu", "max_array_size": 10000}}}"""
)


def of_slurm(sinfo: str, config: str = CONFIG) -> Found:
    return describe("mine", slurm_site(sinfo, config), today=TODAY)


def of_pbs(nodes: str = PBSNODES, queues: str = QSTAT_QUEUES, server: str = QSTAT_SERVER) -> Found:
    return describe("mine", pbs_site(nodes, queues, server), today=TODAY)


def test_slurms_own_words_become_a_profile() -> None:
    found = of_slurm(SINFO)

    site = found.cluster
    assert (site.name, site.scheduler, site.max_array_size) == ("mine", SchedulerName.slurm, 1001)
    assert (site.gpu_type, site.gpus_per_node, site.cores_per_node, site.cores_per_gpu) == ("v100", 4, 8, 2)
    assert (site.mem_per_node, site.max_walltime, site.whole_nodes) == ("8000M", "48:00:00", False)
    assert site.gpu_request == "--gpus-per-node={gpu_type}:{gpus}"
    assert site.queues == {
        "qcpu": Queue(max_walltime="48:00:00", gpus=False),
        "qgpu": Queue(max_walltime="48:00:00", gpus=True),
        "qgpu_exp": Queue(max_walltime="01:00:00", gpus=True),
    }
    assert found.summary[0] == "hpcml: Slurm 22.05.8, as it described itself on 2026-11-21."


def test_the_partition_with_the_most_gpus_is_the_default_and_one_gpu_is_asked_for() -> None:
    asked = of_slurm(SINFO).resources

    assert (asked.partition, asked.gpus_per_node, asked.cpus_per_task, asked.walltime) == ("qgpu", 1, 2, "01:00:00")


def test_without_gpus_the_sites_own_default_stays_the_default() -> None:
    found = of_slurm("long|up|infinite|n/a|NO|9|64|256000|(null)\nshort*|up|30:00|n/a|NO|2|64|256000|(null)\n")

    assert (found.resources.partition, found.resources.gpus_per_node) == ("short", 0)
    assert found.resources.walltime == "00:30:00"  # sinfo writes minutes and seconds below an hour
    assert found.cluster.gpu_request is None
    assert found.cluster.gpus_per_node == 0
    assert found.cluster.max_walltime is None  # one partition has no limit


@pytest.mark.parametrize(
    ("gres", "kind", "gpus", "request_"),
    [
        ("gpu:4", None, 4, "--gpus-per-node={gpus}"),
        ("gpu:a100:4(S:0-1)", "a100", 4, "--gpus-per-node={gpu_type}:{gpus}"),
        ("gpu:v100-32:8(S:0,1),nvme:1", "v100-32", 8, "--gpus-per-node={gpu_type}:{gpus}"),
        ("nvme:1,gpu:a100:4(S:0-1),gpu:a100_1g.5gb:14(S:0,2)", "a100", 4, "--gpus-per-node={gpu_type}:{gpus}"),
        ("gpu:a100_1g.5gb:7", "a100_1g.5gb", 7, "--gpus-per-node={gpu_type}:{gpus}"),
        ("gpu", None, 1, "--gpus-per-node={gpus}"),
        ("gpumem:80", None, 0, None),
    ],
)
def test_every_form_of_gres_is_understood(gres: str, kind: str | None, gpus: int, request_: str | None) -> None:
    site = of_slurm(f"g*|up|1-00:00:00|n/a|NO|3|64|512000|{gres}\n").cluster

    assert (site.gpu_type, site.gpus_per_node, site.gpu_request) == (kind, gpus, request_)


def test_a_partition_that_is_down_is_listed_and_not_chosen() -> None:
    found = of_slurm(
        "big|down|1-00:00:00|n/a|NO|99|64|512000|gpu:a100:8\nsmall|up|1:00:00|n/a|NO|1|8|512000|gpu:a100:1\n"
    )

    assert found.resources.partition == "small"
    assert found.cluster.queues["big"].note == "was down when asked"


def test_a_partition_of_several_kinds_of_nodes_says_so_and_takes_the_most_numerous() -> None:
    lines = [
        "gpu*|up|1-00:00:00|n/a|EXCLUSIVE|5|64|512000|gpu:a40:4",
        "gpu*|up|1-00:00:00|n/a|EXCLUSIVE|9|96|512000|gpu:a100:8",
    ]

    site = of_slurm("\n".join(lines)).cluster

    assert (site.gpu_type, site.gpus_per_node, site.cores_per_node, site.whole_nodes) == ("a100", 8, 96, True)
    assert site.notes == ["gpu leads to other nodes too: 5 with 64 cores, 4x a40"]


def test_slurm_without_its_configuration_is_still_described() -> None:
    found = of_slurm(SINFO, "")

    assert found.cluster.max_array_size is None
    assert found.summary[0] == "mine: Slurm, as it described itself on 2026-11-21."


def test_no_partition_at_all_is_said() -> None:
    with pytest.raises(HpcmlError, match="named no queue"):
        of_slurm("")


def test_the_words_of_pbs_become_a_profile() -> None:
    found = of_pbs()

    site = found.cluster
    assert (site.scheduler, site.max_array_size, site.max_walltime) == (SchedulerName.pbs, 10000, None)
    assert (site.gpus_per_node, site.cores_per_node, site.cores_per_gpu, site.mem_per_node) == (4, 32, 8, "256G")
    assert site.gpu_request == ":ngpus={gpus}"
    assert site.queues["qnvidia"] == Queue(max_walltime="48:00:00")
    assert (found.resources.partition, found.resources.gpus_per_node) == ("qgpu", 1)
    assert found.summary[0] == "pbs01: PBS 23.06.06, as it described itself on 2026-11-21."


def test_pbs_does_not_tell_which_queue_has_the_gpus_and_the_profile_says_so() -> None:
    site = of_pbs().cluster

    assert site.gpu_queue is None
    assert any("which queue leads to the GPUs was not told" in note for note in site.notes)


def test_a_queue_with_nodes_of_its_own_or_a_minimum_of_gpus_is_a_gpu_queue() -> None:
    nodes = {
        "cn1": {"resources_available": {"ncpus": 24, "mem": "131072000kb"}},
        "cn2": {"queue": "dgx", "resources_available": {"ncpus": 48, "ngpus": 16, "mem": "1tb"}},
    }
    open_ = {"enabled": "True", "started": "True"}
    queues = {"Queue": {"prod": open_, "dgx": open_, "gpus": {**open_, "resources_min": {"ngpus": 1}}}}
    server = {"Server": {"s": {"default_queue": "prod"}}}

    found = of_pbs(json.dumps({"nodes": nodes}), json.dumps(queues), json.dumps(server))

    assert {name: queue.gpus for name, queue in found.cluster.queues.items()} == {
        "prod": None,
        "dgx": True,
        "gpus": True,
    }
    assert (found.cluster.gpu_queue, found.resources.partition) == ("dgx", "dgx")
    assert (found.cluster.gpus_per_node, found.cluster.mem_per_node) == (16, "1024G")


def test_a_queue_that_is_stopped_is_listed_and_not_chosen() -> None:
    queues = json.loads(QSTAT_QUEUES)
    queues["Queue"]["qgpu"]["started"] = "False"

    found = of_pbs(queues=json.dumps(queues), server="{}")

    assert found.resources.partition != "qgpu"
    assert found.cluster.queues["qgpu"].note == "was not enabled or not started when asked"


def answering(answers: Mapping[str, Answer]) -> Callable[[Sequence[str]], Answer]:
    return lambda argv: answers[" ".join(argv[:2])]


def only(*programs: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in programs else None


def said(stdout: str) -> Answer:
    return Answer(returncode=0, stdout=stdout, stderr="")


def test_slurm_is_asked_first_because_it_brings_a_qstat_of_its_own() -> None:
    ask = answering({"sinfo -h": said(SINFO), "scontrol show": said(CONFIG)})

    found = ask_scheduler("mine", today=TODAY, ask=ask, find=only("sinfo", "pbsnodes", "qstat"))

    assert found == of_slurm(SINFO)


def test_a_partition_that_a_users_shell_picks_for_sinfo_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = f"grep \"^${{SINFO_PARTITION:-}}\" <<'END'\n{SINFO}END\n"  # as sinfo has it
    for name, script in {"sinfo": shown, "scontrol": f"cat <<'END'\n{CONFIG}END\n"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SINFO_PARTITION", "qcpu")

    assert ask_scheduler("mine", today=TODAY, find=only("sinfo")) == of_slurm(SINFO)


def test_pbs_is_asked_where_there_is_no_slurm() -> None:
    ask = answering(
        {"pbsnodes -a": said(PBSNODES), "qstat -Q": said(QSTAT_QUEUES), "qstat -B": said(QSTAT_SERVER)},
    )

    assert ask_scheduler("mine", today=TODAY, ask=ask, find=only("pbsnodes", "qstat")) == of_pbs()


SINFO_FAILS = Answer(returncode=1, stdout="", stderr="slurm_load_partitions: Unable to contact slurm controller\n")


def test_pbs_is_asked_where_slurm_is_installed_but_does_not_answer() -> None:
    ask = answering(
        {
            "sinfo -h": SINFO_FAILS,
            "pbsnodes -a": said(PBSNODES),
            "qstat -Q": said(QSTAT_QUEUES),
            "qstat -B": said(QSTAT_SERVER),
        },
    )

    assert ask_scheduler("mine", today=TODAY, ask=ask, find=only("sinfo", "pbsnodes", "qstat")) == of_pbs()


def test_where_neither_answers_both_are_quoted() -> None:
    down = Answer(returncode=1, stdout="", stderr="Connection refused\n")
    ask = answering({"sinfo -h": SINFO_FAILS, "pbsnodes -a": down})

    with pytest.raises(NoAnswerError, match=r"contact slurm controller; pbsnodes did not .*: Connection refused$"):
        ask_scheduler("mine", today=TODAY, ask=ask, find=only("sinfo", "pbsnodes", "qstat"))


def test_where_there_is_no_scheduler_one_line_says_so() -> None:
    with pytest.raises(ConfigError, match="no scheduler here: neither sinfo nor pbsnodes"):
        ask_scheduler("mine", today=TODAY, ask=answering({}), find=only())


def test_a_scheduler_that_is_down_is_quoted() -> None:
    down = Answer(
        returncode=1, stdout="", stderr="Connection refused\npbsnodes: cannot connect to server pbs01, error=15010\n"
    )
    ask = answering({"pbsnodes -a": down, "qstat -B": down})

    with pytest.raises(
        NoAnswerError, match=r"pbsnodes did not answer .exit status 1.: Connection refused pbsnodes: cannot"
    ):
        ask_scheduler("mine", today=TODAY, ask=ask, find=only("pbsnodes", "qstat"))


def test_an_answer_that_is_no_json_is_no_answer() -> None:
    with pytest.raises(NoAnswerError, match="gave no JSON"):
        of_pbs(queues='{"Queue": {')


def pbs_queues(**limits: str) -> str:
    said = {
        name: {"enabled": "True", "started": "True", "resources_max": {"ngpus": most} if most else {}}
        for name, most in limits.items()
    }
    return json.dumps({"Queue": said})


def test_a_queue_of_pbs_whose_jobs_may_have_no_gpu_is_one_for_cpus() -> None:
    found = of_pbs(
        queues=pbs_queues(qcpu="0", qany=""), server=json.dumps({"Server": {"s": {"default_queue": "qcpu"}}})
    )

    assert (found.cluster.queues["qcpu"].gpus, found.cluster.queues["qany"].gpus) == (False, None)
    assert (found.resources.partition, found.resources.gpus_per_node) == ("qcpu", 0)
    assert (found.cluster.gpus_per_node, found.cluster.gpu_queue) == (0, None)
    assert found.cluster.notes == []


def test_the_servers_limit_is_that_of_each_queue_without_its_own() -> None:
    server = json.dumps({"Server": {"s": {"resources_max": {"ngpus": 0}}}})
    found = of_pbs(queues=pbs_queues(qcpu="", qgpu="8"), server=server)

    assert (found.cluster.queues["qcpu"].gpus, found.cluster.queues["qgpu"].gpus) == (False, None)
