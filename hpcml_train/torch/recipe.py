"""The interface of a torch recipe: its model, samples, loss and evaluation.

`hpcml_train.torch.training` does the rest.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

Batch = Any  # whatever `batch` returns and `loss` takes: tensors, alone or in tuples, lists and dictionaries


class Recipe(abc.ABC):
    """The base of recipes: set `model` and `samples` in ``__init__(task, arithmetic)``, and pass the class to `train`.

    Read the data first, then build the model: weights are drawn from torch's random numbers, which the seed has just
    set.
    """

    model: nn.Module  # as built: `train` moves it to its device, in its dtype and layout
    samples: int  # in the training set
    tokens_per_sample: int | None = None  # of texts

    @abc.abstractmethod
    def batch(self, indices: torch.Tensor) -> Batch:
        """Return the training samples *indices*, an int64 tensor on the device, in the parameters' dtype."""

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the samples in *batch*, a tensor of one element; computed in the run's precision."""

    @abc.abstractmethod
    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Return the validation metrics of *model* by name.

        It is in evaluation mode and computes in FP32 (fp64: FP64).
        """

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the layers of *model* in the order in which each passes its output to the next.

        () if it has no such order.

        Needed by strategies that cut a model into stages: all parameters must lie in these layers. Layers may share a
        parameter: it lies on the device of the first, and the others must fetch it (``self.weight.to(x.device)``).
        """
        return list(model.children()) if isinstance(model, nn.Sequential) else []

    def inputs(self, batch: Batch) -> torch.Tensor:
        """Return the part of *batch* that the first layer takes: a tensor with one row a sample.

        For ``strategy=pipeline``.
        """
        found: torch.Tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
        return found

    def optimizer(
        self, parameters: Iterable[nn.Parameter], *, learning_rate: float, eps: float
    ) -> torch.optim.Optimizer:
        """Return the optimiser; *eps* is one that the parameters' format can represent."""
        return torch.optim.Adam(parameters, lr=learning_rate, eps=eps)

    def facts(self) -> Mapping[str, object]:
        """Return further details of the event ``training``."""
        return {"training_samples": self.samples}

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        """Return events about what was learned, by name, with their details; *weights* are those of the whole model."""
        del weights
        return {}
