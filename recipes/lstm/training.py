"""Sequences, and what a recurrent network says comes next in them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from models import NextToken
from sequences import choose_sequences
from shape import Shape
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_client import Checkpoints, Client
from hpcml_train.continuing import check_prompt, continue_text
from hpcml_train.data.texts import BYTES
from hpcml_train.loop import counted_in, perplexity
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.continuing import last_logits
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe

if TYPE_CHECKING:
    Batch = tuple[torch.Tensor, torch.Tensor]  # tokens, and those that follow each

_EVALUATION_BATCH = 256  # bounds the memory only


class Continuation(Recipe):
    """Sequences, continued by one token."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        shape = Shape.of(task.options)
        self._shape, self._seed = shape, task.seed
        self._sequences = choose_sequences(task, shape, arithmetic.device)
        check_prompt(shape.prompt, shape.generate, reads_text=task.data != "fibonacci")
        self.samples = len(self._sequences)
        self.tokens_per_sample = shape.context
        self.model = NextToken(shape, self._sequences.vocabulary)

    def batch(self, indices: torch.Tensor) -> Batch:
        return _shifted(self._sequences.training(indices))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens, following = batch
        return self._cross_entropy(model(tokens), following)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        loss, correct, begin = 0.0, 0, self._sequences.first_guess - 1
        held_out = self._sequences.validation()
        for part in torch.split(held_out, _EVALUATION_BATCH):
            tokens, following = _shifted(part)
            logits = model(tokens)
            loss += float(self._cross_entropy(logits, following)) * len(part)
            correct += int((logits.argmax(dim=-1) == following)[:, begin:].sum())
        mean, guesses = loss / len(held_out), following[:, begin:].shape[1] * len(held_out)
        return {"val_loss": mean, "perplexity": perplexity(mean), "val_accuracy": correct / guesses}

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return embedding, recurrent layers and output; those are one, since a GPU works on all of them at once."""
        return list(model.children())

    def facts(self) -> Mapping[str, object]:
        guesses = self._shape.context - (self._sequences.first_guess - 1)
        return {
            "training_samples": self.samples,
            **counted_in("val_accuracy", len(self._sequences.validation()), each=guesses),
            **self._sequences.facts(),
        }

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        """Return the event ``generated``, where text was asked for: computed on the CPU, in FP32 (of FP64: in that)."""
        shape = self._shape
        if not shape.generate:
            return {}
        dtype = torch.float64 if weights["out.weight"].dtype is torch.float64 else torch.float32
        network = NextToken(shape, BYTES).to(dtype)
        network.load_state_dict({name: weight.detach().cpu().to(dtype) for name, weight in weights.items()})
        network.eval()
        return continue_text(functools.partial(last_logits, network), shape, seed=self._seed)

    def _cross_entropy(self, logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        begin = self._sequences.first_guess - 1
        # sums of exponentials overflow in 16 bits; autocast computes them in FP32 too
        exact = logits if logits.dtype is torch.float64 else logits.float()
        return F.cross_entropy(exact[:, begin:].flatten(0, 1), following[:, begin:].flatten())


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, Continuation)


def _shifted(sequences: torch.Tensor) -> Batch:
    return sequences[:, :-1], sequences[:, 1:]
