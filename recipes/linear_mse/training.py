"""One dense layer in torch, fitted to a line by gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from line import Points, training_points, validation_points
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe

Pair = tuple[torch.Tensor, torch.Tensor]  # x, y


class Line(Recipe):
    """A line, found by a layer with one weight and one bias."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        self._x, self._y = (arithmetic.cast(column) for column in _columns(training_points(task)))
        self._validation = [column.to(arithmetic.device) for column in _columns(validation_points(task))]
        self.samples = len(self._x)
        self.model = nn.Linear(1, 1)

    def batch(self, indices: torch.Tensor) -> Pair:
        return self._x[indices], self._y[indices]

    def loss(self, model: nn.Module, batch: Pair) -> torch.Tensor:
        return _mse(model(batch[0]), batch[1])

    def optimizer(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        eps: float,  # noqa: ARG002 - Adam's
    ) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=learning_rate)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        weight, bias = model.parameters()
        x, y = (column.to(weight.dtype) for column in self._validation)
        return {"val_loss": float(_mse(model(x), y)), "slope": weight.item(), "intercept": bias.item()}


train = partial(train_recipe, make=Line)


def _columns(points: Points) -> Pair:
    x, y = (torch.tensor(values, dtype=torch.float64).unsqueeze(1) for values in (points.x, points.y))
    return x, y


def _mse(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    # squares of small errors vanish in 16 bits
    wide = torch.float64 if found.dtype is torch.float64 else torch.float32
    return F.mse_loss(found.to(wide), wanted.to(wide))
