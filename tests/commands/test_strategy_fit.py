"""What strategies do not go with is refused in planning, in one line that names the setting."""

from __future__ import annotations

import pytest

from hpcml.commands.submit.strategy import check_strategy, divide
from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml.model.precision import CPU, Device
from hpcml.model.run import Run
from tests.conftest import ComposeOne

A100 = Device(kind="cuda", name="A100", compute_capability=(8, 0))
GPUS = ("resources.gpus_per_node=4", "+cluster=karolina")
TWO = "strategy.processes_per_node=2"


def fit(run: Run, device: Device = CPU, numerics: Numerics = Numerics.native, cpus_per_task: int | None = 2) -> None:
    check_strategy(run, device, numerics, cpus_per_task=cpus_per_task)


@pytest.mark.parametrize(
    ("overrides", "numerics", "reason"),
    [
        (["strategy=pipeline", TWO, "precision=tf32"], Numerics.emulated, "precision=tf32 is emulated here"),
        (["strategy=pipeline", TWO, "precision=amp_fp16"], Numerics.native, "precision=amp_fp16 scales the loss"),
        (["strategy=pipeline", TWO, "training.accumulate=2"], Numerics.native, r"training\.accumulate=2: strategy=p"),
        (["strategy=fsdp", TWO, "training.compile=true"], Numerics.native, "with strategy=fsdp is not supported"),
        (["strategy=fsdp", TWO, "layout=nhwc"], Numerics.native, "layout=nhwc with strategy=fsdp"),
        (["strategy=horovod", TWO, "training.compile=true"], Numerics.native, "with strategy=horovod is not supported"),
        (["strategy=horovod", TWO, "precision=bf16"], Numerics.native, "Horovod sends no BF16: use precision=amp_bf16"),
        (
            ["strategy=horovod", *GPUS, "resources.nodes=2", "workload.command='horovodrun -np 8 python x.py'"],
            *(Numerics.native, r"resources\.nodes=2: strategy=horovod starts one launcher"),
        ),
        (["strategy=ddp", TWO, "strategy.nccl.algo=ring"], Numerics.native, r"strategy\.nccl means nothing without"),
    ],
)
def test_what_does_not_go_together_is_refused(
    compose_one: ComposeOne, overrides: list[str], numerics: Numerics, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        fit(compose_one(*overrides), numerics=numerics)


@pytest.mark.parametrize(
    ("overrides", "processes", "gpus", "found"),
    [
        ([], 1, 0, {"part_size": 64}),
        (["training.accumulate=4"], 1, 1, {"part_size": 16}),
        (["strategy=ddp", TWO, "training.accumulate=2"], 2, 0, {"part_size": 16}),
        (["strategy=ddp", *GPUS, "resources.nodes=2"], 4, 4, {"part_size": 8}),
        (["strategy=pipeline", TWO, "strategy.microbatches=null"], 2, 0, {"part_size": 16, "stages": 2}),
        (["strategy=model_parallel", "strategy.devices=3"], 1, 0, {"part_size": 64, "stages": 3}),
        (["strategy=mirrored", "strategy.devices=2"], 1, 0, {"part_size": 32}),
        (["strategy=multi_worker_mirrored", *GPUS, "resources.nodes=2"], 1, 4, {"part_size": 8}),
    ],
)
def test_a_batch_is_divided_as_the_recipe_will_divide_it(
    compose_one: ComposeOne, overrides: list[str], processes: int, gpus: int, found: dict[str, int]
) -> None:
    assert divide(compose_one(*overrides), processes_per_node=processes, gpus_per_node=gpus) == found


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["strategy=ddp", TWO, "training.batch_size=63"], "training.batch_size=63 cannot be shared by 2 processes"),
        (["strategy=mirrored", "strategy.devices=3"], "training.batch_size=64 cannot be shared by 3 devices"),
        (["strategy=ddp", TWO, "training.accumulate=3"], r"training\.accumulate=3 does not divide the 32 samples"),
        (["strategy=pipeline", TWO, "strategy.microbatches=5"], r"microbatches=5 does not divide"),
        (["strategy=pipeline", TWO, "strategy.microbatches=null", "training.batch_size=6"], "microbatches=4 does not"),
        (
            ["strategy=pipeline", TWO, "strategy.schedule=1f1b", "strategy.microbatches=1"],
            "strategy.microbatches=1: strategy.schedule=1f1b needs one for each of 2 stages",
        ),
    ],
)
def test_a_batch_that_cannot_be_divided_is_refused(compose_one: ComposeOne, overrides: list[str], reason: str) -> None:
    run = compose_one(*overrides)

    with pytest.raises(ConfigError, match=reason):
        divide(run, processes_per_node=run.strategy.processes_per_node or 1, gpus_per_node=0)


@pytest.mark.parametrize(
    "overrides",
    [["strategy=ddp", TWO], ["strategy=mirrored", "strategy.devices=2"], ["strategy=model_parallel"]],
)
def test_several_devices_on_the_one_gpu_that_nobody_asked_for_are_refused(
    compose_one: ComposeOne, overrides: list[str]
) -> None:
    run = compose_one(*overrides, *(["strategy.devices=2"] if "strategy=model_parallel" in overrides else []))

    fit(run)
    with pytest.raises(
        ConfigError, match=r"\(resources\.gpus_per_node=null is one GPU: say how many, or 0 for the CPU"
    ):
        fit(run, A100)


def test_threads_that_nobody_counted_are_refused(compose_one: ComposeOne) -> None:
    run = compose_one("strategy=cpu_threads")

    fit(run, cpus_per_task=8)
    with pytest.raises(ConfigError, match=r"needs resources\.cpus_per_task"):
        fit(run, cpus_per_task=None)


def test_without_scaling_half_precision_goes_through_a_pipeline(compose_one: ComposeOne) -> None:
    fit(compose_one("strategy=pipeline", *GPUS, "precision=amp_fp16", "precision.loss_scaling=false"), A100)


def test_a_program_of_ones_own_decides_for_itself(compose_one: ComposeOne) -> None:
    fit(compose_one("strategy=fsdp", TWO, "layout=nhwc", "workload.command=true"))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["strategy.microbatches=4"], r"strategy\.microbatches=4 means something with strategy=pipeline only"),
        (["strategy=fsdp", TWO, "strategy.bucket_cap_mb=5"], r"bucket_cap_mb=5.* with strategy=ddp only"),
        (["strategy=ddp", TWO, "strategy.bucket_cap_mb=0"], r"strategy\.bucket_cap_mb=0.* must lie in 0\.\.4096"),
        (["strategy=pipeline", TWO, "strategy.schedule=zigzag"], r"strategy\.schedule=zigzag: choose gpipe or 1f1b"),
        (
            ["strategy=ddp", *GPUS, "strategy.nccl.algo=star"],
            r"strategy\.nccl\.algo=star: choose one of ring, tree, collnet_direct",
        ),
        (["strategy=ddp", *GPUS, "strategy.nccl.proto=ll128"], r"strategy\.nccl\.proto=ll128: choose ll or simple"),
        (["strategy=fsdp", *GPUS, "strategy.nccl.algo=tree"], r"algo=tree: only all-reduce has it"),
        (["strategy.horovod.hierarchical=true"], r"strategy\.horovod is for strategy=horovod, not single"),
        (
            ["strategy=horovod", TWO, "strategy.horovod.fusion_threshold_mb=-1"],
            r"strategy\.horovod\.fusion_threshold_mb=-1\.0 must lie in 0\.\.4096",
        ),
        (["strategy.nccl.algo=ring"], r"strategy\.nccl is for ddp and fsdp: strategy=single"),
    ],
)
def test_options_stay_with_their_strategy_and_in_their_range(
    compose_one: ComposeOne, overrides: list[str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        compose_one(*overrides)


def test_how_gradients_are_sent_is_part_of_what_a_run_is(compose_one: ComposeOne) -> None:
    plain = compose_one("strategy=ddp", *GPUS)
    ring = compose_one("strategy=ddp", *GPUS, "strategy.nccl.algo=ring", "strategy.nccl.proto=simple")

    assert ring.strategy.nccl.environment() == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    assert plain.strategy.nccl.environment() == {}
    assert len({plain.spec_hash, ring.spec_hash}) == 2


def test_horovod_is_told_by_its_environment(compose_one: ComposeOne) -> None:
    plain = compose_one("strategy=horovod", TWO)
    told = compose_one(
        "strategy=horovod",
        TWO,
        "strategy.horovod.hierarchical=false",
        "strategy.horovod.fusion_threshold_mb=32",
    )

    assert plain.strategy.environment() == {}
    assert told.strategy.environment() == {
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_FUSION_THRESHOLD": "33554432",
    }
    assert told.spec_hash != plain.spec_hash
