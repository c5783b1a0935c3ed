import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from hpcml.codec import decode, encode, flatten
from hpcml.errors import ConfigError
from hpcml.model.container import ContainerKind
from hpcml.model.identity import identifies
from hpcml.model.metric_sources import MetricRule
from hpcml.model.run import ProfileTool, Run
from tests.conftest import ComposeOne


def test_a_run_survives_its_way_through_json(compose_one: ComposeOne) -> None:
    run = compose_one("+cluster=karolina", "precision=amp", "tags=[a,b]", "+workload.env.X=1", "name='a b'")

    assert decode(Run, encode(run)) == run


def test_runs_that_differ_in_name_and_tags_alone_are_replicates(compose_one: ComposeOne) -> None:
    assert compose_one("name=x", "tags=[t]").spec_hash == compose_one().spec_hash


@pytest.mark.parametrize(
    "override",
    [
        *("resources.walltime=1h", "resources.account=a", "resources.mem=1G", "cluster.source=elsewhere", "name=x"),
        *("telemetry.enabled=false", "telemetry.interval=10s", "telemetry.pcie=true"),
        *("training.checkpoint_every=10", "schedule.repeats=2", "schedule.pack=seed", "schedule.snapshot=none"),
    ],
)
def test_who_pays_and_how_long_it_may_take_does_not_make_another_run(compose_one: ComposeOne, override: str) -> None:
    assert compose_one(override).spec_hash == compose_one().spec_hash


@pytest.mark.parametrize(
    "override",
    [
        *("seed=1", "precision=tf32", "training.steps=5", "layout=nhwc", "data.holdout=0.3", "resources.partition=a"),
        *("training.accumulate=2", "training.compile=true", "training.deterministic=false"),
    ],
)
def test_runs_that_differ_in_anything_else_are_not(compose_one: ComposeOne, override: str) -> None:
    assert compose_one(override).spec_hash != compose_one().spec_hash


def test_a_batch_cannot_be_taken_in_no_parts(compose_one: ComposeOne) -> None:
    with pytest.raises(ConfigError, match=r"training\.accumulate=0 must be at least 1"):
        compose_one("training.accumulate=0")


def test_kernels_chosen_by_time_are_another_run_and_not_deterministic(compose_one: ComposeOne) -> None:
    chosen = compose_one("training.cudnn_benchmark=true", "training.deterministic=false")

    assert chosen.spec_hash != compose_one("training.deterministic=false").spec_hash
    with pytest.raises(ConfigError, match=r"cudnn_benchmark=true chooses .*: set training\.deterministic=false"):
        compose_one("training.cudnn_benchmark=true")


def test_where_it_was_typed_does_not_change_the_hash(
    compose_one: ComposeOne, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = compose_one().spec_hash
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert compose_one().spec_hash == here


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["seed=-1"], "seed=-1"),
        (["seed=4294967296"], "seed=4294967296"),
        (["experiment=../up"], "experiment='../up'"),
        (["experiment='a b'"], "experiment='a b'"),
        (["training.steps=0"], "training.steps=0"),
        (["training.learning_rate=-1"], "training.learning_rate=-1"),
        (["training.learning_rate=inf"], "training.learning_rate=inf"),
        (["data.holdout=1.5"], "data.holdout=1.5"),
        (["data=mnist"], "data.path"),
        (["strategy=ddp"], "two processes or more"),
        (["strategy.processes_per_node=2"], "strategy=single"),
        (["resources.gpus_per_node=2", "+cluster=karolina"], "strategy=single"),
        (["strategy=ddp", "resources.gpus_per_node=9", "+cluster=karolina"], "cluster=karolina has 8 a node"),
        (["resources.gpus_per_node=1", "+cluster=salomon"], "cluster=salomon has 0 a node"),
        (
            ["strategy=ddp", "strategy.processes_per_node=3", "resources.gpus_per_node=4", "+cluster=karolina"],
            "does not match",
        ),
        (["resources.walltime=72:00:00", "+cluster=karolina"], "allows 48:00:00"),
        (["resources.cpus_per_task=999", "+cluster=karolina"], "which has 128"),
        (["resources.mem=9T", "+cluster=karolina"], "a node of cluster=karolina has 1024G"),
        (["strategy=ddp", "strategy.processes_per_node=2", "resources.nodes=2"], "this one machine"),
        (["resources.mem=lots"], "resources.mem"),
        (["objective.margin=0"], "objective.margin"),
        (["precision.rounding=up"], "precision.rounding=up"),
        (["precision=fp8_e4m3", "+cluster=karolina"], "precision=fp8_e4m3 is refused"),
        (["precision=tf32", "+cluster=karolina", "cluster.gpu_compute_capability='7.0'"], "compute capability 8.0"),
        (["cluster.gpu_compute_capability=ampere", "+cluster=karolina"], "cluster.gpu_compute_capability"),
        (["model=custom"], "write your program behind --"),
        (["+workload.env.1X=y"], "workload.env"),
        (["workload.stop_grace=never"], "workload.stop_grace"),
        (["telemetry.interval=often"], "telemetry.interval='often' is no interval"),
        (["telemetry.interval=1ms"], "telemetry.interval=1ms"),
    ],
)
def test_what_cannot_be_a_run_is_refused_in_one_line(compose_one: ComposeOne, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_one(*overrides)

    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("pattern", "name"), [("loss=(", "loss"), ("loss=(.*)", "loss"), ("(?P<value>.*)", None)])
def test_a_rule_that_cannot_pick_a_metric_is_refused(pattern: str, name: str | None) -> None:
    with pytest.raises(ConfigError, match=r"workload\.metrics"):
        MetricRule(pattern=pattern, name=name)


def test_a_run_cannot_be_changed_afterwards(compose_one: ComposeOne) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose_one().seed = 3  # type: ignore[misc]


def test_flattening_names_every_setting_by_its_full_key(compose_one: ComposeOne) -> None:
    flat = flatten(encode(compose_one("precision=tf32")))

    assert flat["precision.name"] == "tf32"
    assert flat["training.batch_size"] == 64
    assert flat["seed"] == 0
    assert not any(isinstance(value, dict) and value for value in flat.values())


def test_a_queue_somebody_chose_goes_before_the_partition_of_a_profile(compose_one: ComposeOne) -> None:
    run = compose_one("+cluster=karolina", "resources.queue=qgpu_exp")

    assert run.resources.partition_or_queue == "qgpu_exp"


def hash_of_all_settings(run: Run) -> str:
    """Return the hash of a run that shares no text of its parts with others."""
    relevant = {key: value for key, value in flatten(encode(run)).items() if identifies(key)}
    if run.container.kind is ContainerKind.none:
        name = {"container.name": run.container.name}
        relevant = {key: value for key, value in relevant.items() if not key.startswith("container.")} | name
    if run.profile.tool is ProfileTool.none:
        relevant = {key: value for key, value in relevant.items() if not key.startswith("profile.")}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def test_the_hash_is_that_of_all_settings_in_their_order_whatever_runs_share(compose_one: ComposeOne) -> None:
    words = [
        ("seed=1",),
        ("seed=1", "training.learning_rate=0.5"),
        ("+cluster=karolina", "+container=ngc_pytorch", "resources.walltime=1h"),
        ("model=lstm",),
        ("profile=torch",),
        ("workload.command=true", "+workload.env.A='ü \"b\"'", "name=x"),
    ]
    runs = [compose_one(*each) for each in words]

    shared = [dataclasses.replace(run, seed=seed) for run in runs for seed in (0, 1, 2**31)]
    assert [run.spec_hash for run in shared] == [hash_of_all_settings(run) for run in shared]
    assert [dataclasses.replace(run).spec_hash for run in shared] == [run.spec_hash for run in shared]
