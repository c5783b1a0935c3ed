"""How several devices share one training: the strategies, what each needs, and the options of each.

`KINDS` is the table of the strategies: frameworks, processes, least number of devices. `Strategy` is the group
``strategy`` of the configuration; `Strategy.check` compares it with the resources of a run. Users choose with
``strategy=ddp strategy.bucket_cap_mb=50``. docs/strategies.md describes each strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hpcml.errors import require


class StrategyName(Enum):
    """The strategies, by their names on the command line."""

    single = "single"
    cpu_threads = "cpu_threads"
    ddp = "ddp"
    fsdp = "fsdp"
    pipeline = "pipeline"
    model_parallel = "model_parallel"
    mirrored = "mirrored"
    multi_worker_mirrored = "multi_worker_mirrored"
    central_storage = "central_storage"
    horovod = "horovod"
    mpi = "mpi"


class Processes(Enum):
    """How many processes a strategy starts."""

    one = "one process"
    per_node = "one process on each node"
    per_device = "one process for each GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a strategy needs and how it works: one row of `KINDS`."""

    frameworks: tuple[str, ...]
    processes: Processes
    fewest_devices: int  # over all nodes; without a GPU a process counts as one, or what `strategy.devices` says
    on_gpus: bool = True  # False: it may have no GPU at all
    oldest: str | None = None  # version of the framework that has what hpcml_train's part for it imports


KINDS: Mapping[StrategyName, Kind] = {
    StrategyName.single: Kind(
        frameworks=("torch", "tensorflow", "jax", "numpy"), processes=Processes.one, fewest_devices=1
    ),
    StrategyName.cpu_threads: Kind(  # not jax: XLA takes as many threads as it likes
        frameworks=("torch", "tensorflow", "numpy"), processes=Processes.one, fewest_devices=1, on_gpus=False
    ),
    StrategyName.ddp: Kind(frameworks=("torch",), processes=Processes.per_device, fewest_devices=2),
    StrategyName.fsdp: Kind(frameworks=("torch",), processes=Processes.per_device, fewest_devices=2, oldest="2.6"),
    StrategyName.pipeline: Kind(frameworks=("torch",), processes=Processes.per_device, fewest_devices=2, oldest="2.5"),
    StrategyName.model_parallel: Kind(frameworks=("torch",), processes=Processes.one, fewest_devices=2),
    StrategyName.mirrored: Kind(frameworks=("tensorflow",), processes=Processes.one, fewest_devices=2),
    StrategyName.multi_worker_mirrored: Kind(
        frameworks=("tensorflow",), processes=Processes.per_node, fewest_devices=2
    ),
    StrategyName.central_storage: Kind(frameworks=("tensorflow",), processes=Processes.one, fewest_devices=2),
    StrategyName.horovod: Kind(frameworks=("torch", "tensorflow"), processes=Processes.per_device, fewest_devices=2),
    StrategyName.mpi: Kind(frameworks=("torch", "tensorflow"), processes=Processes.per_device, fewest_devices=2),
}


_MOST_MB = 4096
_SCHEDULES = ("gpipe", "1f1b")
_ALGORITHMS = {  # as NCCL_ALGO has them (docs.nvidia.com, NCCL environment variables)
    "ring": "Ring",
    "tree": "Tree",
    "collnet_direct": "CollnetDirect",  # by the switches of the network (SHARP)
    "collnet_chain": "CollnetChain",
    "nvls": "NVLS",  # by the NVSwitches of a node
    "nvls_tree": "NVLSTree",
}
ALL_REDUCE_ONLY = ("tree", "collnet_chain", "nvls_tree")
NVLS_NEEDS = (9, 0)  # NVLink SHARP is of NVSwitch 3, which came with Hopper
_PROTOCOLS = {"ll": "LL", "simple": "Simple"}
_OWNERS = {
    "inter_op_threads": StrategyName.cpu_threads,
    "bucket_cap_mb": StrategyName.ddp,
    "microbatches": StrategyName.pipeline,
    "schedule": StrategyName.pipeline,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """How NCCL communicates; None leaves the choice to NCCL, which decides by message size and topology.

    Raises `ConfigError` for other values than those listed; LL128 is not offered, since it is not safe on all hardware.
    """

    algo: str | None = None  # ring | tree | collnet_direct | collnet_chain | nvls | nvls_tree
    proto: str | None = None  # ll | simple

    def __post_init__(self) -> None:
        require(
            self.algo in (None, *_ALGORITHMS), f"strategy.nccl.algo={self.algo}: choose one of {', '.join(_ALGORITHMS)}"
        )
        # LL128 corrupts data on hardware that cannot store 128 bytes at once (docs.nvidia.com, NCCL_PROTO).
        require(
            self.proto in (None, *_PROTOCOLS), f"strategy.nccl.proto={self.proto}: choose {' or '.join(_PROTOCOLS)}"
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables for NCCL (docs.nvidia.com, NCCL environment variables).

        >>> Nccl(algo="ring", proto="ll").environment()
        {'NCCL_ALGO': 'Ring', 'NCCL_PROTO': 'LL'}
        """
        found = {}
        if self.algo is not None:
            found["NCCL_ALGO"] = _ALGORITHMS[self.algo]
            if self.algo.startswith("collnet"):
                found["NCCL_COLLNET_ENABLE"] = "1"  # off by default
            if self.algo.startswith("nvls"):
                found["NCCL_NVLS_ENABLE"] = "1"
        if self.proto is not None:
            found["NCCL_PROTO"] = _PROTOCOLS[self.proto]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Horovod:
    """How Horovod sums gradients; None leaves the choice to Horovod.

    The variables are those of Horovod's documentation (0.28).
    """

    hierarchical: bool | None = None  # first within each node, then among nodes
    fusion_threshold_mb: float | None = None  # MiB of gradients that are sent together; 0: each by itself

    def __post_init__(self) -> None:
        most = self.fusion_threshold_mb
        require(
            most is None or 0 <= most <= _MOST_MB,
            f"strategy.horovod.fusion_threshold_mb={most} must lie in 0..{_MOST_MB}",
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables for Horovod; the fusion threshold is in bytes there, and in MiB here.

        >>> Horovod(fusion_threshold_mb=64).environment()
        {'HOROVOD_FUSION_THRESHOLD': '67108864'}
        """
        found = {}
        if self.hierarchical is not None:
            found["HOROVOD_HIERARCHICAL_ALLREDUCE"] = str(int(self.hierarchical))
        if self.fusion_threshold_mb is not None:
            found["HOROVOD_FUSION_THRESHOLD"] = str(round(self.fusion_threshold_mb * 2**20))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The strategy of a run and its options. `processes_per_node` None means one process for each GPU.

    An option that belongs to another strategy raises `ConfigError`, so that none is ignored in silence.
    """

    name: StrategyName
    processes_per_node: int | None = None
    devices: int | None = None  # that a process drives: None its GPUs; where there is none, logical devices of the CPU
    inter_op_threads: int | None = None  # cpu_threads: operations that run at once, each on resources.cpus_per_task
    bucket_cap_mb: float | None = None  # ddp: MiB of gradients that are sent together; None: torch's 25
    microbatches: int | None = None  # pipeline: the parts of a batch that are in it at once
    schedule: str | None = None  # pipeline: gpipe | 1f1b
    nccl: Nccl = field(default_factory=Nccl)  # ddp and fsdp on GPUs
    horovod: Horovod = field(default_factory=Horovod)

    def __post_init__(self) -> None:
        for name in ("processes_per_node", "devices", "inter_op_threads", "microbatches"):
            count = getattr(self, name)
            require(count is None or count >= 1, f"strategy.{name}={count} must be at least 1")
        bucket = self.bucket_cap_mb
        require(bucket is None or 0 < bucket <= _MOST_MB, f"strategy.bucket_cap_mb={bucket} must lie in 0..{_MOST_MB}")
        known = self.schedule in (None, *_SCHEDULES)
        require(known, f"strategy.schedule={self.schedule}: choose {' or '.join(_SCHEDULES)}")
        for option, owner in _OWNERS.items():
            value = getattr(self, option)
            require(
                value is None or self.name is owner,
                f"strategy.{option}={value} means something with strategy={owner.name} only, not {self.name.name}",
            )
        talks = self.name in (StrategyName.ddp, StrategyName.fsdp)
        require(talks or self.nccl == Nccl(), f"strategy.nccl is for ddp and fsdp: strategy={self.name.name}")
        require(
            self.name is StrategyName.horovod or self.horovod == Horovod(),
            f"strategy.horovod is for strategy=horovod, not {self.name.name}",
        )
        require(
            self.name is not StrategyName.fsdp or self.nccl.algo not in ALL_REDUCE_ONLY,
            f"strategy.nccl.algo={self.nccl.algo}: only all-reduce has it, and strategy=fsdp gathers and "
            "reduce-scatters",
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables that pass the options on to NCCL and Horovod."""
        return {**self.nccl.environment(), **self.horovod.environment()}

    def check(self, *, nodes: int, gpus_per_node: int | None) -> None:
        """Raise `ConfigError` where the strategy cannot run on *nodes* nodes with *gpus_per_node* GPUs each.

        *gpus_per_node* is None where it was not given. For example, ``strategy=ddp`` needs two processes or more over
        all nodes.
        """
        kind = KINDS[self.name]
        if kind.processes is Processes.per_device:
            self._check_processes(kind, nodes, gpus_per_node)
            return
        asked = f"nodes={nodes}, gpus_per_node={gpus_per_node}, processes_per_node={self.processes_per_node}"
        if kind.fewest_devices == 1:
            fits = nodes == 1 and (gpus_per_node or 0) <= kind.on_gpus and self.processes_per_node in (None, 1)
            where = "on at most one GPU" if kind.on_gpus else "without a GPU: set resources.gpus_per_node=0"
            other = " (use strategy=ddp, or mpi for a program that calls MPI_Init)" if kind.on_gpus else ""
            require(fits, f"strategy={self.name.name} is one process {where}: {asked}{other}")
            require(self.devices in (None, 1), f"strategy.devices={self.devices}: strategy={self.name.name} uses one")
            return
        processes = self.processes_per_node or 1
        # without GPUs each worker has one replica, so that a node may have several workers
        on_cpus = kind.processes is Processes.per_node and not gpus_per_node
        require(
            processes == 1 or on_cpus,
            f"strategy={self.name.name} is {kind.processes.value}: processes_per_node={self.processes_per_node}",
        )
        require(
            self.devices in (None, 1) or not on_cpus,
            f"strategy.devices={self.devices}: strategy={self.name.name} uses one each where there is no GPU "
            "(set strategy.processes_per_node)",
        )
        require(
            nodes == 1 or kind.processes is Processes.per_node,
            f"strategy={self.name.name} is {kind.processes.value}: resources.nodes={nodes} (use 1)",
        )
        require(
            not gpus_per_node or self.devices in (None, gpus_per_node),
            f"strategy.devices={self.devices} does not match resources.gpus_per_node={gpus_per_node}",
        )
        devices = (gpus_per_node or self.devices or processes) * nodes
        option = "processes_per_node" if on_cpus else "devices"
        require(
            devices >= kind.fewest_devices,
            f"strategy={self.name.name} needs {kind.fewest_devices} devices or more: set resources.gpus_per_node, "
            f"or strategy.{option} where there is no GPU",
        )

    def _check_processes(self, kind: Kind, nodes: int, gpus_per_node: int | None) -> None:
        processes = self.processes_per_node or gpus_per_node
        require(
            processes is not None and processes * nodes >= kind.fewest_devices,
            f"strategy={self.name.name} needs two processes or more: set resources.gpus_per_node, "
            "or strategy.processes_per_node where there is no GPU",
        )
        require(
            not gpus_per_node or processes == gpus_per_node,
            f"strategy.processes_per_node={processes} does not match resources.gpus_per_node={gpus_per_node}",
        )
        require(self.devices in (None, 1), f"strategy.devices={self.devices}: strategy={self.name.name} uses one each")
