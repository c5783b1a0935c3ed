"""How several devices share one training: what each strategy needs, and what can be chosen of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hpcml.errors import require


class StrategyName(Enum):
    """How several devices share one training."""

    single = "single"
    cpu_threads = "cpu_threads"
    ddp = "ddp"
    fsdp = "fsdp"
    pipeline = "pipeline"
    model_parallel = "model_parallel"
    mirrored = "mirrored"
    multi_worker_mirrored = "multi_worker_mirrored"
    central_storage = "central_storage"
    parameter_server = "parameter_server"
    horovod = "horovod"


class Processes(Enum):
    """How many processes a strategy has."""

    one = "one process"
    per_node = "one process on each node"
    per_device = "one process for each GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a strategy is."""

    frameworks: tuple[str, ...]
    processes: Processes
    fewest_devices: int  # over all nodes; without a GPU a process counts as one, or what `strategy.devices` says
    is_synchronous: bool = True  # every step's gradients are of the same weights
    on_gpus: bool = True


KINDS: Mapping[StrategyName, Kind] = {
    StrategyName.single: Kind(
        frameworks=("torch", "tensorflow", "jax", "numpy"), processes=Processes.one, fewest_devices=1
    ),
    StrategyName.cpu_threads: Kind(
        frameworks=("torch", "tensorflow", "jax", "numpy"), processes=Processes.one, fewest_devices=1, on_gpus=False
    ),
    StrategyName.ddp: Kind(frameworks=("torch",), processes=Processes.per_device, fewest_devices=2),
    StrategyName.fsdp: Kind(frameworks=("torch",), processes=Processes.per_device, fewest_devices=2),
    StrategyName.pipeline: Kind(frameworks=("torch",), processes=Processes.per_device, fewest_devices=2),
    StrategyName.model_parallel: Kind(frameworks=("torch",), processes=Processes.one, fewest_devices=2),
    StrategyName.mirrored: Kind(frameworks=("tensorflow",), processes=Processes.one, fewest_devices=2),
    StrategyName.multi_worker_mirrored: Kind(
        frameworks=("tensorflow",), processes=Processes.per_node, fewest_devices=2
    ),
    StrategyName.central_storage: Kind(frameworks=("tensorflow",), processes=Processes.one, fewest_devices=2),
    StrategyName.parameter_server: Kind(
        frameworks=("tensorflow",), processes=Processes.per_device, fewest_devices=3, is_synchronous=False
    ),
    StrategyName.horovod: Kind(frameworks=("torch", "tensorflow"), processes=Processes.per_device, fewest_devices=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The parallelism. `processes_per_node` None means one process for each GPU."""

    name: StrategyName
    processes_per_node: int | None = None
    devices: int | None = None  # that a process drives: None its GPUs; where there is none, logical devices of the CPU

    def __post_init__(self) -> None:
        for name in ("processes_per_node", "devices"):
            count = getattr(self, name)
            require(count is None or count >= 1, f"strategy.{name}={count} must be at least 1")

    def check(self, *, nodes: int, gpus_per_node: int | None) -> None:
        """Raise `ConfigError` where the strategy cannot use so many nodes and GPUs."""
        kind = KINDS[self.name]
        if kind.processes is Processes.per_device:
            self._check_processes(kind, nodes, gpus_per_node)
            return
        asked = f"nodes={nodes}, gpus_per_node={gpus_per_node}, processes_per_node={self.processes_per_node}"
        if kind.fewest_devices == 1:
            fits = nodes == 1 and (gpus_per_node or 0) <= kind.on_gpus and self.processes_per_node in (None, 1)
            where = "on at most one GPU" if kind.on_gpus else "without a GPU: set resources.gpus_per_node=0"
            other = " (use strategy=ddp)" if kind.on_gpus else ""
            require(fits, f"strategy={self.name.name} is one process {where}: {asked}{other}")
            require(self.devices in (None, 1), f"strategy.devices={self.devices}: strategy={self.name.name} uses one")
            return
        require(
            self.processes_per_node in (None, 1),
            f"strategy={self.name.name} is {kind.processes.value}: processes_per_node={self.processes_per_node}",
        )
        require(
            nodes == 1 or kind.processes is Processes.per_node,
            f"strategy={self.name.name} is {kind.processes.value}: resources.nodes={nodes} (use 1)",
        )
        require(
            not gpus_per_node or self.devices in (None, gpus_per_node),
            f"strategy.devices={self.devices} does not match resources.gpus_per_node={gpus_per_node}",
        )
        devices = (gpus_per_node or self.devices or 1) * nodes
        require(
            devices >= kind.fewest_devices,
            f"strategy={self.name.name} needs {kind.fewest_devices} devices or more: set resources.gpus_per_node, "
            "or strategy.devices where there is no GPU",
        )

    def _check_processes(self, kind: Kind, nodes: int, gpus_per_node: int | None) -> None:
        processes = self.processes_per_node or gpus_per_node
        fewest = {2: "two processes", 3: "three processes"}[kind.fewest_devices]
        require(
            processes is not None and processes * nodes >= kind.fewest_devices,
            f"strategy={self.name.name} needs {fewest} or more: set resources.gpus_per_node, "
            "or strategy.processes_per_node where there is no GPU",
        )
        require(
            not gpus_per_node or processes == gpus_per_node,
            f"strategy.processes_per_node={processes} does not match resources.gpus_per_node={gpus_per_node}",
        )
        require(self.devices in (None, 1), f"strategy.devices={self.devices}: strategy={self.name.name} uses one each")
