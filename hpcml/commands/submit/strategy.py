"""Whether the strategy fits the other settings of a run, how it divides a batch, and how it starts processes by MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from hpcml.errors import ConfigError, require
from hpcml.model.choices import Numerics
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.precision import Device, PrecisionName
from hpcml.model.run import Launcher, LayoutName, Run
from hpcml.model.strategy import KINDS, NVLS_NEEDS, Nccl, Processes, StrategyName
from hpcml.runs.plan import MpiStart

_NOT_COMPILED = (StrategyName.fsdp, StrategyName.pipeline, StrategyName.model_parallel, StrategyName.horovod)
_SHARED_BY_PROCESSES = (StrategyName.ddp, StrategyName.fsdp, StrategyName.horovod)
_SHARED_BY_DEVICES = (StrategyName.mirrored, StrategyName.central_storage)
_MICROBATCHES = 4  # the recipes' own choice, where strategy.microbatches is null
_STAGES = 2  # the same of model_parallel without a GPU
# What a scheduler's jobs have; the first is taken where neither the run nor the site names one.
_OF_SCHEDULER: Mapping[SchedulerName, tuple[Launcher, ...]] = {
    SchedulerName.local: (Launcher.mpirun, Launcher.mpiexec),
    SchedulerName.slurm: (Launcher.srun, Launcher.mpirun, Launcher.mpiexec),
    SchedulerName.pbs: (Launcher.mpirun, Launcher.mpiexec, Launcher.pbsdsh),
}
_OTHERS = (Launcher.mpirun, Launcher.mpiexec)  # of a scheduler that is not in the table


def gpus_per_node(run: Run, device: Device) -> int:
    """Return how many GPUs of a node the run uses: what it asks for, else one.

    On a *device* without a GPU it is 0, whatever is asked for; on MIG slices 1, since a process sees one.
    """
    if device.kind == "cpu":
        return 0
    if run.resources.mig is not None:
        return 1
    return 1 if run.resources.gpus_per_node is None else run.resources.gpus_per_node


def processes_per_node(run: Run, device: Device) -> int:
    """Return how many processes (ranks) the agent starts on each node.

    The strategy decides: one, ``strategy.processes_per_node``, or one for each GPU. A program of one's own with Horovod
    gets one process, since its own launcher (horovodrun) starts the ranks, unless ``workload.launcher`` does.
    """
    processes = KINDS[run.strategy.name].processes
    is_launcher = run.strategy.name is StrategyName.horovod and run.workload.launcher is Launcher.auto
    if processes is Processes.one or (is_launcher and run.workload.command is not None):
        return 1
    if processes is Processes.per_node:
        return run.strategy.processes_per_node or 1
    return run.strategy.processes_per_node or gpus_per_node(run, device)


class Division(TypedDict, total=False):
    """How a batch, and a model, are divided.

    It is written into run.json as a part of the plan, and the recipe reads it there instead of computing it again.
    """

    part_size: int  # the samples that are computed at once
    stages: int  # of strategies that cut the model


def check_strategy(run: Run, device: Device, numerics: Numerics, *, cpus_per_task: int | None) -> None:
    """Raise `ConfigError` where the strategy of *run* does not fit its device, precision, or other settings.

    For a ``workload.command`` less is checked: what a program of one's own can do is not known.
    """
    strategy = run.strategy
    require(
        device.kind != "cpu" or strategy.nccl == Nccl(),
        "strategy.nccl means nothing without GPUs, where gloo sends: leave it at null",
    )
    algo, capability_ = strategy.nccl.algo or "", device.compute_capability
    require(
        not algo.startswith("nvls") or capability_ is None or capability_ >= NVLS_NEEDS,
        f"strategy.nccl.algo={algo} is the NVSwitches' own (NVLink SHARP), from compute capability 9.0: {device.name}",
    )
    require(
        strategy.name is not StrategyName.cpu_threads or cpus_per_task is not None,
        "strategy=cpu_threads needs resources.cpus_per_task: how many threads",
    )
    is_launcher = strategy.name is StrategyName.horovod and run.workload.launcher is Launcher.auto
    require(
        not is_launcher or run.workload.command is None or run.resources.nodes == 1,
        f"resources.nodes={run.resources.nodes}: strategy=horovod starts one launcher for a workload.command: use 1, "
        "or have the ranks started by MPI: workload.launcher=mpirun or srun",
    )
    launcher, each = run.workload.own_launcher, processes_per_node(run, device)
    require(
        launcher is None or each == 1 or mpi_start_of(run) is not None,
        f"{launcher} starts the processes itself, and strategy={strategy.name.name} would start it {each} times: use "
        f"strategy=single, or leave {launcher} out",
    )
    if run.workload.command is None:
        _check_recipe(run, numerics)
        if device.kind == "cuda" and run.resources.gpus_per_node is None:
            _check_one_gpu(run)


def divide(run: Run, *, processes_per_node: int, gpus_per_node: int) -> Division:
    """Return how the recipe of *run* divides a batch and its model, or raise `ConfigError` where it cannot.

    A batch of ``training.batch_size`` samples is shared by the processes (ddp, fsdp, horovod) or the devices (mirrored,
    central_storage, multi_worker_mirrored), and each share is computed in ``training.accumulate`` parts: 256 samples on
    4 GPUs with accumulate=2 are parts of 32. A pipeline divides it into ``strategy.microbatches`` instead, and has a
    stage for each process. Every division must be without remainder.
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
    part_size = share // training.accumulate
    if name is StrategyName.model_parallel:
        return {"part_size": part_size, "stages": gpus_per_node or devices or _STAGES}
    return {"part_size": part_size}


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
    is_by_gloo = name is StrategyName.horovod and run.workload.launcher is Launcher.auto
    require(
        not is_by_gloo or run.model.framework != "tensorflow",
        "strategy=horovod in TensorFlow is started by MPI: set workload.launcher=mpirun or srun",
    )
    require(
        not is_by_gloo or not run.strategy.horovod.hierarchical,
        "strategy.horovod.hierarchical=true is a part of Horovod's MPI operations: set workload.launcher=mpirun or "
        "srun",
    )
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


def replaced_products(run: Run, numerics: Numerics) -> str | None:
    """Return whose products hpcml computes in place of the framework's; None where it computes none."""
    if numerics is Numerics.emulated:
        return f"emulation of {run.precision.name.name}"
    return f"scaled products of {run.precision.name.name}" if run.precision.name.value.scaled_products else None


def _check_pipeline(run: Run, numerics: Numerics) -> None:
    precision, training = run.precision.name, run.training
    require(
        numerics is not Numerics.emulated,
        f"precision={precision.name} is emulated here, which strategy=pipeline does not do",
    )
    require(
        not precision.value.scaled_products,
        f"precision={precision.name} is computed by scaled products, which strategy=pipeline does not do",
    )
    require(
        precision is not PrecisionName.amp_fp16 or not run.precision.loss_scaling,
        "precision=amp_fp16 scales the loss, which stages of a pipeline cannot agree on: use precision=amp_bf16",
    )
    require(
        training.accumulate == 1,
        f"training.accumulate={training.accumulate}: strategy=pipeline has strategy.microbatches",
    )


def mpi_start_of(run: Run) -> MpiStart | None:
    """Return how the ranks of all nodes of *run* are started as one MPI job; None: by the agents of the nodes.

    Raises `ConfigError` where ``workload.launcher`` belongs to another scheduler or strategy, is another than the
    site's only one, or would start the ranks a second time.
    """
    asked, strategy, site = run.workload.launcher, run.strategy.name, run.cluster
    if strategy is StrategyName.horovod and asked is Launcher.auto:
        return None
    if strategy not in (StrategyName.mpi, StrategyName.horovod):
        require(
            asked is Launcher.auto,
            f"workload.launcher={asked.name} means something with strategy=mpi and horovod only, not {strategy.name}",
        )
        return None
    own = run.workload.own_launcher
    if asked is Launcher.none:
        require(
            run.workload.command is not None,
            f"workload.launcher=none: hpcml starts the command once, and model={run.model.name} has none: choose auto",
        )
        return MpiStart(launcher=Launcher.none.name)
    if own is not None:
        raise ConfigError(
            f"{own} starts the processes itself, and strategy={strategy.name} would start it once for each of them: "
            f"leave {own} out, or set workload.launcher=none"
        )
    launcher = _launcher(run, asked)
    require(
        run.resources.nodes == 1 or site.mpi_launcher is not None or not _is_alone(site),
        f"strategy={strategy.name} on {run.resources.nodes} nodes: {launcher.name} hears of no other node in jobs of "
        f"cluster={site.name} ({site.scheduler.name}), and hpcml starts ranks there by nothing else: set "
        "resources.nodes=1, or strategy=ddp; where the site's own launcher does hear of them, name it in "
        "cluster.mpi_launcher",
    )
    return MpiStart(launcher=launcher.name, pmi=site.mpi if launcher is Launcher.srun else None)


def _is_alone(site: Cluster) -> bool:
    """Whether the job tells an MPI's own launcher only of the node that it is on: under Flux, and below jsrun."""
    is_below_jsrun = site.scheduler is SchedulerName.lsf and site.lsf.launcher == "jsrun"
    return is_below_jsrun or site.scheduler is SchedulerName.flux


def _launcher(run: Run, asked: Launcher) -> Launcher:
    site = run.cluster
    known = _OF_SCHEDULER.get(site.scheduler, _OTHERS)
    only = None if site.mpi_launcher is None else Launcher(site.mpi_launcher)
    if asked is Launcher.auto:
        return known[0] if only is None else only
    if only is not None and asked is not only:
        raise ConfigError(
            f"workload.launcher={asked.name}: cluster={site.name} starts MPI programs by {only.name} "
            "(cluster.mpi_launcher): leave it at auto"
        )
    require(
        asked in known or asked is only,
        f"workload.launcher={asked.name}: cluster={site.name} takes jobs by {site.scheduler.name}, which has "
        f"{', '.join(one.name for one in known)}",
    )
    return asked
