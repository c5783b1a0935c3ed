"""How long a recipe trains, and with which batch: the config section ``training``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcml.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long a recipe trains, with which batch and learning rate; the user's own program may ignore all of it."""

    steps: int = 300
    batch_size: int = 64  # samples of one optimiser step, over all processes
    learning_rate: float = 1e-3
    eval_every: int = 50  # steps between validations
    checkpoint_every: int | None = None  # steps between checkpoints; None: only when the run is asked to leave
    deterministic: bool = True  # same seed, threads and software: same numbers, bit for bit
    accumulate: int = 1  # gradient accumulation: parts of each process's share of a batch; less memory, same batch
    compile: bool = False  # torch.compile; refused for other frameworks
    cudnn_benchmark: bool = False  # PyTorch's cuDNN takes the kernels that it finds to be the fastest

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every", "checkpoint_every", "accumulate"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"training.{name}={value} must be at least 1")
        require(
            not (self.cudnn_benchmark and self.deterministic),
            "training.cudnn_benchmark=true chooses kernels by time, which is chance: set training.deterministic=false",
        )
        rate = self.learning_rate
        require(rate > 0 and math.isfinite(rate), f"training.learning_rate={rate} must be positive and finite")
