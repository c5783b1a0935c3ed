"""What the recipe is asked to do, read from the run's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class RecipeError(Exception):
    """What was asked for is not possible here; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The part of the configuration that this recipe obeys; the defaults are hpcml's."""

    model: str = "mnist_cnn"
    data: str = "digits"
    data_path: str | None = None
    holdout: float = 0.2
    layout: str = "nchw"
    strategy: str = "single"
    seed: int = 0
    steps: int = 300
    batch_size: int = 64
    learning_rate: float = 1e-3
    eval_every: int = 50
    deterministic: bool = True
    checkpoint_every: int | None = None  # steps; None: only when the time is nearly over

    def __post_init__(self) -> None:
        if self.data not in ("digits", "mnist"):
            raise RecipeError(f"data={self.data} is not in this recipe: choose digits or mnist")
        if self.data == "mnist" and self.data_path is None:
            raise RecipeError("data=mnist needs data.path: a folder with its IDX files, or mnist.npz")
        if self.layout not in ("nchw", "nhwc"):
            raise RecipeError(f"layout={self.layout} is not in this recipe: choose nchw or nhwc")
        if self.strategy not in ("single", "ddp"):
            raise RecipeError(f"strategy={self.strategy} is not in this recipe: choose single or ddp")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise RecipeError(f"training.checkpoint_every={self.checkpoint_every} must be at least 1 step")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Task:
        """Read what is there and keep the defaults for the rest."""
        run = config.get("run") or {}
        model, data, training = (run.get(name) or {} for name in ("model", "data", "training"))
        found = {
            "model": model.get("name"),
            "data": data.get("name"),
            "data_path": data.get("path"),
            "holdout": data.get("holdout"),
            "layout": (run.get("layout") or {}).get("name"),
            "strategy": (run.get("strategy") or {}).get("name"),
            "seed": run.get("seed"),
        }
        for name in ("steps", "batch_size", "learning_rate", "eval_every", "deterministic", "checkpoint_every"):
            found[name] = training.get(name)
        return cls(**{name: value for name, value in found.items() if value is not None})

    def check_processes(self, world_size: int) -> None:
        """Raise `RecipeError` where the strategy or the batch does not fit so many processes."""
        if (self.strategy == "ddp") != (world_size > 1):
            raise RecipeError(f"strategy={self.strategy} does not fit {world_size} process(es)")
        if self.batch_size % world_size:
            raise RecipeError(f"training.batch_size={self.batch_size} cannot be shared by {world_size} processes")
