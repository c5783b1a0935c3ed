"""Strategies of torch: two real processes over gloo train as one does, and go on bit for bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from image_runs import _free_port, config_of, finish, read_rank0, run_whole, start, start_ranks
from torch import nn

from hpcml_train.errors import RecipeError
from hpcml_train.torch.pipeline import bubble_fraction
from hpcml_train.torch.stages import cut, parameters, shared
from hpcml_train.torch.strategies import nccl_environment
from tests import warm_frameworks

pytestmark = pytest.mark.torch
PROGRAM = Path(__file__).with_name("strategy_ranks.py")
EXACT = ("ddp", "ddp_buckets", "fsdp", "fsdp_accumulated", "pipeline", "pipeline_1f1b")
# the eps of the format that holds the weights, or in which products are rounded, over six steps of Adam
ROUNDED = {
    "fsdp_tf32": 1e-6,
    "fsdp_amp_fp16": 1e-3,
    "fsdp_amp_bf16": 1e-2,
    "pipeline_amp_bf16": 1e-2,
    "fsdp_fp16": 1e-2,
    "fsdp_bf16": 1e-2,
    "pipeline_bf16": 1e-2,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("strategies")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    environs = [{**kept, **shared, "RANK": str(rank)} for rank in range(2)]
    ranks = [warm_frameworks.start(PROGRAM, str(root), framework="torch", environ=environ) for environ in environs]
    finish(ranks)
    return root


@pytest.mark.story
@pytest.mark.parametrize("case", EXACT)
def test_two_processes_train_as_one_with_the_same_batch(trained: Path, case: str) -> None:
    alone, together = read_rank0(trained / f"{case}_alone"), read_rank0(trained / case)

    assert together.series("loss") == pytest.approx(alone.series("loss"), rel=1e-12)
    weights, expected = together.metrics[-1].values, alone.metrics[-1].values
    names = [name for name in expected if name.startswith("weight")]
    assert len(names) == 641
    assert [weights[name] for name in names] == pytest.approx([expected[name] for name in names], abs=1e-12)
    assert together.events["work"] == {**alone.events["work"], "devices": 2}


@pytest.mark.parametrize("case", ROUNDED)
def test_a_precision_means_the_same_in_every_strategy(trained: Path, case: str) -> None:
    alone, together = read_rank0(trained / f"{case}_alone"), read_rank0(trained / case)

    assert together.series("loss") == pytest.approx(alone.series("loss"), rel=ROUNDED[case])
    assert together.events.get("emulated_products") == alone.events.get("emulated_products")
    assert together.series("loss_scale") == alone.series("loss_scale")


@pytest.mark.parametrize("case", ["ddp", "fsdp_amp_fp16", "pipeline"])
def test_a_training_that_was_interrupted_goes_on_bit_for_bit(trained: Path, case: str) -> None:
    whole = read_rank0(trained / case)
    before = read_rank0(trained / f"{case}_resumed")
    after = read_rank0(trained / f"{case}_resumed", attempt=1)

    assert [record.step for record in before.metrics] == [1, 2, 3, 4]
    assert after.events["resumed"]["step"] == 3
    assert after.series("loss") == whole.series("loss")[3:]
    assert after.events["final"] == whole.events["final"]


def test_each_rank_keeps_a_part_of_the_parameters(trained: Path) -> None:
    said = read_rank0(trained / "fsdp").events["strategy"]

    # rows are shared: 5 of a convolution, 7 and 3 of the dense layers, the first rank has the larger half
    assert said["parameters_of_rank0"] == 3 * 9 + 3 + 4 * 80 + 4 + 2 * 7 + 2
    assert said["layers"] == 3


def test_the_bubble_of_a_pipeline_is_said(trained: Path) -> None:
    assert read_rank0(trained / "pipeline_1f1b").events["strategy"] == {
        "strategy": "pipeline",
        "backend": "gloo",
        "schedule": "1f1b",
        "microbatches": 4,
        "stages": [{"parameters": 50}, {"parameters": 591}],
        "bubble_fraction": 0.2,
    }
    assert bubble_fraction(4, 4) == 3 / 7
    assert bubble_fraction(4, 32) == 3 / 35
    assert bubble_fraction(1, 8) == 0


def test_what_a_strategy_cannot_is_refused_by_all_ranks(trained: Path) -> None:
    refusals = json.loads((trained / "refusals.json").read_text())

    assert refusals == {
        "emulated": "precision=tf32 is emulated here, which strategy=pipeline does not do: use another device",
        "scaled": "precision=amp_fp16 is emulated here, which strategy=pipeline does not do: use another device",
        "compiled": "training.compile=true with strategy=fsdp is not supported: set it to false",
        "nhwc": "layout=nhwc with strategy=fsdp: torch shards contiguous parameters only: use layout=nchw",
        "microbatches": "strategy.microbatches=3 does not divide training.batch_size=8",
        "accumulate": "training.accumulate=2: strategy=pipeline has strategy.microbatches",
        "1f1b": "strategy.microbatches=1: strategy.schedule=1f1b needs one for each of 2 stages, or more",
    }


@pytest.fixture
def layers() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2), nn.Linear(2, 2), nn.ReLU()]


def test_stages_are_as_even_as_can_be_and_each_learns(layers: list[nn.Module]) -> None:
    model = nn.Sequential(*layers)

    assert [parameters(stage) for stage in cut(model, layers, 2, "pipeline")] == [50, 28]
    assert cut(model, layers, 3, "pipeline") == [layers[:3], layers[3:4], layers[4:]]


def test_a_model_that_cannot_be_cut_is_refused(layers: list[nn.Module]) -> None:
    model = nn.Sequential(*layers)

    with pytest.raises(RecipeError, match="has 3 layers that learn, too few for 4"):
        cut(model, layers, 4, "pipeline")
    with pytest.raises(RecipeError, match="some parameters of this model belong to no layer"):
        cut(model, layers[:4], 2, "pipeline")
    with pytest.raises(RecipeError, match="a layer of this model comes twice"):
        cut(model, [*layers, layers[1]], 2, "pipeline")
    with pytest.raises(RecipeError, match="not made of layers that follow each other"):
        cut(nn.LSTM(2, 2), [], 2, "model_parallel")


def test_what_layers_share_is_found_with_the_stages_that_use_it() -> None:
    first, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
    last.weight = first.weight

    assert shared([[first], [nn.ReLU()], [last]]) == {first.weight: [0, 2]}
    assert parameters([first, last]) == 9 + 3


def test_a_tree_is_asked_for_as_the_nccl_at_hand_understands_it() -> None:
    assert nccl_environment({"NCCL_ALGO": "Tree"}, (2, 23, 4)) == {}
    assert nccl_environment({"NCCL_ALGO": "Tree"}, (2, 24, 3)) == {"NCCL_ALGO": "ring,tree;allreduce:tree"}
    assert nccl_environment({"NCCL_ALGO": "Ring"}, (2, 27)) == {}
    assert nccl_environment({"NCCL_ALGO": "NVLS"}, (2, 27)) == {
        "NCCL_ALGO": "ring,nvls;allreduce:nvls;allgather:nvls;reducescatter:nvls"
    }


def test_a_model_on_several_devices_gives_the_same_numbers_as_on_one(tmp_path: Path) -> None:
    changes = {"training__steps": 4, "training__eval_every": 4}
    alone = run_whole(tmp_path / "one", config_of(**changes))

    strategy = {"name": "model_parallel", "devices": 3}
    together = run_whole(tmp_path / "three", config_of(**changes, strategy=strategy))

    assert together.events["final"] == alone.events["final"]
    assert together.series("val_loss") == alone.series("val_loss")
    stages = together.events["strategy"]["stages"]
    assert [stage["parameters"] for stage in stages] == [38_192, 313_800, 2_010]
    assert together.events["work"]["devices"] == 3
    assert all(len(together.series(f"stage{number}_forward_s")) == 4 for number in range(3))


def test_threads_are_as_asked_for(tmp_path: Path) -> None:
    strategy = {"name": "cpu_threads", "inter_op_threads": 2}
    config = config_of(model__name="mnist_mlp", training__steps=1, strategy=strategy)

    finish([start(tmp_path / "run", config, OMP_NUM_THREADS="2")])

    said = read_rank0(tmp_path / "run").events["strategy"]
    assert said == {"strategy": "cpu_threads", "intra_op_threads": 2, "inter_op_threads": 2}


def test_a_rank_that_dies_ends_the_others_in_one_line(tmp_path: Path) -> None:
    config = config_of(model__name="mnist_mlp", training__steps=1_000_000, strategy={"name": "fsdp"})
    ranks = start_ranks(tmp_path / "run", config, 2)
    assert ranks[0].stdout is not None
    ranks[0].stdout.readline()  # the first validation

    ranks[1].send_signal(signal.SIGKILL)
    _, said = ranks[0].communicate(timeout=300)
    ranks[1].communicate(timeout=300)

    assert ranks[0].returncode == 1
    assert said.startswith("hpcml_client: ended, because another process of this training is gone (")
    assert said.count("\n") == 1
