"""The strategies of torch (ddp, fsdp, pipeline ...): which settings they exclude, and how their processes start."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import distributed, nn

from hpcml_client.client import Client
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.stages import ModelParallel, cut
from hpcml_train.torch.team import DataParallel, Team

STRATEGIES = ("single", "cpu_threads", "ddp", "horovod", "fsdp", "pipeline", "model_parallel")
_STAGED = ("pipeline", "model_parallel")
_COMPILED = ("single", "cpu_threads", "ddp")
_OTHERS_ARE_REFUSED = (2, 24)  # NCCL: "Tree" alone then leaves Broadcast without any algorithm
_FUNCTIONS_OF = {  # what has each algorithm besides the ring (NCCL's source, src/graph/tuning.cc)
    **dict.fromkeys(("tree", "collnetchain", "nvlstree"), ("allreduce",)),
    **dict.fromkeys(("collnetdirect", "nvls"), ("allreduce", "allgather", "reducescatter")),
}


def refuse_impossible(task: Task, arithmetic: Arithmetic) -> None:
    """Raise `RecipeError` where the strategy cannot be combined with the other settings.

    hpcml's planning refuses the same before (tests hold the two equal); this is for recipes started by hand.
    """
    if task.compile and task.strategy not in _COMPILED:
        raise RecipeError(f"training.compile=true with strategy={task.strategy} is not supported: set it to false")
    if task.strategy == "fsdp" and task.layout == "nhwc":
        raise RecipeError("layout=nhwc with strategy=fsdp: torch shards contiguous parameters only: use layout=nchw")
    name = arithmetic.precision
    if task.strategy == "horovod" and name == "bf16":
        raise RecipeError("precision=bf16 with strategy=horovod: Horovod sends no BF16: use amp_bf16 or strategy=ddp")
    if task.strategy != "pipeline":
        return
    if arithmetic.numerics == "emulated":
        raise RecipeError(f"precision={name} is emulated here, which strategy=pipeline does not do: use another device")
    if arithmetic.replaces_products:
        raise RecipeError(f"precision={name} is computed by scaled products, which strategy=pipeline does not do")
    if arithmetic.loss_scaling:
        raise RecipeError(f"precision={name} scales the loss, which stages of a pipeline cannot agree on: use amp_bf16")


def prepare(model: nn.Module, task: Task, arithmetic: Arithmetic) -> None:
    """Move *model* to its device, dtype and layout; a model cut into stages gets its devices in `share`."""
    if task.strategy in _STAGED:
        model.to(dtype=arithmetic.parameter_dtype)
    else:
        arithmetic.prepare(model)
    if task.layout == "nhwc":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextlib.contextmanager
def share(recipe: Recipe, run: Client, task: Task, arithmetic: Arithmetic) -> Iterator[Team]:
    """Share the model of *recipe* between the processes and devices of the run."""
    if run.world_size == 1:
        yield _alone(recipe, task, arithmetic)
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RecipeError(
            f"strategy={task.strategy} needs {' and '.join(missing)} in the environment: start it with hpcml"
        )
    on_gpu = arithmetic.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(arithmetic.device)
        os.environ.update(nccl_environment(os.environ, _nccl_version()))  # read when the ranks meet
    if task.strategy == "horovod":
        with _horovod(recipe, run, arithmetic) as team:
            yield team
        return
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if on_gpu else "gloo", rank=run.rank, world_size=run.world_size)
    yield _TEAMS[task.strategy](recipe, run, task, arithmetic)
    # Not in a `finally`: a rank that failed must not wait for the others.
    distributed.barrier()  # nobody leaves while another still talks to it
    # The group is not destroyed: torch waits for gloo's threads with the GIL in hand, which one of them may be waiting
    # for, and then nothing moves any more (seen several times in a few hundred trainings). The process is about to end.


def nccl_environment(environ: Mapping[str, str], version: tuple[int, ...]) -> Mapping[str, str]:
    """Return the changes to *environ* for an NCCL of *version*.

    NCCL before 2.24 takes the ring for operations that the algorithm does not have. Since 2.24 it fails instead
    (github.com/NVIDIA/nccl/issues/317), but takes a choice for each function. All functions are named, since NCCL 2.31
    leaves the others without any algorithm.
    """
    chosen = environ.get("NCCL_ALGO", "").lower()
    functions = _FUNCTIONS_OF.get(chosen)
    if functions is None or version < _OTHERS_ARE_REFUSED:
        return {}
    return {"NCCL_ALGO": ";".join([f"ring,{chosen}", *(f"{function}:{chosen}" for function in functions)])}


def _alone(recipe: Recipe, task: Task, arithmetic: Arithmetic) -> Team:
    if task.strategy == "cpu_threads":
        return _Threads(recipe.model, arithmetic.device)
    if task.strategy != "model_parallel":
        return Team(recipe.model, arithmetic.device)
    devices = devices_of(task, arithmetic.device)
    stages = cut(recipe.model, recipe.layers(recipe.model), len(devices), task.strategy)
    for stage in stages:
        for layer in stage:
            arithmetic.prepare(layer)
    return ModelParallel(recipe.model, stages, devices)


def devices_of(task: Task, first: torch.device) -> list[torch.device]:
    """Return the devices that this process drives."""
    if task.strategy != "model_parallel":
        return [first]
    if first.type != "cuda":
        return [first] * (task.planned_stages or task.devices or 2)  # logical ones
    seen = torch.cuda.device_count()
    count = task.planned_stages or task.devices or seen
    if not 2 <= count <= seen:
        raise RecipeError(f"strategy=model_parallel: {count} of {seen} GPUs: use two or more")
    return [torch.device("cuda", number) for number in range(count)]


def _nccl_version() -> tuple[int, ...]:
    return tuple(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]


class _Threads(Team):
    """One process, whose threads share each operation."""

    def details(self) -> Mapping[str, object]:
        return {"intra_op_threads": torch.get_num_threads(), "inter_op_threads": torch.get_num_interop_threads()}


def _ddp(recipe: Recipe, run: Client, task: Task, arithmetic: Arithmetic) -> Team:
    return DataParallel(recipe.model, arithmetic.device, world_size=run.world_size, bucket_cap_mb=task.bucket_cap_mb)


def _fsdp(recipe: Recipe, run: Client, task: Task, arithmetic: Arithmetic) -> Team:
    del task
    try:
        from hpcml_train.torch.fsdp import Sharded  # here: images have older torches
    except ImportError as error:
        raise RecipeError(f"strategy=fsdp needs torch 2.6 or newer: this is {torch.__version__}") from error
    return Sharded(recipe, arithmetic, rank=run.rank, world_size=run.world_size)


def _pipeline(recipe: Recipe, run: Client, task: Task, arithmetic: Arithmetic) -> Team:
    try:
        from hpcml_train.torch.pipeline import Pipeline  # here: images have older torches
    except ImportError as error:
        raise RecipeError(f"strategy=pipeline needs torch 2.5 or newer: this is {torch.__version__}") from error
    return Pipeline(recipe, task, arithmetic, rank=run.rank, world_size=run.world_size)


def _horovod(recipe: Recipe, run: Client, arithmetic: Arithmetic) -> contextlib.AbstractContextManager[Team]:
    try:
        from hpcml_train.torch.horovod import averaging  # here: few have it
    except ImportError as error:
        raise RecipeError(
            f"strategy=horovod needs Horovod for torch in {sys.executable}: {error}: see docs/horovod.md, or use "
            "strategy=ddp"
        ) from error
    return averaging(recipe.model, arithmetic.device, run)


_TEAMS: dict[str, Callable[[Recipe, Client, Task, Arithmetic], Team]] = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "pipeline": _pipeline,
}
