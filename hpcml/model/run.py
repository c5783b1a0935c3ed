"""What a run is: frozen dataclasses that check themselves and are also the schema of the Hydra configuration.

`hpcml run` composes the files of ``conf/`` and the overrides of the command line into one `Run` (hpcml/config/compose).
The `Run` is written into the run's run.json, read again by the agent on the compute node, and stored flat
("model.name") in the experiment store. Each class is one group or section of the configuration. A value that cannot
work raises `ConfigError` when the object is made, with one line that names the setting, its value and the choices.

`hpcml.model.identity` and `Run.spec_hash` say which settings make two runs the same experiment.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from hpcml.codec import encode, flatten
from hpcml.errors import ConfigError, require
from hpcml.model.choices import Goal, Numerics, Scale
from hpcml.model.cluster import Cluster, Resources, SchedulerName
from hpcml.model.container import Container, ContainerKind
from hpcml.model.hours import Budget
from hpcml.model.identity import identifies
from hpcml.model.launcher import launcher_in
from hpcml.model.metric_goal import goal_by_name
from hpcml.model.metric_sources import AUTO, MetricRule, check_metric_files
from hpcml.model.mig import check_mig
from hpcml.model.precision import RECIPES_OWN, Device, PrecisionName, decide_numerics
from hpcml.model.secrets import masked_settings
from hpcml.model.strategy import Strategy
from hpcml.model.training import Training
from hpcml.units import parse_interval_s, parse_memory_mb
from hpcml.walltime import parse_wait_s, parse_walltime_s

MOST_SEEDS = 2**32
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained: the model, its framework, and the recipe (a training program of hpcml) that trains it.

    `recipe` is the name of a folder in recipes/; None where the user's own program is run (`workload.command`).
    `framework` is torch, tensorflow, jax or numpy; None where the user's own program does not say.
    """

    name: str
    recipe: str | None
    framework: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the recipe, as its recipe.toml describes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The data set that the model is trained on.

    A `path` must exist on the submitting machine before anything is submitted; None means that the data comes inside a
    Python package. Raises `ConfigError` where the path is missing, or given for data that is read from a package.
    """

    name: str
    path: str | None = None
    needs_path: bool = False  # True: this data ships with nothing
    ships_with: str | None = None  # the package that has it inside
    holdout: float = 0.2  # the share of samples kept for validation, where the data set has no split of its own

    def __post_init__(self) -> None:
        require(0.0 < self.holdout < 1.0, f"data.holdout={self.holdout} must lie between 0 and 1")
        has_path = self.path is not None
        require(has_path or not self.needs_path, f"data={self.name} ships with nothing: set data.path=/where/it/is")
        require(
            not has_path or self.ships_with is None,
            f"data.path={self.path}: data={self.name} is read from {self.ships_with}, not from a path",
        )


class OnMismatch(Enum):
    """What happens to a run when the probe at its start measures another precision than was requested."""

    fail = "fail"
    warn = "warn"


class Observe(Enum):
    """Whether a program's products are observed: where it asks for its precision, even where it does not, or never."""

    auto = "auto"
    always = "always"
    never = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The arithmetic that was requested; what the device really does is measured by a probe at the start."""

    name: PrecisionName
    numerics: Numerics = Numerics.auto
    rounding: str = "rna"  # of emulated TF32: nearest, ties away, is what PTX's cvt.rna.tf32 and CUTLASS do
    loss_scaling: bool = True  # GradScaler; only the FP16 arms use one
    on_mismatch: OnMismatch = OnMismatch.fail  # when a probe at the start shows another precision
    observe: Observe = Observe.auto  # whether what the program multiplies is recorded

    def __post_init__(self) -> None:
        require(self.rounding in ("rna", "rne", "rz"), f"precision.rounding={self.rounding}: choose rna, rne or rz")


class LayoutName(Enum):
    """The order of an image tensor's axes in memory."""

    nchw = "nchw"
    nhwc = "nhwc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The memory format; nhwc is torch's channels_last."""

    name: LayoutName


DEFAULT_METRIC = "val_accuracy"  # the metric of runs of which nobody chose one


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The metric that runs are compared by.

    The margin (the largest difference that does not matter) is fixed here, before any result is known, and is stored
    with each run, so that a verdict of equivalence cannot be fitted to the results afterwards.
    """

    metric: str = DEFAULT_METRIC
    goal: Goal | None = None  # that of the metric's name, if it tells one
    margin: float | None = None  # in the metric's unit: a difference below it does not matter
    margins: dict[str, float] = field(default_factory=dict)  # of other metrics, by name
    target: float | None = None  # a value of the metric: how long, and how much energy, a run needs to reach it
    scale: Scale = Scale.linear
    scale_at: float | None = None  # where on the logarithmic scale the margin is meant: a usual value of the metric

    def __post_init__(self) -> None:
        margins = {"margin": self.margin, **{f"margins.{name}": margin for name, margin in self.margins.items()}}
        for name, margin in margins.items():
            fits = margin is None or (margin > 0 and math.isfinite(margin))  # below infinity each difference lies
            require(fits, f"objective.{name}={margin} must be positive, and finite")
        require(self.target is None or math.isfinite(self.target), f"objective.target={self.target} must be a number")
        if self.way is None:
            unclear = f"the name {self.metric} does not tell which way is better: say objective.goal=max or min"
            require(self.target is None, f"objective.target={self.target}: {unclear}")
            require(self.scale is Scale.linear, f"objective.scale={self.scale.name}: {unclear}")
        self._check_scale()

    @property
    def way(self) -> Goal | None:
        """The goal, or else that of the metric's name; None: which way it is better is not known."""
        return self.goal or goal_by_name(self.metric)

    def _check_scale(self) -> None:
        if self.scale is Scale.linear:
            return
        at, asked = self.scale_at, f"objective.scale={self.scale.name}"
        require(
            at is not None, f"{asked} needs objective.scale_at: the value of {self.metric} where the margin is meant"
        )
        if at is None:
            return
        require(0 < at < math.inf, f"objective.scale_at={at} must be positive, and finite, for {asked}")
        worse = at + (self.margin or 0) * (1 if self.way is Goal.min else -1)
        require(worse > 0, f"objective.margin={self.margin} from objective.scale_at={at} leaves the {asked} scale")


class Launcher(Enum):
    """What starts the ranks of ``strategy=mpi``, and of ``strategy=horovod`` where it is not `auto`."""

    auto = "auto"  # the site's; for Horovod hpcml itself
    srun = "srun"
    mpirun = "mpirun"
    mpiexec = "mpiexec"
    pbsdsh = "pbsdsh"  # Open MPI's mpirun, which reaches other nodes of PBS by pbsdsh
    none = "none"  # the user's own command, which is started once, on the first node


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The program that is started: the recipe of the model, or the command line of the user."""

    command: str | None = None  # its words as a shell reads them, which there is none of
    args: dict[str, str] | None = (
        None  # for {name} in the command, beside the run's own; None: it was no word behind --
    )
    cwd: str | None = None  # where the command starts; None: where `hpcml run` was typed
    env: dict[str, str] = field(default_factory=dict)
    metrics: list[MetricRule] = field(default_factory=list)
    metrics_from: list[str] = field(default_factory=lambda: [AUTO])  # kinds of files, paths with * and ?; [] for none
    launcher: Launcher = Launcher.auto
    stop_grace: str = "30s"  # between the signal that asks a workload to stop and SIGKILL

    def __post_init__(self) -> None:
        parse_wait_s(self.stop_grace, field="workload.stop_grace")
        for name in self.env:
            require(re.fullmatch(r"[A-Za-z_]\w*", name) is not None, f"workload.env key {name!r} is no variable name")
        for word in self.metrics_from:
            check_metric_files(word)

    @property
    def own_launcher(self) -> str | None:
        """What the user's own command starts the processes of a training with, as torchrun; None: nothing known."""
        return launcher_in(self.command or "")

    @property
    def stop_grace_s(self) -> int:
        """The time between the signal to stop and SIGKILL, in seconds."""
        return parse_wait_s(self.stop_grace, field="workload.stop_grace")


class Snapshot(Enum):
    """Whether the user's code is copied at submission, so that later edits do not change a waiting job."""

    copy = "copy"  # the working tree, by the rules of hpcml/commands/submit/snapshot
    none = "none"  # nothing: the job runs what lies there when it starts


class Notify(Enum):
    """When the webhook is called: after each run, or once after the last run of a submission."""

    never = "never"
    run = "run"
    sweep = "sweep"


# Names of what begins empty in each run, where git ignores it (without git: folders); a slash is for folders alone.
_FRESH = (
    *("out/", "out[-_]*/", "output*/", "results*/", "runs/", "multirun/", "log/", "logs/", "*_logs/", "tensorboard/"),
    *("wandb/", "mlruns*", "mlartifacts/", "mlflow.db", "checkpoint*", "ckpt*", "saved_models/", "tmp/", ".*/"),
)
# Names of data, which a link leads to: without git, and beside the project.
_LINKED = ("data/", "data[-_.]*/", "*[-_.]data/", "dataset*/", "input/", "inputs/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How runs are distributed over jobs, and what is done about runs that the cluster ended early."""

    pack: str = "none"  # none | all | settings in which the runs of one job may differ: precision,seed
    repeats: int = 1  # how often each run is done, interleaved with the others
    snapshot: Snapshot = Snapshot.copy
    snapshot_mib: int = 256  # the most that is copied of the code
    ignored_mib: int = 64  # the most that is copied of files which git ignores: larger ones are links
    fresh: list[str] = field(default_factory=lambda: list(_FRESH))
    linked: list[str] = field(default_factory=lambda: list(_LINKED))
    notice: str = "2m"  # so long before the end of the walltime, the workload is asked to write a checkpoint
    max_requeues: int = 3  # how often a run that stopped at a checkpoint is put back into the queue
    budget: str | None = None  # the most that all runs of the experiment may take: 200gpuh or 50nodeh
    retry: int = 0  # automatic retries after a failure of the cluster, by `hpcml sync`
    preflight: bool = True  # the scheduler is asked before the submission whether it would take the jobs
    notify: Notify = Notify.never
    webhook_file: str | None = None  # a private file with the URL, which is a secret and stays out of run.json

    def __post_init__(self) -> None:
        parse_wait_s(self.notice, field="schedule.notice")
        if self.budget is not None:
            Budget.parse(self.budget, field="schedule.budget")
        require(self.repeats >= 1, f"schedule.repeats={self.repeats} must be at least 1")
        for name in ("max_requeues", "retry", "snapshot_mib", "ignored_mib"):
            value = getattr(self, name)
            require(value >= 0, f"schedule.{name}={value} must not be negative")
        for name in ("fresh", "linked"):
            for pattern in getattr(self, name):
                is_name = bool(pattern.removesuffix("/")) and "/" not in pattern[:-1]
                require(is_name, f"schedule.{name}: {pattern!r} is no name of a file or folder, with * and ?")
        require(bool(self.pack_factors) or self.pack in ("none", "all"), f"schedule.pack={self.pack!r} names nothing")
        require(
            self.notify is Notify.never or self.webhook_file is not None,
            f"schedule.notify={self.notify.name} needs schedule.webhook_file=FILE with the URL in it",
        )

    @property
    def notice_s(self) -> int:
        """The time between the request for a checkpoint and the end of the walltime, in seconds."""
        return parse_wait_s(self.notice, field="schedule.notice")

    @property
    def pack_factors(self) -> tuple[str, ...]:
        """The settings in which the runs of one job may differ; empty where `pack` is none or all.

        >>> Schedule(pack="precision,seed").pack_factors
        ('precision', 'seed')
        """
        words = () if self.pack in ("none", "all") else tuple(word.strip() for word in self.pack.split(","))
        return tuple(word for word in words if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What is measured while the program runs, by a separate process (the sampler) on each node."""

    enabled: bool = True
    interval: str = "1s"  # between samples: NVML's calls take a lock that the program needs, too
    network: bool = False  # traffic of the node's network cards and InfiniBand ports
    pcie: bool = False  # traffic of the GPUs' PCIe and NVLink
    samplers: list[str] = field(default_factory=list)  # of packages: what they read becomes metrics of the run

    def __post_init__(self) -> None:
        seconds = parse_interval_s(self.interval, field="telemetry.interval")
        require(0.1 <= seconds <= 600, f"telemetry.interval={self.interval} must lie between 100ms and 10m")

    @property
    def interval_s(self) -> float:
        """The time between two samples, in seconds."""
        return parse_interval_s(self.interval, field="telemetry.interval")


class ProfileTool(Enum):
    """The profiler around a run's program."""

    none = "none"
    nsys = "nsys"  # Nsight Systems
    ncu = "ncu"  # Nsight Compute
    torch = "torch"  # of PyTorch, in recipes


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """Which processes of a run are profiled, and which of their steps; what is found lies in the run's ``profile/``."""

    tool: ProfileTool = ProfileTool.none
    ranks: list[int] = field(default_factory=lambda: [0])
    first_step: int | None = None  # None: the whole program; of torch's profiler the second step
    steps: int = 5  # how many, from the first on
    options: list[str] = field(default_factory=list)  # of nsys profile, or of ncu

    def __post_init__(self) -> None:
        require(bool(self.ranks) and min(self.ranks) >= 0, f"profile.ranks={self.ranks}: name processes, from 0 on")
        require(self.steps >= 1, f"profile.steps={self.steps} must be at least 1")
        require(
            self.first_step is None or self.first_step >= 1, f"profile.first_step={self.first_step}: the first is 1"
        )
        is_nvidias = self.tool in (ProfileTool.nsys, ProfileTool.ncu)
        require(is_nvidias or not self.options, f"profile.options are those of nsys and ncu, not of {self.tool.name}")
        require(
            not self.options or self.options[0].startswith("-"),
            f"profile.options: {(self.options or [''])[0]!r} is no option: the first must begin with a dash",
        )

    def check(self, *, framework: str | None, is_own: bool, steps: int) -> None:
        """Raise `ConfigError` where the program cannot be profiled so.

        *is_own*: it is no recipe of hpcml's; else it makes *steps* steps.
        """
        if self.tool is ProfileTool.none:
            return
        is_of_steps = self.tool is ProfileTool.torch or self.first_step is not None
        word = "profile=torch" if self.tool is ProfileTool.torch else f"profile.first_step={self.first_step}"
        require(
            not is_of_steps or (framework == "torch" and not is_own),
            f"{word}: hpcml knows the steps of its recipes for torch alone: leave it to the program, or profile all "
            "of it by profile=nsys",
        )
        first = 2 if self.first_step is None else self.first_step
        require(
            not is_of_steps or first <= steps,
            f"profile.first_step={first}: the run has training.steps={steps}, and nothing would be profiled",
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training in one precision with one seed on one cluster: everything that `hpcml run` can set.

    A `Run` that exists is valid: the parts check themselves, and `__post_init__` checks what needs several parts
    (strategy and resources, resources and the limits of the cluster, precision and device). Raises `ConfigError`
    otherwise. On ``cluster=local`` the device is known only at run time, so that precision and device are checked by
    planning instead.
    """

    model: Model
    data: Data
    precision: Precision
    strategy: Strategy
    layout: Layout
    container: Container
    cluster: Cluster
    resources: Resources
    training: Training
    objective: Objective
    workload: Workload
    schedule: Schedule = field(default_factory=Schedule)
    telemetry: Telemetry = field(default_factory=Telemetry)
    profile: Profiling = field(default_factory=Profiling)
    seed: int = 0
    experiment: str = "default"
    name: str | None = None
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require(0 <= self.seed < MOST_SEEDS, f"seed={self.seed} must lie in 0..2^32-1")
        require(
            _SAFE_NAME.fullmatch(self.experiment) is not None,
            f"experiment={self.experiment!r} names a directory: use letters, digits and . _ + - (64 at most)",
        )
        require(
            self.model.recipe is not None or self.workload.command is not None,
            f"model={self.model.name} has no recipe: write your program behind --, as in hpcml run -- python train.py",
        )
        require(
            self.precision.name is not PrecisionName.own or self.workload.command is not None,
            f"precision=own leaves the arithmetic to a program of your own: model={self.model.name} needs one, e.g. "
            f"precision={RECIPES_OWN.name}",
        )
        self.strategy.check(nodes=self.resources.nodes, gpus_per_node=self.resources.gpus_per_node)
        self._check_site()
        self._check_slice()
        self.profile.check(
            framework=self.model.framework, is_own=self.workload.command is not None, steps=self.training.steps
        )
        if self.cluster.scheduler is not SchedulerName.local:
            decide_numerics(self.precision.name, self.precision.numerics, self.profile_device(), self.model.framework)

    def _check_site(self) -> None:
        site, wanted = self.cluster, self.resources
        if said := wanted.pbs.said():
            require(
                site.scheduler is SchedulerName.pbs,
                f"resources.pbs.{said[0]} is a word of PBS: cluster={site.name} takes jobs by {site.scheduler.name}",
            )
        most = None if wanted.mig is not None else site.gpus_per_node  # of slices there are more: `_check_slice`
        if most is not None and (wanted.gpus_per_node or 0) > most:
            raise ConfigError(
                f"resources.gpus_per_node={wanted.gpus_per_node}: cluster={site.name} has {site.gpus_per_node} a node"
            )
        if site.max_walltime and wanted.walltime:
            limit_s = parse_walltime_s(site.max_walltime, field="cluster.max_walltime")
            require(
                parse_walltime_s(wanted.walltime) <= limit_s,
                f"resources.walltime={wanted.walltime}: cluster={site.name} allows {site.max_walltime}",
            )
        cores = (wanted.cpus_per_task or 1) * (self.strategy.processes_per_node or wanted.gpus_per_node or 1)
        require(
            site.cores_per_node is None or cores <= site.cores_per_node,
            f"resources.cpus_per_task={wanted.cpus_per_task}: {cores} cores of a node of cluster={site.name}, "
            f"which has {site.cores_per_node}",
        )
        if site.mem_per_node and wanted.mem:
            limit_mb = parse_memory_mb(site.mem_per_node, field="cluster.mem_per_node")
            require(
                parse_memory_mb(wanted.mem) <= limit_mb,
                f"resources.mem={wanted.mem}: a node of cluster={site.name} has {site.mem_per_node}",
            )
        require(
            site.scheduler is not SchedulerName.local or wanted.nodes == 1,
            f"resources.nodes={wanted.nodes}: cluster={site.name} is this one machine",
        )

    def _check_slice(self) -> None:
        """Raise `ConfigError` for a MIG slice that the site has not, and for more than a program can use of slices."""
        site, wanted = self.cluster, self.resources
        if wanted.mig is None:
            return
        require(
            site.scheduler is not SchedulerName.local,
            f"resources.mig={wanted.mig} is asked of a scheduler: on this machine set CUDA_VISIBLE_DEVICES to the UUID "
            "of a slice (nvidia-smi -L) before hpcml run",
        )
        check_mig(
            wanted.mig,
            cluster=site.name,
            gpu=site.gpu_model,
            offered=site.mig_profiles,
            is_asked_for=site.mig_type is not None,
        )
        gpus = 1 if wanted.gpus_per_node is None else wanted.gpus_per_node
        require(gpus > 0, f"resources.mig={wanted.mig} with resources.gpus_per_node=0: leave one of them out")
        require(
            gpus == 1 and wanted.nodes == 1,
            f"resources.mig={wanted.mig} with {gpus} slice(s) on {wanted.nodes} node(s): a process sees one (CUDA), "
            "and NCCL joins none (no P2P between slices): use one slice, or whole GPUs",
        )

    def profile_device(self) -> Device:
        """The device that the cluster's profile promises to this run: a CPU without GPUs, else the site's GPU.

        `compute_capability` is None where the profile does not give it.
        """
        gpus = self.resources.gpus_per_node
        if gpus is None:
            gpus = min(1, self.cluster.gpus_per_node or 0)
        if gpus == 0:
            return Device(kind="cpu", name=f"a CPU node of {self.cluster.name}")
        name = self.cluster.gpu_model or f"a GPU of {self.cluster.name}"
        name = name if self.resources.mig is None else f"{name} MIG {self.resources.mig}"
        return Device(kind="cuda", name=name, compute_capability=self.cluster.compute_capability)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """All settings under dotted keys ("model.name"), as JSON values without secrets; nobody may change them."""
        return masked_settings(flatten(encode(self)))

    @cached_property
    def spec_hash(self) -> str:
        """The identity of the experiment: 16 hex digits of SHA-256 over all settings that `identifies` names.

        Settings that were added to hpcml later count only where they differ from their default, so that the hashes of
        recorded runs stay valid. The seed counts: repeated runs with one seed share a hash, runs with different seeds
        do not.
        """
        relevant = {key: value for key, value in flatten(encode(self)).items() if self._counts(key)}
        canonical = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def _counts(self, key: str) -> bool:
        """Whether the setting *key* is part of the experiment's identity."""
        if self.container.kind is ContainerKind.none and key.startswith("container."):
            return key == "container.name"  # the rest says nothing then
        if self.profile.tool is ProfileTool.none and key.startswith("profile."):
            return False
        return identifies(key)
