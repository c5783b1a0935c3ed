"""Whether a strategy goes with the other settings of a run, once it is known what it runs on."""

from __future__ import annotations

from hpcml.errors import ConfigError, require
from hpcml.precision import Device, Numerics, PrecisionName
from hpcml.spec import LayoutName, Run
from hpcml.strategy import Nccl, StrategyName

_NOT_COMPILED = (StrategyName.fsdp, StrategyName.pipeline, StrategyName.model_parallel)


def check_strategy(run: Run, device: Device, numerics: Numerics, *, cpus_per_task: int | None) -> None:
    """Raise `ConfigError` where the strategy of *run* cannot; what only recipes do is not asked of a command."""
    strategy = run.strategy
    require(
        device.kind != "cpu" or strategy.nccl == Nccl(),
        "strategy.nccl means nothing without GPUs, where gloo sends: leave it at null",
    )
    require(
        strategy.name is not StrategyName.cpu_threads or cpus_per_task is not None,
        "strategy=cpu_threads needs resources.cpus_per_task: how many threads",
    )
    if run.workload.command is None:
        _check_recipe(run, numerics)


def _check_recipe(run: Run, numerics: Numerics) -> None:
    name, training = run.strategy.name, run.training
    require(
        not (training.compile and name in _NOT_COMPILED),
        f"training.compile=true with strategy={name.name} is not supported: set it to false",
    )
    require(
        not (name is StrategyName.fsdp and run.layout.name is LayoutName.nhwc),
        "layout=nhwc with strategy=fsdp: torch shards contiguous parameters only: use layout=nchw",
    )
    if name is StrategyName.pipeline:
        _check_pipeline(run, numerics)


def _check_pipeline(run: Run, numerics: Numerics) -> None:
    precision, training, parts = run.precision.name, run.training, run.strategy.microbatches
    if numerics is Numerics.emulated:
        raise ConfigError(f"precision={precision.name} is emulated here, which strategy=pipeline does not do")
    if precision is PrecisionName.amp_fp16 and run.precision.loss_scaling:
        raise ConfigError(
            "precision=amp_fp16 scales the loss, which stages of a pipeline cannot agree on: use precision=amp_bf16"
        )
    require(
        training.accumulate == 1,
        f"training.accumulate={training.accumulate}: strategy=pipeline has strategy.microbatches",
    )
    require(
        parts is None or training.batch_size % parts == 0,
        f"strategy.microbatches={parts} does not divide training.batch_size={training.batch_size}",
    )
