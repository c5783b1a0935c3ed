"""What a step of hpcml's own torch recipe costs over the same step in plain torch, both in turn in one process.

After each block of the recipe's steps, which report to a real journal, the loop of `bare_training.py` takes as many.
A pair of neighbouring blocks gives a ratio of CPU times; the ratio of all is their geometric mean with Student's 95 %
interval. Left out: evaluations, checkpoints, the start, and what runs beside the program (`supervise_overhead.py`,
`sampler.py`).

The goal: within 1 % for a step of the CNN.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: CPU time is then the time that a quiet machine would take

from bare_training import train as train_bare
from scipy.stats import t as student
from training import train as train_recipe

import hpcml_client
from hpcml_client.recipe_task import Task

GOAL = 1.01
WARM_UP_BLOCKS = 3
CASES = {"mnist_cnn": (60, 20), "mnist_mlp": (60, 200)}  # model -> pairs of blocks, steps of a block


class Turns:
    """Stands in front of a run's `metrics`, and takes as many bare steps after each block of the recipe's."""

    def __init__(self, run: hpcml_client.Client, model: str, block: int) -> None:
        self.ratios: list[float] = []
        self.bare_s: list[float] = []
        self._report = run.metrics
        self._bare = train_bare(model, 64)
        self._block = block
        self._began = time.process_time()

    def metrics(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Report, and take a turn."""
        self._report(values, step)
        assert step is not None  # noqa: S101 - the recipe numbers its steps
        if step % self._block:
            return
        between = time.process_time()
        for _ in range(self._block):
            next(self._bare)
        ended = time.process_time()
        self.bare_s.append((ended - between) / self._block)
        self.ratios.append((between - self._began) / (ended - between))
        self._began = time.process_time()


def measure(model: str, pairs: int, block: int, folder: Path) -> Turns:
    """Return the ratios of *pairs* of blocks."""
    steps = (pairs + WARM_UP_BLOCKS) * block
    config = folder / "run.json"
    config.write_text(json.dumps({"plan": {"device": "cpu", "numerics": "native"}}))
    environ = {"HPCML_RUN_DIR": str(folder), "HPCML_CONFIG": str(config)}
    with hpcml_client.connect(environ) as run:
        task = Task(model=model, steps=steps + 1, eval_every=steps + 1)
        turns = Turns(run, model, block)
        run.metrics = turns.metrics  # type: ignore[method-assign]
        train_recipe(run, task, run.checkpoints())
    return turns


def main() -> int:
    print("| model | bare step, ms | recipe / bare | 95 % interval |")
    print("|---|---:|---:|---:|")
    within = True
    for model, (pairs, block) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            turns = measure(model, pairs, block, Path(folder))
        logs = [math.log(ratio) for ratio in turns.ratios[WARM_UP_BLOCKS:]]
        mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        reach = float(student.ppf(0.975, len(logs) - 1)) * error
        low, middle, high = (math.exp(mean + sign * reach) for sign in (-1, 0, 1))
        bare_ms = statistics.median(turns.bare_s[WARM_UP_BLOCKS:]) * 1000
        print(f"| {model} | {bare_ms:.2f} | {middle:.3f} | {low:.3f} to {high:.3f} |")
        within = within and (model != "mnist_cnn" or middle <= GOAL)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
