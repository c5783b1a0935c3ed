from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.commands.submit.check import asked_of, completed, refuse_impossible, routed, unknown_queue
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.model.run import Run
from hpcml.schedulers.commands import Answer

SITE = """\
# @package _global_
cluster:
  name: site
  scheduler: pbs
  gpus_per_node: 4
  gpu_queue: qgpu
  queues:
    qcpu: {max_walltime: "48:00:00", gpus: false}
    qgpu: {max_walltime: "24:00:00", gpus: true, max_gpus: 8}
resources:
  partition: qcpu
  gpus_per_node: 0
"""


def compose(tmp_path: Path, words: Sequence[str], site: str = SITE) -> Run:
    folder = tmp_path / "conf" / "cluster"
    folder.mkdir(parents=True)
    (folder / "site.yaml").write_text(site)
    (point,) = compose_from_cli(["cluster=site", *words], project=tmp_path)
    return point.run


def test_a_gpu_job_goes_to_the_queue_that_the_site_names_for_gpus(tmp_path: Path) -> None:
    run = routed(compose(tmp_path, ["resources.gpus_per_node=1"]))

    assert run.resources.partition == "qgpu"


@pytest.mark.parametrize("words", [[], ["resources.gpus_per_node=1", "resources.partition=qgpu"]])
def test_other_jobs_stay_where_they_were_sent(tmp_path: Path, words: list[str]) -> None:
    run = compose(tmp_path, words)

    assert routed(run) == run


def test_a_gpu_job_is_refused_where_no_queue_has_gpus(tmp_path: Path) -> None:
    run = compose(tmp_path, ["resources.gpus_per_node=1"], SITE.replace("  gpu_queue: qgpu\n", ""))

    with pytest.raises(ConfigError, match="queue qcpu of cluster=site has no GPUs"):
        routed(run)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["resources.walltime=72:00:00"], "allows 48:00:00"),
        (["resources.partition=qgpu", "resources.walltime=25h"], "allows 24:00:00"),
        (
            ["strategy=ddp", "resources.partition=qgpu", "resources.nodes=3", "resources.gpus_per_node=4"],
            "12 GPUs: queue qgpu of cluster=site allows 8",
        ),
    ],
)
def test_what_no_queue_would_run_is_refused_before_it_waits(tmp_path: Path, words: list[str], says: str) -> None:
    run = compose(tmp_path, words)

    with pytest.raises(ConfigError, match=says):
        refuse_impossible(run)


@pytest.mark.parametrize(("name", "says"), [("qgup", "did you mean qgpu?"), ("elsewhere", "it lists qcpu, qgpu")])
def test_a_queue_that_the_profile_does_not_list_is_warned_about(tmp_path: Path, name: str, says: str) -> None:
    run = compose(tmp_path, [f"resources.partition={name}"])

    refuse_impossible(run)
    assert says in str(unknown_queue(run))
    assert unknown_queue(replace(run, resources=replace(run.resources, partition="qcpu"))) is None


SINFO = "cpu*|up|2-00:00:00|1:00:00|NO|9|64|256000|(null)\ngpu|up|1-00:00:00|1:00:00|NO|4|48|512000|gpu:a100:4\n"


def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_what_a_profile_leaves_open_is_asked_of_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch)
    (point,) = compose_from_cli(["cluster=slurm"], project=tmp_path)

    found = asked_of(point.run.cluster, lambda _: Answer(returncode=0, stdout=SINFO, stderr=""))
    run = completed(point.run, found)

    assert (run.resources.partition, run.cluster.gpus_per_node, run.cluster.max_walltime) == ("gpu", 4, "48:00:00")
    assert run.cluster.gpu_request == "--gpus-per-node={gpus}"  # the profile's own word stays
    (larger,) = compose_from_cli(["cluster=slurm", "strategy=ddp", "resources.gpus_per_node=8"], project=tmp_path)
    with pytest.raises(ConfigError, match=r"resources\.gpus_per_node=8: cluster=slurm has 4 a node"):
        completed(larger.run, found)


def test_a_scheduler_that_is_not_here_or_silent_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (point,) = compose_from_cli(["cluster=slurm"], project=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asked_of(point.run.cluster) is None
    programs(tmp_path, monkeypatch)

    assert asked_of(point.run.cluster, lambda _: Answer(returncode=1, stdout="", stderr="no controller")) is None

    assert "not here: sbatch, squeue, sacct, scancel" in caplog.text
    assert "which did not answer" in caplog.text
    assert completed(point.run, None) is point.run
