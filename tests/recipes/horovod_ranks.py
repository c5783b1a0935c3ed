"""A program that test_horovod.py starts once for each rank: the same small model as strategy_ranks.py, with Horovod."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from strategy_ranks import TASK, Shapes, Stopped, run
from torch import nn

from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic

CASES = {
    "plain": (TASK, "fp64"),
    "accumulated": (replace(TASK, accumulate=2), "fp64"),
    "nhwc": (replace(TASK, layout="nhwc"), "fp64"),
    "scaled": (TASK, "amp_fp16"),
}
REFUSED = {"bf16": (TASK, "bf16"), "compiled": (replace(TASK, compile=True), "fp32")}


class Channels(Shapes):
    """The same with a second convolution, whose weights in `nhwc` lie in another order than they are numbered."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        super().__init__(task, arithmetic)
        self.model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Conv2d(5, 4, 3), nn.Flatten(), nn.Linear(16, 3))


class Astray(Shapes):
    """The same, but for a rank that drew other weights."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        super().__init__(task, arithmetic)
        if os.environ["RANK"] == "1":
            for parameter in self.model.parameters():
                nn.init.ones_(parameter)


def main(root: Path) -> None:
    """Train each case alone, with DDP and with Horovod; write what was refused."""
    ranks, is_first = int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    for name, (task, precision) in CASES.items():
        make = Channels if task.layout == "nhwc" else Shapes
        if is_first:
            run(root / f"{name}_alone", replace(task, accumulate=1), precision, ranks=1, make=make)
        for strategy in ("ddp", "horovod"):
            run(root / f"{name}_{strategy}", replace(task, strategy=strategy), precision, ranks=ranks, make=make)
    for name in ("plain", "scaled"):
        task, precision = CASES[name]
        task = replace(task, strategy="horovod")
        run(root / f"{name}_resumed", task, precision, ranks=ranks, make=Stopped)
        run(root / f"{name}_resumed", task, precision, ranks=ranks, attempt=1)
    run(root / "astray", replace(TASK, strategy="horovod"), "fp64", ranks=ranks, make=Astray)
    refusals = {}
    for name, (task, precision) in REFUSED.items():
        try:
            run(root / f"{name}_refused", replace(task, strategy="horovod"), precision, ranks=ranks)
        except RecipeError as error:
            refusals[name] = str(error)
    if is_first:
        (root / "refusals.json").write_text(json.dumps(refusals))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
