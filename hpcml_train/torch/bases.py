"""What recipes of a kind share: samples that are told apart, and sequences whose tokens are guessed."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_train.loop import perplexity
from hpcml_train.torch.recipe import Batch, Recipe


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, ignored: int = -100) -> torch.Tensor:
    """Return the mean over all *labels* but those *ignored*, one for each row of *logits* along its last axis.

    Computed in FP32 (FP64: in that), as autocast does: sums of exponentials overflow in 16 bits.
    """
    exact = logits if logits.dtype is torch.float64 else logits.float()
    return F.cross_entropy(exact.flatten(0, -2), labels.flatten(), ignore_index=ignored)


class Classification(Recipe):
    """Samples, told apart: batches are inputs and labels. Set `held_out`, too."""

    held_out: int  # samples to validate on

    @abc.abstractmethod
    def validation(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield inputs and labels of all that is held out, so many at once as the memory has room for."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy."""
        inputs, labels = batch
        return cross_entropy(model(inputs), labels)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Return the share of right answers and the mean loss; nothing where nothing is held out."""
        if not self.held_out:
            return {}
        dtype = next(model.parameters()).dtype
        correct, loss = 0, 0.0
        for inputs, labels in self.validation():
            logits = model(inputs.to(dtype))
            correct += int((logits.argmax(dim=1) == labels).sum())
            loss += float(cross_entropy(logits, labels)) * len(labels)
        return {"val_accuracy": correct / self.held_out, "val_loss": loss / self.held_out}

    def facts(self) -> Mapping[str, object]:
        """Return how many samples there are."""
        return {"training_samples": self.samples, "validation_samples": self.held_out}


class NextToken(Recipe):
    """Sequences whose tokens are guessed: batches are the model's inputs, and last the labels.

    Set `held_out`, too, or say other `facts`. Labels are of the last tokens that the model answers for; where there are
    fewer of them, the first are not asked.
    """

    held_out: int  # sequences to validate on
    unasked: int = -100  # the label of a token that is not to be guessed

    @abc.abstractmethod
    def validation(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield inputs and labels of all that is held out, so many at once as the memory has room for."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy of the tokens that are guessed."""
        *inputs, labels = batch
        return self._cross_entropy(model(*inputs), labels)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Return the mean loss of a token, its perplexity, and the share of tokens that were guessed."""
        loss, correct, guessed = 0.0, 0, 0
        for *inputs, labels in self.validation():
            logits, asked = model(*inputs), int((labels != self.unasked).sum())
            loss += float(self._cross_entropy(logits, labels)) * asked
            correct += int((logits[:, -labels.shape[1] :].argmax(dim=-1) == labels).sum())
            guessed += asked
        mean = loss / guessed
        return {"val_loss": mean, "perplexity": perplexity(mean), "val_accuracy": correct / guessed}

    def facts(self) -> Mapping[str, object]:
        """Return how many sequences there are."""
        return {"training_samples": self.samples, "validation_samples": self.held_out}

    def _cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits[:, -labels.shape[1] :], labels, ignored=self.unasked)
