"""The task of a recipe: the settings of the run that recipes obey, read from its configuration and checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcml_client.client import Client
from hpcml_train.errors import RecipeError

_ONE_PROCESS = ("single", "cpu_threads", "model_parallel", "mirrored", "central_storage")
_WHERE = {"model": "name", "layout": "name", "strategy": "name", "data": "name"}  # of what has a name
_OF_TRAINING = (
    *("steps", "batch_size", "learning_rate", "eval_every", "deterministic", "checkpoint_every"),
    *("accumulate", "compile", "cudnn_benchmark"),
)
_OF_STRATEGY = ("inter_op_threads", "bucket_cap_mb", "microbatches", "schedule")


@dataclass(frozen=True)
class Task:
    """The settings that recipes obey. Defaults are hpcml's; model and options are each recipe's own.

    Raises `RecipeError` for a number below 1, a holdout that is no share, and an unknown schedule.
    """

    model: str | None = None
    framework: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # as the recipe's recipe.toml describes them
    data: str | None = None
    data_path: str | None = None
    holdout: float = 0.2
    layout: str = "nchw"
    strategy: str = "single"
    devices: int | None = None  # that a process drives; None: its GPUs
    seed: int = 0
    steps: int = 300
    batch_size: int = 64  # samples of one step of the optimiser, over all processes
    learning_rate: float = 1e-3
    eval_every: int = 50
    deterministic: bool = True
    checkpoint_every: int | None = None  # steps; None: only when the time is nearly over
    accumulate: int = 1  # the parts that a process takes its share of a batch in
    compile: bool = False
    cudnn_benchmark: bool = False
    inter_op_threads: int = 1  # cpu_threads
    bucket_cap_mb: float | None = None  # ddp: MiB of gradients that are sent together; None: torch's own choice
    microbatches: int = 4  # pipeline: the parts of a batch that are in it at once
    schedule: str = "gpipe"  # pipeline: or 1f1b
    planned_part_size: int | None = None  # the samples computed at once, as planned; None: started by hand
    planned_stages: int | None = None  # that the model is cut into, as planned

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every", "checkpoint_every", "accumulate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                unit = " step" if name == "checkpoint_every" else ""
                raise RecipeError(f"training.{name}={value} must be at least 1{unit}")
        if not 0.0 < self.holdout < 1.0:
            raise RecipeError(f"data.holdout={self.holdout:g} must lie between 0 and 1")
        if self.schedule not in ("gpipe", "1f1b"):
            raise RecipeError(f"strategy.schedule={self.schedule}: choose gpipe or 1f1b")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Task:
        """Return the task of run.json's content (`Client.config`); settings that it lacks keep their defaults.

        >>> Task.from_config({"run": {"training": {"steps": 10}}}).steps
        10
        """
        run: Mapping[str, Any] = config.get("run") or {}
        groups: dict[str, Mapping[str, Any]] = {name: run.get(name) or {} for name in (*_WHERE, "training")}
        found: dict[str, Any] = {name: groups[name].get(key) for name, key in _WHERE.items()}
        found.update({name: groups["training"].get(name) for name in _OF_TRAINING})
        found.update({name: groups["strategy"].get(name) for name in _OF_STRATEGY})
        found.update({name: groups["model"].get(name) for name in ("framework", "options")})
        plan: Mapping[str, Any] = config.get("plan") or {}
        found.update(planned_part_size=plan.get("part_size"), planned_stages=plan.get("stages"))
        found.update(devices=groups["strategy"].get("devices"))
        found.update(data_path=groups["data"].get("path"), holdout=groups["data"].get("holdout"), seed=run.get("seed"))
        return cls(**{name: value for name, value in found.items() if value is not None})

    def choose(self, setting: str, choices: Collection[str]) -> str:
        """Return the field *setting*, or the first of *choices* where it is None.

        Raises `RecipeError` for another value.
        """
        value = getattr(self, setting)
        if value is None:
            return next(iter(choices))
        if value not in choices:
            raise RecipeError(f"{setting}={value} is not in this recipe: choose {' or '.join(choices)}")
        return str(value)

    def replicas(self, world_size: int) -> int:
        """Return how many processes have samples of their own: 1 in a pipeline, whose stages share the same ones."""
        return 1 if self.strategy == "pipeline" else world_size

    def part_size(self, world_size: int) -> int:
        """Return the samples that each of *world_size* processes computes at once: as planned, else by the batch.

        A step takes ``accumulate`` such parts in each process, ``microbatches`` in a pipeline. Raises `RecipeError`
        where the strategy does not fit the processes, or an unplanned batch cannot be divided.

        >>> Task(strategy="ddp", batch_size=64, accumulate=2).part_size(4)
        8
        """
        if (self.strategy in _ONE_PROCESS) != (world_size == 1):
            raise RecipeError(f"strategy={self.strategy} does not fit {world_size} process(es)")
        parts = self.microbatches if self.strategy == "pipeline" else self.accumulate
        planned = self.planned_part_size
        # a recipe may have changed its task: then the plan is of another batch
        if planned is not None and planned * parts * self.replicas(world_size) == self.batch_size:
            return planned
        if self.strategy == "pipeline":
            return self._microbatch_size()
        if self.batch_size % world_size:
            raise RecipeError(f"training.batch_size={self.batch_size} cannot be shared by {world_size} processes")
        mine = self.batch_size // world_size
        if mine % self.accumulate:
            raise RecipeError(
                f"training.accumulate={self.accumulate} does not divide the {mine} samples of a process"
                f" (training.batch_size={self.batch_size}, {world_size} process(es))"
            )
        return mine // self.accumulate

    def _microbatch_size(self) -> int:
        if self.accumulate > 1:
            raise RecipeError(f"training.accumulate={self.accumulate}: strategy=pipeline has strategy.microbatches")
        if self.batch_size % self.microbatches:
            raise RecipeError(
                f"strategy.microbatches={self.microbatches} does not divide training.batch_size={self.batch_size}"
            )
        return self.batch_size // self.microbatches


def by_mpi(run: Client) -> bool:
    """Tell whether the ranks of *run* were started by an MPI launcher, as planned (``workload.launcher``)."""
    plan: Mapping[str, Any] = run.config.get("plan") or {}
    return plan.get("mpi") is not None
