"""LU factorisations over a sweep of sizes: how fast, how exact, and what refinement in FP64 makes of them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from blocked import Product, factorise, lapack_factorise
from factors import OPERATIONS, factorised, multiplied, positive_definite, solver
from solving import Refined, factorisation_residual, lu_solver, refine

from hpcml_client import Checkpoints, Client
from hpcml_train.errors import RecipeError
from hpcml_train.size_sweep import SizeSweep, Times, time_calls
from hpcml_train.task import Task
from hpcml_train.torch import switches
from hpcml_train.torch.arithmetic import Arithmetic

DEFAULTS: Mapping[str, Any] = {
    "sizes": [128, 256, 512, 1024],
    "factorisation": "blocked",
    "block": 64,
    "max_iterations": 50,
    "warmup": 1,
    "repeats": 3,
}
_IN_A_LIBRARY = ("fp64", "fp32")


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Measure as *task* says; return False where it left at a checkpoint."""
    options = {**DEFAULTS, **task.options}
    if (kind := options["factorisation"]) != "blocked" and run.precision not in _IN_A_LIBRARY:
        raise RecipeError(
            f"model.options.factorisation={kind} is LAPACK's, in {' or '.join(_IN_A_LIBRARY)}: "
            f"choose blocked for precision={run.precision}"
        )
    arithmetic = run.apply_precision("torch")
    sweep = SizeSweep(run, checkpoints, options["sizes"])

    def measure(size: int) -> dict[str, float]:
        values, times = _measure(arithmetic, options, task.seed, size)
        done = (
            {} if times is None else {"total_gflop": sweep.total("total_gflop", times.calls * gflops(size, 1.0, kind))}
        )
        return {**values, **done}

    finished = sweep.measure(measure)
    if finished:
        sweep.report_best("gflops", "share_of_best")
    return finished


def gflops(size: int, seconds: float, kind: str = "blocked") -> float:
    """Return the rate of a factorisation: 2/3 N^3 operations of LU, a multiply-add as two."""
    return OPERATIONS.get(kind, 2 / 3) * size**3 / seconds / 1e9


def _measure(
    arithmetic: Arithmetic, options: Mapping[str, Any], seed: int, size: int
) -> tuple[dict[str, float], Times | None]:
    generator = torch.Generator().manual_seed(seed)
    # uniform in 0..1, as MAGMA's testers draw them: its published residuals can be compared
    exact = torch.rand(size, size, generator=generator, dtype=torch.float64).to(arithmetic.device)
    right = torch.rand(size, generator=generator, dtype=torch.float64).to(arithmetic.device)
    kind = options["factorisation"]
    if kind == "cholesky":
        exact = positive_definite(exact)
    working = torch.float64 if arithmetic.precision == "fp64" else torch.float32
    given = exact.to(working)
    compute = functools.partial(_factorise, arithmetic, options, given)
    factors = compute()
    if kind in OPERATIONS:
        residual = float((exact - multiplied(factors)).norm() / (size * exact.norm()))
        solve = solver(factors)
    else:
        residual, solve = factorisation_residual(exact, *factors), lu_solver(*factors)
    with _exact(arithmetic):
        began = time.perf_counter()
        refined = refine(exact, right, solve, dtype=working, most=options["max_iterations"])
        _wait(arithmetic)
        refining_s = time.perf_counter() - began
    values = {"residual": residual, **_as_metrics(refined)}
    if arithmetic.numerics != "native":
        return values, None
    wait = functools.partial(_wait, arithmetic)
    times = time_calls(compute, wait, warmup=options["warmup"], repeats=options["repeats"], repeat_time_s=0.0)
    values["gflops"] = gflops(size, times.best_s, kind)
    values["median_gflops"] = gflops(size, times.median_s, kind)
    values["factorisation_time_s"] = times.median_s
    if refined.iterations is not None:
        values["solution_gflops"] = gflops(size, times.median_s + refining_s, kind)
    return values, times


def _as_metrics(refined: Refined) -> dict[str, float]:
    values = {"first_backward_error": refined.first, "backward_error": refined.last}
    if refined.iterations is not None:
        values["refinement_iterations"] = float(refined.iterations)
    return {**values, "converged": float(refined.iterations is not None)}


def _factorise(arithmetic: Arithmetic, options: Mapping[str, Any], matrix: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if (kind := options["factorisation"]) in OPERATIONS:
        return factorised(kind, matrix)
    if kind == "library":
        return lapack_factorise(matrix)
    with _exact(arithmetic):
        return factorise(matrix, options["block"], _product_of(arithmetic, matrix.dtype))


def _product_of(arithmetic: Arithmetic, working: torch.dtype) -> Product:
    given_as = arithmetic.factor_dtype

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with _as_asked(arithmetic), arithmetic.context():
            return (a.to(given_as) @ b.to(given_as)).to(working)

    return product


def _exact(arithmetic: Arithmetic) -> contextlib.AbstractContextManager[None]:
    """Keep panels and triangular solves in real FP32: on a GPU TF32's switch would reach them too."""
    return switches.ieee() if arithmetic.precision == "tf32" else contextlib.nullcontext()


@contextlib.contextmanager
def _as_asked(arithmetic: Arithmetic) -> Iterator[None]:
    is_tf32 = arithmetic.precision == "tf32" and arithmetic.numerics == "native"
    if not is_tf32:
        yield
        return
    switches.set_switches(tf32=True)
    try:
        yield
    finally:
        switches.set_switches(tf32=False)


def _wait(arithmetic: Arithmetic) -> None:
    if arithmetic.device.type == "cuda":
        torch.cuda.synchronize(arithmetic.device)
