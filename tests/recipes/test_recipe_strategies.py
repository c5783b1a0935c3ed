"""The torch recipes in every strategy that they offer: three real processes over gloo train as one does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from image_runs import _free_port, finish, read_rank0
from recipe_ranks import CASES, RECIPES, RESUMED, STEPS

from hpcml.model.recipe import read_recipe
from tests import warm_frameworks
from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
PROGRAM = Path(__file__).with_name("recipe_ranks.py")
EXACT = [name for name, case in CASES.items() if case.strategy == "model_parallel"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recipes")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    environs = [{**kept, **shared, "RANK": str(rank)} for rank in range(3)]
    ranks = [warm_frameworks.start(PROGRAM, str(root), framework="torch", environ=environ) for environ in environs]
    finish(ranks)
    return root


@pytest.mark.parametrize("name", CASES)
def test_a_shared_training_is_that_of_one_process(trained: Path, name: str) -> None:
    together, alone = read_rank0(trained / name), read_rank0(trained / f"{name}_alone")
    differences = json.loads((trained / "differences.json").read_text())[name]
    case = CASES[name]

    if case.recipe == "resnet" and case.strategy == "fsdp":  # BatchNorm's statistics are of the first rank's samples
        differences = {key: value for key, value in differences.items() if "running" not in key and "num_" not in key}
    assert together.series("loss") == pytest.approx(alone.series("loss"), rel=1e-12)
    assert max(differences.values()) < (1e-300 if name in EXACT else 1e-12)
    examined = [key for key in alone.metrics[-1].values if key.startswith("val_")]
    assert examined or case.recipe == "resnet"  # synthetic pictures are not validated
    for key in examined:
        assert together.series(key) == pytest.approx(alone.series(key), rel=1e-12)
    assert together.events["strategy"]["strategy"] == case.strategy
    assert together.events["work"]["devices"] == 3
    assert together.events.get("neighbours") == alone.events.get("neighbours")


@pytest.mark.parametrize("name", RESUMED)
def test_a_recipe_that_was_interrupted_goes_on_bit_for_bit(trained: Path, name: str) -> None:
    whole, before = read_rank0(trained / name), read_rank0(trained / f"{name}_resumed")
    after = read_rank0(trained / f"{name}_resumed", attempt=1)

    assert [record.step for record in before.metrics] == [1, 2, 3, 4]
    assert after.events["resumed"]["step"] == 3
    assert after.series("loss") == whole.series("loss")[3:STEPS]
    assert after.events["final"] == whole.events["final"]


def test_a_shared_embedding_lies_in_two_stages_and_counts_once(trained: Path) -> None:
    recorded = read_rank0(trained / "transformer_pipeline")
    sizes = [stage["parameters"] for stage in recorded.events["strategy"]["stages"]]

    assert sum(sizes) == recorded.events["training"]["parameters"] + 257 * 16


def test_every_strategy_that_a_recipe_offers_is_tried_here() -> None:
    tried = {(case.recipe, case.strategy) for case in CASES.values()}
    offered = {
        (recipe, strategy)
        for recipe in {case.recipe for case in CASES.values()}
        for strategy in read_recipe(RECIPES / recipe).strategies
        if strategy in ("fsdp", "pipeline", "model_parallel")
    }

    assert tried == offered


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("unet", "each way up needs what was seen on the way down"),
        ("word2vec", "both tables of vectors are looked up with the batch's own words"),
        ("linear_mse", "its one layer cannot be cut into stages"),
    ],
)
def test_what_no_stages_can_do_is_refused_with_its_reason_before_anything_starts(
    hpcml_environ: dict[str, str], tmp_path: Path, model: str, reason: str
) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    done = hpcml("run", f"model={model}", "strategy=pipeline", "strategy.processes_per_node=2", "--dry-run")

    assert done.returncode == 2
    assert f"strategy=pipeline is refused by the recipe {model}: {reason}" in done.stderr
