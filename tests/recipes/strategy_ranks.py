"""A program that test_strategies.py starts once for each rank: it trains a small model in one strategy after the other.

The first rank writes results.json: the losses and weights of each training, and those of one process alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import hpcml_client
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train

STEPS, LEFT_AFTER = 6, 4
TASK = Task(steps=STEPS, batch_size=8, eval_every=STEPS, learning_rate=1e-2, microbatches=4)


class Interrupted(Exception):  # noqa: N818 - it says what happened
    """Stands for the end of the time."""


class Shapes(Recipe):
    """Noise, told apart."""

    stop_after: int | None = None

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        del task
        generator = torch.Generator().manual_seed(7)
        self._images = arithmetic.cast(torch.rand(40, 1, 6, 6, generator=generator))
        self._labels = torch.randint(0, 3, (40,), generator=generator)
        self._fetched = 0
        self.samples = 40
        self.model = nn.Sequential(
            *(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 7), nn.Dropout(0.0), nn.ReLU()),
            nn.Linear(7, 3),
        )

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._fetched += 1
        if self._fetched == self.stop_after:
            raise Interrupted
        return self._images[indices], self._labels[indices]

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        output = model(batch[0])
        return functional.cross_entropy(output if output.dtype is torch.float64 else output.float(), batch[1])

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        weights = torch.cat([parameter.double().flatten() for parameter in model.parameters()])
        return {f"weight{number}": float(value) for number, value in enumerate(weights)}


class Stopped(Shapes):
    """The same, interrupted: each rank counts the batches it fetched, the first of which are no steps."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        super().__init__(task, arithmetic)
        parts = task.microbatches if task.strategy == "pipeline" else task.accumulate
        counted = int(os.environ["RANK"]) == 0  # for the event `work`
        self.stop_after = counted + parts * LEFT_AFTER + 1


_ports = itertools.count(int(os.environ.get("MASTER_PORT", "0")))  # a store that was just closed may still answer


def run(folder: Path, task: Task, precision: str, *, ranks: int, attempt: int = 0, make: type[Recipe] = Shapes) -> None:
    """Train in *folder*; rank 0 keeps a checkpoint every third step."""
    if ranks > 1:
        os.environ["MASTER_PORT"] = str(next(_ports))
    environ = {
        "HPCML_RUN_DIR": str(folder),
        "HPCML_PRECISION": precision,
        "HPCML_ATTEMPT": str(attempt),
        "RANK": os.environ["RANK"] if ranks > 1 else "0",
        "LOCAL_RANK": os.environ["RANK"] if ranks > 1 else "0",
        "WORLD_SIZE": str(ranks),
    }
    with hpcml_client.connect(environ) as client, contextlib.suppress(Interrupted):
        assert train(client, task, client.checkpoints(every_steps=3), make)


def main(root: Path) -> None:
    """Train each case alone and together; the names of the folders are the cases."""
    ranks = int(os.environ["WORLD_SIZE"])
    cases: dict[str, tuple[Task, str]] = {}
    for name in ("ddp", "fsdp", "pipeline"):
        cases[name] = (replace(TASK, strategy=name), "fp64")
    cases["ddp_buckets"] = (replace(TASK, strategy="ddp", bucket_cap_mb=0.001), "fp64")
    cases["fsdp_accumulated"] = (replace(TASK, strategy="fsdp", accumulate=2), "fp64")
    cases["pipeline_1f1b"] = (replace(TASK, strategy="pipeline", schedule="1f1b"), "fp64")
    for precision in ("tf32", "amp_bf16", "amp_fp16", "bf16", "fp16"):
        cases[f"fsdp_{precision}"] = (replace(TASK, strategy="fsdp"), precision)
    for precision in ("amp_bf16", "bf16"):
        cases[f"pipeline_{precision}"] = (replace(TASK, strategy="pipeline"), precision)
    for name, (task, precision) in cases.items():
        if os.environ["RANK"] == "0":
            run(root / f"{name}_alone", replace(task, strategy="single", accumulate=1), precision, ranks=1)
        run(root / name, task, precision, ranks=ranks)
    for name in ("ddp", "fsdp_amp_fp16", "pipeline"):
        task, precision = cases[name]
        run(root / f"{name}_resumed", task, precision, ranks=ranks, make=Stopped)
        run(root / f"{name}_resumed", task, precision, ranks=ranks, attempt=1)
    refusals: dict[str, Any] = {}
    refused = {
        "emulated": (replace(TASK, strategy="pipeline"), "tf32"),
        "scaled": (replace(TASK, strategy="pipeline"), "amp_fp16"),
        "compiled": (replace(TASK, strategy="fsdp", compile=True), "fp32"),
        "nhwc": (replace(TASK, strategy="fsdp", layout="nhwc"), "fp32"),
        "microbatches": (replace(TASK, strategy="pipeline", microbatches=3), "fp32"),
        "accumulate": (replace(TASK, strategy="pipeline", accumulate=2), "fp32"),
        "1f1b": (replace(TASK, strategy="pipeline", schedule="1f1b", microbatches=1), "fp32"),
    }
    for name, (task, precision) in refused.items():
        try:
            run(root / f"refused_{name}", task, precision, ranks=ranks)
        except RecipeError as error:
            refusals[name] = str(error)
    if os.environ["RANK"] == "0":
        (root / "refusals.json").write_text(json.dumps(refusals))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
