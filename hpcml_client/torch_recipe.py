"""What distinguishes one torch training from another: its model, its samples, its loss and how it is examined."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import nn

Batch = Any  # whatever `batch` returns and `loss` takes: tensors, alone or in tuples, lists and dictionaries


class Recipe:
    """Derive from it, set `model` and `samples` in ``__init__(task, arithmetic)``, and hand the class to `train`.

    Data first, then the model: weights are drawn from torch's random numbers, which the seed has just set.
    """

    model: nn.Module  # as built: `train` moves it to its device, in its dtype and layout
    samples: int  # in the training set
    tokens_per_sample: Optional[int] = None  # of texts

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return the training samples *indices*, which lie on the device, there and in the parameters' dtype."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the samples in *batch*; computed in the run's precision."""
        raise NotImplementedError

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Return the validation metrics of *model*, which is in evaluation mode and computes in FP32 (fp64: FP64)."""
        raise NotImplementedError

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the layers of *model* in the order in which each hands its output to the next; nothing: it has none.

        For strategies that cut a model into stages: all parameters must lie in them. Layers may share a parameter: it
        lies on the device of the first, and the others must fetch it (``self.weight.to(x.device)``).
        """
        return list(model.children()) if isinstance(model, nn.Sequential) else []

    def inputs(self, batch: Batch) -> torch.Tensor:
        """Return what of *batch* the first layer takes: a tensor with one row a sample. For ``strategy=pipeline``."""
        found: torch.Tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
        return found

    def optimizer(
        self, parameters: Iterable[nn.Parameter], *, learning_rate: float, eps: float
    ) -> torch.optim.Optimizer:
        """Return the optimiser; *eps* is one that the parameters' format can hold."""
        return torch.optim.Adam(parameters, lr=learning_rate, eps=eps)

    def facts(self) -> Mapping[str, object]:
        """Return what the event ``training`` says besides the settings and the number of parameters."""
        return {"training_samples": self.samples}

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        """Return events that tell what was learned, and their details: *weights* are those of the whole model."""
        del weights
        return {}
