"""What a cluster offers and what a job asks of it: `Cluster`, its `Queue`s, and `Resources` in Slurm's words.

A `Cluster` is a profile from ``conf/cluster``; `hpcml cluster list` lists them. The job scripts of hpcml/schedulers are
rendered from both classes. Walltimes and memory sizes are text as people write it ("2h30m", "64G"); hpcml/units reads
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import Enum, EnumType
from typing import Any

from hpcml.errors import ConfigError, require
from hpcml.model.container import RUNTIMES
from hpcml.model.pbs import PbsRequest, PbsSite
from hpcml.units import parse_memory_mb
from hpcml.walltime import parse_walltime_s

MPI_LAUNCHERS = ("srun", "mpirun", "mpiexec", "pbsdsh")  # that start the ranks of one MPI program
_SCHEDULER = re.compile(r"[a-z][a-z0-9_-]{0,31}")
LAUNCHERS = ("pbs_tmrsh", "ssh", "mpiexec", "pbsdsh")  # as they are looked for on a node of PBS


class _Open(EnumType):
    """What lets an enumeration be asked for a name that it does not list."""

    def __getitem__(cls, name: str) -> Any:  # noqa: ANN401
        try:
            return super().__getitem__(name)
        except KeyError:
            try:
                return cls(name)
            except ValueError:
                raise KeyError(name) from None


class SchedulerName(Enum, metaclass=_Open):
    """The program that starts jobs on a cluster; local means that hpcml starts them on this machine itself.

    Packages add others (`hpcml.schedulers.registry`), and runs that went to one are read where it is not installed: so
    any word is a name, and each is one object, as with the members of `enum.Flag`. Whether there is such a scheduler
    is `registry.backend_of`'s to say.

    >>> SchedulerName["tsp"] is SchedulerName("tsp"), SchedulerName["pbs"] is SchedulerName.pbs, list(SchedulerName)[0]
    (True, True, <SchedulerName.local: 'local'>)
    """

    local = "local"
    slurm = "slurm"
    pbs = "pbs"
    lsf = "lsf"
    flux = "flux"

    @classmethod
    def _missing_(cls, value: object) -> SchedulerName | None:
        if not isinstance(value, str) or _SCHEDULER.fullmatch(value) is None:
            return None
        other = object.__new__(cls)
        other._name_, other._value_ = value, value
        found = cls._value2member_map_.setdefault(value, other)
        assert isinstance(found, cls)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The limits of a Slurm partition or PBS queue, as the site documents them; None means not known."""

    max_walltime: str | None = None
    max_gpus: int | None = None  # of one job
    gpus: bool | None = None  # whether its nodes have GPUs
    min_walltime: str | None = None
    min_nodes: int | None = None  # of one job
    max_nodes: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lsf:
    """How a site's LSF wants to be spoken to, which differs from site to site; None and the defaults: LSF's own way.

    Raises `ConfigError` for a word that is none of those listed here.
    """

    submit: str = "stdin"  # stdin: bsub < job.sh; argument: bsub job.sh, where the site reads #BSUB lines of that
    account: str = "-P"  # the flag of resources.account: -P project | -G user group
    nodes: str = "span"  # span: -n SLOTS -R span[ptile=..]; nnodes: -nnodes, where whole nodes are given (CSM)
    alloc_flags: str | None = None  # of -nnodes: "gpumps smt1"
    memory: str = "per_job"  # what rusage[mem=] counts on a node: per_job | per_slot
    launcher: str = "blaunch"  # what starts the agents: blaunch | jsrun, where a job's script is on no compute node

    def __post_init__(self) -> None:
        for name, known in _OF_LSF.items():
            value = getattr(self, name)
            require(value in known, f"cluster.lsf.{name}={value}: choose {' or '.join(known)}")


_OF_LSF = {
    "submit": ("stdin", "argument"),
    "account": ("-P", "-G"),
    "nodes": ("span", "nnodes"),
    "memory": ("per_job", "per_slot"),
    "launcher": ("blaunch", "jsrun"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """What a site's sbatch takes; the default: all that hpcml says.

    Raises `ConfigError` for an option that no job can do without, as its name.
    """

    refuses: list[str] = field(default_factory=list)  # options that are not said: some of _SPARED

    def __post_init__(self) -> None:
        for option in self.refuses:
            require(
                option in _SPARED,
                f"cluster.slurm.refuses: {option!r} is none that can be left out: choose {', '.join(_SPARED)}",
            )


_SPARED = ("ntasks-per-node", "cpus-per-task", "mem", "signal", "requeue")


_GPU_VENDORS = ("nvidia", "amd", "intel")
_STATUSES = ("active", "decommissioned", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A machine and its limits; a field that is None is not known, or is found out at run time on `local`.

    Templates may hold {nodes} {gpus} {gpus_total} {gpu_type} {cores}: GPUs and cores are those of one node. Raises
    `ConfigError` for counts below 1, limits that are no walltime or size, an unknown vendor or launcher, a CO2 factor
    without a source, or a malformed compute capability.
    """

    name: str
    scheduler: SchedulerName
    status: str = "active"  # active | decommissioned | unknown
    site: str | None = None
    gpu_vendor: str | None = None  # nvidia | amd | intel
    gpu_model: str | None = None
    gpu_type: str | None = None  # the scheduler's name for the GPU: a100, v100-32
    gpu_compute_capability: str | None = None  # as NVIDIA writes it: "8.0"
    cpu_arch: str | None = None  # as uname -m says it, where it is not x86_64: ppc64le, aarch64
    gpus_per_node: int | None = None
    cores_per_node: int | None = None
    cores_per_gpu: int | None = None
    mem_per_node: str | None = None
    whole_nodes: bool = False  # the site gives out whole nodes only
    # Slurm: "--gpus-per-node={gpus}"; PBS: what is added to the chunk, ":ngpus={gpus}"; "": nothing, whole nodes come
    gpu_request: str | None = None
    mig_type: str | None = None  # the scheduler's name for a MIG slice, as {gpu_type}: "a100_{mig}"; None: no slices
    mig_profiles: list[str] = field(default_factory=list)  # that the site has; none: all that the GPU can have
    gpu_queue: str | None = None  # where a job that asks for GPUs goes unless a queue is given
    directives: list[str] = field(default_factory=list)  # templates that every job of the site needs besides
    queues: dict[str, Queue] = field(default_factory=dict)
    account_required: bool = False
    account_pattern: str | None = None  # a regular expression, inferred from examples: a mismatch is only warned about
    max_walltime: str | None = None
    max_array_size: int | None = None
    max_parallel: int | None = None  # local only: runs at once; None: as many as cores and GPUs allow
    rendezvous_suffix: str = ""  # what turns a node's name into that of its fast network: MASTER_ADDR is node1i for i
    launcher: str | None = None  # PBS: what reaches a job's other nodes; None: the first of LAUNCHERS there
    mpi: str | None = (
        None  # Slurm: what ``srun --mpi=`` is told, one of those that `srun --mpi=list` shows; None: nothing
    )
    mpi_launcher: str | None = None  # the site's only one for MPI programs; None: srun on Slurm, mpirun elsewhere
    slurm: Slurm = field(default_factory=Slurm)  # what a site's sbatch takes
    lsf: Lsf = field(default_factory=Lsf)  # of LSF alone
    pbs: PbsSite = field(default_factory=PbsSite)  # how a PBS site wants its jobs said
    asks_scheduler: bool = False  # what the profile leaves open is asked of the scheduler at submission
    modules: list[str] = field(default_factory=list)  # loaded before every run
    prelude: list[str] = field(default_factory=list)  # shell lines before every run, as the site documents them
    scratch: str | None = None
    container_runtime: str | None = None  # apptainer | singularity | pyxis
    container_module: str | None = None
    ngc_max_release: str | None = None  # newest NGC container release that the site's driver runs: 24.12
    host_driver: str | None = None
    compute_internet: bool | None = None
    proxy: str | None = None
    co2_g_per_kwh: float | None = None  # of the site's electricity; None: not known, and no CO2 is reported
    co2_source: str | None = None  # who says so, and for which year
    notes: list[str] = field(default_factory=list)
    source: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_parallel", "max_array_size", "cores_per_node", "cores_per_gpu"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"cluster.{name}={value} must be at least 1")
        gpus = self.gpus_per_node
        require(gpus is None or gpus >= 0, f"cluster.gpus_per_node={gpus} must not be negative")
        require(
            self.gpu_vendor in (None, *_GPU_VENDORS),
            f"cluster.gpu_vendor={self.gpu_vendor}: choose {', '.join(_GPU_VENDORS)}",
        )
        require(self.status in _STATUSES, f"cluster.status={self.status}: choose {', '.join(_STATUSES)}")
        if self.mem_per_node is not None:
            parse_memory_mb(self.mem_per_node, field="cluster.mem_per_node")
        self._check_walltimes()
        require(
            self.container_runtime in (None, *RUNTIMES),
            f"cluster.container_runtime={self.container_runtime}: choose {', '.join(RUNTIMES)}",
        )
        require(self.launcher in (None, *LAUNCHERS), f"cluster.launcher={self.launcher}: choose {', '.join(LAUNCHERS)}")
        self._check_mpi()
        require(
            self.pbs == PbsSite() or self.scheduler is SchedulerName.pbs,
            f"cluster.pbs is for PBS: cluster={self.name} takes jobs by {self.scheduler.name}",
        )
        require(
            self.slurm == Slurm() or self.scheduler is SchedulerName.slurm,
            f"cluster.slurm is for Slurm: cluster={self.name} takes jobs by {self.scheduler.name}",
        )
        require(
            self.lsf == Lsf() or self.scheduler is SchedulerName.lsf,
            f"cluster.lsf is for LSF: cluster={self.name} takes jobs by {self.scheduler.name}",
        )
        suffix = self.rendezvous_suffix
        require(
            re.fullmatch(r"[A-Za-z0-9-]*", suffix) is not None,
            f"cluster.rendezvous_suffix={suffix!r}: it ends a host's name, so use letters, digits and -",
        )
        try:
            re.compile(self.account_pattern or "")
        except re.error as error:
            raise ConfigError(f"cluster.account_pattern={self.account_pattern!r} is no pattern: {error}") from error
        factor = self.co2_g_per_kwh
        require(factor is None or factor >= 0, f"cluster.co2_g_per_kwh={factor} must not be negative")
        require(
            (factor is None) == (self.co2_source is None),
            "cluster.co2_g_per_kwh and cluster.co2_source: give both, since a factor without a source says nothing",
        )
        self.compute_capability  # noqa: B018 - a malformed one is refused here

    def _check_walltimes(self) -> None:
        limits = {"max_walltime": self.max_walltime}
        for name, queue in self.queues.items():
            limits |= {f"queues.{name}.{key}": getattr(queue, key) for key in ("max_walltime", "min_walltime")}
        for key, limit in limits.items():
            if limit is not None:
                parse_walltime_s(limit, field=f"cluster.{key}")

    def _check_mpi(self) -> None:
        require(
            self.mpi is None or self.scheduler is SchedulerName.slurm,
            f"cluster.mpi={self.mpi} is what srun is told: cluster={self.name} takes jobs by {self.scheduler.name}",
        )
        require(
            self.mpi is None or re.fullmatch(r"[a-z0-9_]+", self.mpi) is not None,
            f"cluster.mpi={self.mpi!r}: write one of the words that `srun --mpi=list` shows, as pmix or pmi2",
        )
        require(
            self.mpi_launcher in (None, *MPI_LAUNCHERS),
            f"cluster.mpi_launcher={self.mpi_launcher}: choose {', '.join(MPI_LAUNCHERS)}",
        )

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The GPU's compute capability as (major, minor), or None where the profile gives none.

        Raises `ConfigError` where it is not written as "8.0" (NVIDIA's notation).
        """
        if self.gpu_compute_capability is None:
            return None
        match = re.fullmatch(r"(\d+)\.(\d+)", self.gpu_compute_capability)
        if match is None:
            raise ConfigError(f"cluster.gpu_compute_capability={self.gpu_compute_capability!r}: write it as '8.0'")
        return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job asks of the scheduler, in Slurm's words (man sbatch); None leaves the choice to the site.

    Raises `ConfigError` for impossible counts, unreadable walltimes and sizes, and any value with a line break, which
    could add directives to the job script.
    """

    account: str | None = None
    partition: str | None = None
    queue: str | None = None  # PBS's word for partition, which it overrides
    qos: str | None = None
    nodes: int = 1
    gpus_per_node: int | None = None
    mig: str | None = None  # a slice of a GPU, by its profile: 1g.5gb
    cpus_per_task: int | None = None  # CPU cores of each process
    mem: str | None = None  # memory of each node: 64G
    walltime: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    exclusive: bool = False
    dependency: str | None = None  # afterok:ID, as Slurm and PBS write it
    mail_user: str | None = None
    mail_type: str | None = None  # Slurm's words: BEGIN,END,FAIL
    array_parallelism: int | None = None  # how many runs of a sweep may run at once
    extra_directives: list[str] = field(default_factory=list)  # anything else, as the scheduler's options: --licenses=x
    pbs: PbsRequest = field(default_factory=PbsRequest)  # PBS alone: what Slurm has no word for

    def __post_init__(self) -> None:
        parallel = self.array_parallelism
        require(parallel is None or parallel >= 1, f"resources.array_parallelism={parallel} must be at least 1")
        words = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "pbs"}
        for name, value in {**words, "extra_directives": "".join(self.extra_directives)}.items():
            require(
                "\n" not in str(value), f"resources.{name} holds a line break: nothing may add lines to a job script"
            )
        require(self.nodes >= 1, f"resources.nodes={self.nodes} must be at least 1")
        gpus, cpus = self.gpus_per_node, self.cpus_per_task
        require(gpus is None or gpus >= 0, f"resources.gpus_per_node={gpus} must not be negative")
        require(cpus is None or cpus >= 1, f"resources.cpus_per_task={cpus} must be at least 1")
        if self.walltime is not None:
            parse_walltime_s(self.walltime)
        if self.mem is not None:
            parse_memory_mb(self.mem)

    @property
    def partition_or_queue(self) -> str | None:
        """The partition under either name: `queue` wins, since profiles preset `partition` alone."""
        return self.queue if self.queue is not None else self.partition

    @property
    def walltime_s(self) -> int | None:
        """The walltime in seconds; None where none was given."""
        return None if self.walltime is None else parse_walltime_s(self.walltime)
