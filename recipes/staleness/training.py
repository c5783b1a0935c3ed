"""Digits, told apart by a network whose gradients are computed by simulated workers with stale weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from stale import StaleWorkers, draw_delays
from torch import nn

from hpcml_train.data import digits
from hpcml_train.data.pictures import Pictures
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import Classification
from hpcml_train.torch.training import train as train_recipe

DEFAULTS: Mapping[str, Any] = {"workers": 4, "staleness": 0, "delay": "uniform", "hidden": 32}
_CLASSES = 10

Pair = tuple[torch.Tensor, torch.Tensor]  # pixels, labels


class StaleDigits(Classification):
    """One hidden layer on 8x8 pixels, plain SGD."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        options = {**DEFAULTS, **task.options}
        self._workers, self._staleness = options["workers"], options["staleness"]
        _refuse_impossible(task, self._workers)
        task.choose("data", ("digits",))
        self._cast = arithmetic.cast
        training, self._validation = (_place(pictures, arithmetic) for pictures in digits.read(task))
        self._pixels, self._labels = training
        self.samples, self.held_out = len(self._labels), len(self._validation[1])
        network = nn.Sequential(
            nn.Linear(self._pixels.shape[1], options["hidden"]), nn.ReLU(), nn.Linear(options["hidden"], _CLASSES)
        )
        delays = draw_delays(
            task.steps, workers=self._workers, bound=self._staleness, kind=options["delay"], seed=task.seed
        )
        self.model = StaleWorkers(network, delays, self._staleness)

    def batch(self, indices: torch.Tensor) -> Pair:
        return self._cast(self._pixels[indices]), self._labels[indices]

    def validation(self) -> Iterator[Pair]:
        yield self._validation

    def optimizer(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        eps: float,  # noqa: ARG002 - Adam's
    ) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=learning_rate)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, StaleWorkers)  # noqa: S101 - our own logic
        return {**super().evaluate(model), "simulated_staleness": model.mean_delay()}

    def facts(self) -> Mapping[str, object]:
        return {
            **super().facts(),
            "simulated": True,
            "workers": self._workers,
            "staleness": self._staleness,
        }


train = partial(train_recipe, make=StaleDigits)


def _refuse_impossible(task: Task, workers: int) -> None:
    if task.batch_size % workers:
        raise RecipeError(f"training.batch_size={task.batch_size} cannot be shared by model.options.workers={workers}")
    if task.accumulate != 1:
        raise RecipeError(f"training.accumulate={task.accumulate}: simulated workers take a batch at once: set it to 1")
    if task.compile:
        raise RecipeError("training.compile=true is not supported with simulated workers: set it to false")


def _place(pictures: Pictures, arithmetic: Arithmetic) -> Pair:
    pixels = torch.from_numpy(pictures.images).flatten(1).float() / pictures.largest
    return pixels.to(arithmetic.device), torch.from_numpy(pictures.labels).to(arithmetic.device)
