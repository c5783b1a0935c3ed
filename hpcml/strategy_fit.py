"""Whether a strategy goes with the other settings of a run, once it is known what it runs on."""

from __future__ import annotations

from hpcml.errors import ConfigError, require
from hpcml.precision import Device, Numerics, PrecisionName
from hpcml.spec import LayoutName, Run
from hpcml.strategy import Nccl, StrategyName

_NOT_COMPILED = (StrategyName.fsdp, StrategyName.pipeline, StrategyName.model_parallel, StrategyName.horovod)
_SHARED_BY_PROCESSES = (StrategyName.ddp, StrategyName.fsdp, StrategyName.horovod)
_SHARED_BY_DEVICES = (StrategyName.mirrored, StrategyName.central_storage)
_MICROBATCHES = 4  # the recipes' own choice, where strategy.microbatches is null
_STAGES = 2  # the same of model_parallel without a GPU


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
    require(
        strategy.name is not StrategyName.horovod or run.workload.command is None or run.resources.nodes == 1,
        f"resources.nodes={run.resources.nodes}: strategy=horovod starts one launcher for a workload.command: use 1",
    )
    if run.workload.command is None:
        _check_recipe(run, numerics)
        if device.kind == "cuda" and run.resources.gpus_per_node is None:
            _check_one_gpu(run)


def divide(run: Run, *, processes_per_node: int, gpus_per_node: int) -> dict[str, object]:
    """Return how the recipe of *run* divides a batch and its model, or raise `ConfigError` where it cannot.

    `part_size`: the samples that are computed at once; `stages`, of strategies that cut the model: how many.
    """
    name, training, devices = run.strategy.name, run.training, run.strategy.devices
    processes = processes_per_node * run.resources.nodes
    if name is StrategyName.pipeline:
        return {"part_size": _microbatch_size(run, processes), "stages": processes}
    shares = _shares(run, processes, gpus_per_node)
    require(
        training.batch_size % shares == 0,
        f"training.batch_size={training.batch_size} cannot be shared by {shares} "
        f"{'processes' if name in _SHARED_BY_PROCESSES else 'devices'}: use a multiple of {shares}",
    )
    share = training.batch_size // shares
    require(
        share % training.accumulate == 0,
        f"training.accumulate={training.accumulate} does not divide the {share} samples of each share "
        f"(training.batch_size={training.batch_size}, {shares} share(s))",
    )
    stages = {"stages": gpus_per_node or devices or _STAGES} if name is StrategyName.model_parallel else {}
    return {"part_size": share // training.accumulate, **stages}


def _shares(run: Run, processes: int, gpus_per_node: int) -> int:
    """Return how many parts of a batch are computed side by side."""
    name = run.strategy.name
    if name in _SHARED_BY_PROCESSES:
        return processes
    if name in _SHARED_BY_DEVICES:
        return gpus_per_node or run.strategy.devices or 1
    if name is StrategyName.multi_worker_mirrored:
        return gpus_per_node * run.resources.nodes or processes
    return 1


def _microbatch_size(run: Run, stages: int) -> int:
    batch_size, parts = run.training.batch_size, run.strategy.microbatches or _MICROBATCHES
    require(batch_size % parts == 0, f"strategy.microbatches={parts} does not divide training.batch_size={batch_size}")
    require(
        run.strategy.schedule != "1f1b" or parts >= stages,
        f"strategy.microbatches={parts}: strategy.schedule=1f1b needs one for each of {stages} stages, or more",
    )
    return batch_size // parts


def _check_one_gpu(run: Run) -> None:
    try:
        run.strategy.check(nodes=run.resources.nodes, gpus_per_node=1)
    except ConfigError as error:
        raise ConfigError(
            f"{error} (resources.gpus_per_node=null is one GPU: say how many, or 0 for the CPU)"
        ) from error


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
    require(
        not (name is StrategyName.horovod and run.precision.name is PrecisionName.bf16),
        "precision=bf16 with strategy=horovod: Horovod sends no BF16: use precision=amp_bf16 or strategy=ddp",
    )
    if name is StrategyName.pipeline:
        _check_pipeline(run, numerics)


def _check_pipeline(run: Run, numerics: Numerics) -> None:
    precision, training = run.precision.name, run.training
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
