"""A program that test_recipe_strategies.py starts once for each rank: it trains recipes in all of their strategies.

The first rank writes differences.json: how far the weights of each training are from those of one process alone.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from strategy_ranks import LEFT_AFTER, Interrupted, run
from torch import nn

from hpcml_train.task import Task

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TEXT = "".join(f"{n} squared is {n * n} and twice {n} is {2 * n}.\n" for n in range(300))
STEPS = 6
SMALL = {"layers": 4, "width": 16, "heads": 2, "feed_forward": 32, "context": 16, "validation_windows": 8}
PICTURES = {"classes": 5, "image_size": 32}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training of a recipe that ranks share, and the one of a process alone that it must agree with."""

    recipe: str
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None
    schedule: str = "gpipe"
    alone_in: int = 1  # parts of a batch, where the model looks at its whole batch
    steps: int = STEPS
    layout: str = "nchw"

    def task(self, text: Path) -> Task:
        return Task(
            options=self.options,
            data=self.data,
            data_path=str(text) if self.data == "text" else None,
            layout=self.layout,
            strategy=self.strategy,
            schedule=self.schedule,
            microbatches=4,
            devices=3,
            steps=self.steps,
            batch_size=12,
            eval_every=self.steps,
            learning_rate=1e-2,
        )


CASES = {
    "resnet_fsdp": Case(recipe="resnet", strategy="fsdp", options=PICTURES, alone_in=3, steps=2),
    "resnet_pipeline": Case(recipe="resnet", strategy="pipeline", options=PICTURES, alone_in=4, steps=2, layout="nhwc"),
    "resnet_model_parallel": Case(recipe="resnet", strategy="model_parallel", options=PICTURES, steps=2),
    "transformer_pipeline": Case(recipe="transformer", strategy="pipeline", data="text", options=SMALL),
    "transformer_1f1b": Case(
        recipe="transformer",
        strategy="pipeline",
        schedule="1f1b",
        data="text",
        options={**SMALL, "kind": "encoder"},
    ),
    "transformer_fsdp": Case(
        recipe="transformer", strategy="fsdp", data="text", options={**SMALL, "kind": "encoder_decoder"}
    ),
    "transformer_model_parallel": Case(recipe="transformer", strategy="model_parallel", data="text", options=SMALL),
    "lstm_fsdp": Case(recipe="lstm", strategy="fsdp", options={"layers": 2, "width": 16}),
    "lstm_pipeline": Case(recipe="lstm", strategy="pipeline", options={"layers": 2, "width": 16}),
    "lstm_model_parallel": Case(recipe="lstm", strategy="model_parallel", options={"layers": 2, "width": 16}),
    "word2vec_fsdp": Case(recipe="word2vec", strategy="fsdp", data="text", options={"words": ["squared"]}),
    "unet_fsdp": Case(recipe="unet", strategy="fsdp", options={"image_size": 16, "pictures": 30}),
    "linear_mse_fsdp": Case(recipe="linear_mse", strategy="fsdp"),
}
# one with dropout, whose random numbers must go on too
RESUMED = {
    "lstm_fsdp": CASES["lstm_fsdp"],
    "transformer_dropout": replace(CASES["transformer_pipeline"], options={**SMALL, "dropout": 0.1}),
}


def watched(recipe: str) -> type[Any]:
    """Return the recipe's own class, which also remembers the weights that it examined last."""
    folder = RECIPES / recipe
    sys.path.insert(0, str(folder))
    module = importlib.import_module("training")
    sys.path.remove(str(folder))
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)  # all recipes call theirs alike
    (base,) = (
        found
        for found in vars(module).values()
        if isinstance(found, type) and found.__module__ == "training" and hasattr(found, "evaluate")
    )

    class Watched(base):  # type: ignore[misc, valid-type]
        weights: ClassVar[dict[str, torch.Tensor]] = {}
        stop_after: ClassVar[int | None] = None
        fetched = 0

        def batch(self, indices: torch.Tensor) -> object:
            self.fetched += 1
            if self.fetched == self.stop_after:
                raise Interrupted
            return super().batch(indices)

        def evaluate(self, model: nn.Module) -> Mapping[str, float]:
            Watched.weights = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
            found: Mapping[str, float] = super().evaluate(model)
            return found

    return Watched


def main(root: Path) -> None:
    """Train each case together and alone; the names of the folders are the cases."""
    ranks, is_first = int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    text = root / "text.txt"
    if is_first:
        text.write_text(TEXT)
    makes = {case.recipe: watched(case.recipe) for case in CASES.values()}
    differences: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        make, task = makes[case.recipe], case.task(text)
        together = 1 if case.strategy == "model_parallel" else ranks
        if together > 1 or is_first:
            run(root / name, task, "fp64", ranks=together, make=make)
        if is_first:
            weights = make.weights
            alone = replace(task, strategy="single", accumulate=case.alone_in)
            run(root / f"{name}_alone", alone, "fp64", ranks=1, make=make)
            assert weights.keys() == make.weights.keys()
            differences[name] = {key: float((weights[key] - make.weights[key]).abs().max()) for key in weights}
    for name, case in RESUMED.items():
        make, task = makes[case.recipe], case.task(text)
        if name not in CASES:
            run(root / name, task, "fp64", ranks=ranks, make=make)
        parts = task.microbatches if task.strategy == "pipeline" else 1
        make.stop_after = is_first + parts * LEFT_AFTER + 1  # the first rank fetches one for the event `work`
        run(root / f"{name}_resumed", task, "fp64", ranks=ranks, make=make)
        make.stop_after = None
        run(root / f"{name}_resumed", task, "fp64", ranks=ranks, attempt=1, make=make)
    if is_first:
        (root / "differences.json").write_text(json.dumps(differences))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
