"""The training of any torch recipe as one would write it by hand: plain torch, nothing of hpcml around its steps.

Model, samples, loss and optimiser are the recipe's own, the settings those of one of its runs, so that the losses must
be the same to the last bit; the loop is what is left when hpcml is taken away: no journal, no checkpoints, no clocks,
no probe, no sampler. `recipe_overhead.py` compares the two. By itself it repeats what a run on a CPU in FP32 did:

PYTHONPATH=. python benchmarks/bare_training.py RUN_DIRECTORY/run.json
"""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from hpcml_train.task import Task
from hpcml_train.torch.recipe import Recipe

RECIPES = Path(__file__).resolve().parents[1] / "recipes"


class Plain:
    """What a recipe asks of hpcml's arithmetic, as FP32 on a CPU answers it."""

    device = torch.device("cpu")

    @staticmethod
    def cast(x: torch.Tensor) -> torch.Tensor:
        """Return floating point *x* in FP32, anything else as it is."""
        return x.float() if x.is_floating_point() else x


def import_recipe(config: dict[str, Any]) -> ModuleType:
    """Return the module `training` of the recipe of a run; once in a process, since all are called that."""
    sys.path.insert(0, str(RECIPES / config["run"]["model"]["recipe"]))
    return importlib.import_module("training")


def make(task: Task) -> Recipe:
    """Return the recipe that was imported, with the weights of the seed."""
    (recipe,) = Recipe.__subclasses__()
    torch.manual_seed(task.seed)
    build: Callable[[Task, Plain], Recipe] = recipe
    return build(task, Plain())


def train(recipe: Recipe, task: Task) -> Iterator[float]:
    """Train for ever; yield the loss of each step."""
    model = recipe.model
    optimizer = recipe.optimizer(model.parameters(), learning_rate=task.learning_rate, eps=1e-8)
    for chosen in orders(recipe.samples, task):
        loss = recipe.loss(model, recipe.batch(chosen))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def orders(samples: int, task: Task) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(task.seed)
    order = torch.empty(0, dtype=torch.long)
    while True:
        while len(order) < task.batch_size:
            order = torch.cat([order, torch.randperm(samples, generator=generator)])
        yield order[: task.batch_size]
        order = order[task.batch_size :]


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import_recipe(config)
    task = Task.from_config(config)
    torch.use_deterministic_algorithms(task.deterministic)
    recipe = make(task)
    losses, ends = [], []
    for loss in itertools.islice(train(recipe, task), task.steps):
        losses.append(loss)
        ends.append(time.perf_counter())
    recipe.model.eval()
    with torch.no_grad():
        values = recipe.evaluate(recipe.model)
    steps_s = [end - begin for begin, end in itertools.pairwise(ends[len(ends) // 2 :])]
    print(json.dumps({"loss": losses[-1], "step_s": statistics.median(steps_s), **values}))


if __name__ == "__main__":
    main()
