"""Products of square matrices over a sweep of sizes: how fast, and how far from FP64."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from hpcml_client import Checkpoints, Client
from hpcml_train.errors import RecipeError
from hpcml_train.size_sweep import SizeSweep, time_calls
from hpcml_train.task import Task

DEFAULTS: Mapping[str, Any] = {
    "sizes": [64, 128, 256, 512, 1024, 2048],
    "batch": 1,
    "warmup": 3,
    "repeats": 5,
    "repeat_time_s": 0.02,
}
FRAMEWORKS = ("torch", "numpy", "jax")


class Products(Protocol):
    """The matrices of one size in a framework."""

    def compute(self) -> object:
        """Multiply them; may return before the device has."""

    def wait(self) -> None:
        """Return once the device has done all that it was given."""

    def relative_error(self) -> float:
        """Return the error of a sample of the product against FP64, relative in the Frobenius norm."""


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Measure as *task* says; return False where it left at a checkpoint."""
    options = {**DEFAULTS, **task.options}
    framework = task.choose("framework", FRAMEWORKS)
    if framework == "numpy" and (run.config.get("plan") or {}).get("device") == "cuda":
        raise RecipeError("model.framework=numpy computes on the CPU: set resources.gpus_per_node=0")
    module = importlib.import_module(f"{framework}_products")
    arithmetic = module.arithmetic_of(run)
    sweep = SizeSweep(run, checkpoints, options["sizes"])

    def measure(size: int) -> dict[str, float]:
        products: Products = module.make(arithmetic, size, options["batch"], task.seed)
        values: dict[str, float] = {}
        if arithmetic.numerics == "native":
            timing = {name: options[name] for name in ("warmup", "repeats", "repeat_time_s")}
            times = time_calls(products.compute, products.wait, **timing)
            values["gflops"] = gflops(size, options["batch"], times.best_s)
            values["median_gflops"] = gflops(size, options["batch"], times.median_s)
            values["product_time_s"] = times.median_s
            values["total_gflop"] = sweep.total("total_gflop", times.calls * gflops(size, options["batch"], 1.0))
        return {**values, "relative_error": products.relative_error()}

    finished = sweep.measure(measure)
    if finished:
        sweep.report_best("gflops", "share_of_best")
    return finished


def gflops(size: int, batch: int, seconds: float) -> float:
    """Return the rate of *batch* products of matrices of *size*: each 2N^3 operations, a multiply-add as two."""
    return 2.0 * size**3 * batch / seconds / 1e9
