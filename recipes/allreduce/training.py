"""Sums over all processes over a sweep of sizes: how long they take, and what that is in bandwidth."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from algorithms import ALGORITHMS
from exchange import Exchange, MpiExchange
from torch import distributed

from hpcml_client import Checkpoints, Client
from hpcml_train.errors import RecipeError, TrainingFailed
from hpcml_train.size_sweep import SizeSweep
from hpcml_train.task import Task
from hpcml_train.torch.strategies import nccl_environment

DEFAULTS: Mapping[str, Any] = {
    "sizes": [1024, 65_536, 1_048_576, 16_777_216],
    "algorithm": "backend",
    "warmup": 3,
    "repeats": 10,
}


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Measure as *task* says; return False where it left at a checkpoint."""
    options = {**DEFAULTS, **task.options}
    if run.world_size == 1:
        raise RecipeError(
            "one process has nobody to exchange anything with: hpcml run model=allreduce strategy=ddp, "
            "with strategy.processes_per_node=2 where there is no GPU"
        )
    arithmetic = run.apply_precision("torch")
    if task.strategy == "mpi" and options["algorithm"] != "backend":
        raise RecipeError(f"model.options.algorithm={options['algorithm']}: strategy=mpi has backend, MPI's own")
    with _together(run, task, arithmetic.device, arithmetic.parameter_dtype) as exchange:
        if run.rank == 0:
            variables = {name: os.environ.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")}
            run.event(
                "allreduce",
                backend=exchange.backend,
                algorithm=options["algorithm"],
                ranks=run.world_size,
                environment=variables,
            )
        device = arithmetic.device

        def agree(one_says: bool) -> bool:  # noqa: FBT001 - what it is about
            return bool(exchange.largest(torch.tensor([float(one_says)], device=device))[0])

        def measure(size: int) -> dict[str, float]:
            elements = max(1, size // arithmetic.parameter_dtype.itemsize)
            tensor = torch.empty(elements, dtype=arithmetic.parameter_dtype, device=device)
            times = _times(run, exchange, tensor, options)
            values = as_metrics(elements * tensor.element_size(), run.world_size, statistics.median(times))
            return {**values, "best_latency_us": min(times) * 1e6}

        sweep = SizeSweep(run, checkpoints, options["sizes"], agree)
        finished = sweep.measure(measure)
        if finished:
            sweep.report_best("busbw_gbs", "share_of_best")
    return finished


def as_metrics(size_bytes: int, ranks: int, seconds: float) -> dict[str, float]:
    """Return what NCCL's tests call it: algbw is size over time, busbw that times 2(n-1)/n.

    So much of the size each rank must send at least, so busbw is what a link carries, whatever the number of ranks.
    """
    algbw = size_bytes / seconds / 1e9
    return {"busbw_gbs": algbw * 2 * (ranks - 1) / ranks, "algbw_gbs": algbw, "latency_us": seconds * 1e6}


def _times(run: Client, exchange: Exchange, tensor: torch.Tensor, options: Mapping[str, Any]) -> list[float]:
    """Return the seconds of each repeat, of the slowest rank."""
    sum_up = exchange.sum_up if options["algorithm"] == "backend" else ALGORITHMS[options["algorithm"]]
    taken: list[float] = []
    for _ in range(options["warmup"] + options["repeats"]):
        _fill(tensor, run.rank)
        _wait(tensor)
        exchange.barrier()
        began = time.perf_counter()
        sum_up(tensor)
        _wait(tensor)
        taken.append(time.perf_counter() - began)
    _check(tensor, run.world_size)
    seconds = torch.tensor(taken[options["warmup"] :], dtype=torch.float64, device=tensor.device)
    return exchange.largest(seconds).tolist()


def _fill(tensor: torch.Tensor, rank: int) -> None:
    """Put small whole numbers into it, whose sums every format holds and which differ between the ranks."""
    tensor.copy_((torch.arange(tensor.numel(), device=tensor.device) + rank) % 4)


def _check(tensor: torch.Tensor, ranks: int) -> None:
    wanted = torch.zeros_like(tensor, dtype=torch.float64)
    for rank in range(ranks):
        wanted += (torch.arange(tensor.numel(), device=tensor.device) + rank) % 4
    # BF16 holds whole numbers up to 256: beyond 85 ranks sums are rounded on their way
    allowed = 0.0 if 3 * ranks <= 256 else ranks * torch.finfo(tensor.dtype).eps
    wrong = int(((tensor.double() - wanted).abs() > allowed * wanted).sum())
    if wrong:
        raise TrainingFailed(f"{wrong} of {tensor.numel()} sums over {ranks} ranks are wrong: do not train with this")


def _wait(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)


@contextlib.contextmanager
def _together(run: Client, task: Task, device: torch.device, dtype: torch.dtype) -> Iterator[Exchange]:
    """Join the other processes; yield what they talk by."""
    if task.strategy == "mpi":
        if device.type == "cuda":
            torch.cuda.set_device(device)
        over_mpi = MpiExchange(run, device, dtype)
        yield over_mpi
        over_mpi.finish()
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RecipeError(f"{' and '.join(missing)} must be in the environment: start it with hpcml")
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
        os.environ.update(nccl_environment(os.environ, torch.cuda.nccl.version()))
    distributed.init_process_group(backend, rank=run.rank, world_size=run.world_size)
    yield Exchange(backend)
    # Not in a `finally`: a rank that failed must not wait for the others. The group is not destroyed: torch waits for
    # gloo's threads with the GIL in hand, which one of them may be waiting for.
    distributed.barrier()
