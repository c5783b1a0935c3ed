"""Windows of a text, and what a transformer says about them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from hiding import LOTS, LOTS_STRIDE, counts
from models import Block, Embedding, Head, Transformer
from shape import MASK, UNASKED, Shape
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_client import Checkpoints, Client
from hpcml_train.continuing import continue_text
from hpcml_train.data.texts import BYTES, TEXTS, read_text
from hpcml_train.errors import RecipeError
from hpcml_train.loop import counted_in, perplexity
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.continuing import last_logits
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe
from hpcml_train.torch.windows import Windows

_EVALUATION_TOKENS = 8192  # bounds the memory only

if TYPE_CHECKING:
    Batch = tuple[tuple[torch.Tensor, ...], torch.Tensor]  # what the model is given, what it should say


class LanguageModelling(Recipe):
    """Bytes of a text, guessed from those before them or around them."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        strategy = task.choose(
            "strategy", ("single", "cpu_threads", "ddp", "horovod", "fsdp", "pipeline", "model_parallel")
        )
        self._shape = shape = Shape.of(task.options)
        self._seed = task.seed
        if shape.kind == "encoder_decoder" and strategy in ("pipeline", "model_parallel"):
            raise RecipeError(
                f"strategy={strategy}: all decoders of model.options.kind=encoder_decoder look at the last encoder's "
                "output, and stages hand on one tensor: choose decoder or encoder"
            )
        self._text = read_text(task.choose("data", TEXTS), task.data_path)
        self._windows = Windows(
            self._text,
            length=shape.context + (shape.kind == "decoder"),  # the last token is only guessed
            holdout=task.holdout,
            validation_windows=shape.validation_windows,
            device=arithmetic.device,
        )
        lots = torch.Generator().manual_seed(0)  # the same for every seed: validation must be
        self._lots = torch.rand(LOTS, generator=lots).to(arithmetic.device)
        self._others = torch.randint(BYTES, (LOTS,), generator=lots).to(arithmetic.device)
        self._offsets = torch.arange(shape.context, device=arithmetic.device)
        self.samples = len(self._windows)
        self.tokens_per_sample = shape.context
        self.model = Transformer(shape)

    def batch(self, indices: torch.Tensor) -> Batch:
        return self._at(self._windows.starts[indices])

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        inputs, labels = batch
        return _cross_entropy(model(*inputs), labels)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        loss, correct, guessed = 0.0, 0, 0
        for inputs, labels in self._validation():
            logits, asked = model(*inputs), int((labels != UNASKED).sum())
            loss += float(_cross_entropy(logits, labels)) * asked
            correct += int((logits.argmax(dim=-1) == labels).sum())
            guessed += asked
        mean = loss / guessed
        return {"val_loss": mean, "perplexity": perplexity(mean), "val_accuracy": correct / guessed}

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return embedding, blocks and head; those of encoder_decoder do not just follow each other: for fsdp only."""
        return [part for part in model.modules() if isinstance(part, (Embedding, Block, Head))]

    def inputs(self, batch: Batch) -> torch.Tensor:
        return batch[0][0]

    def facts(self) -> Mapping[str, object]:
        starts = self._windows.validation_starts
        guesses = int((self._at(starts[:1])[1] != UNASKED).sum())
        return {
            "training_samples": self.samples,
            **counted_in("val_accuracy", len(starts), each=guesses),
            "text_bytes": len(self._text),
            "text_sha256": self._text.sha256,
        }

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        """Return the event ``generated``, where text was asked for: computed on the CPU, in FP32 (of FP64: in that)."""
        shape, first = self._shape, next(iter(weights.values()))
        if not shape.generate:
            return {}
        dtype = torch.float64 if first.dtype is torch.float64 else torch.float32
        network = Transformer(shape).to(dtype)
        known = {name: weight.detach().cpu().to(dtype) for name, weight in weights.items()}
        network.load_state_dict({"head.weight": known["embedding.tokens.weight"], **known})
        network.eval()
        return continue_text(functools.partial(last_logits, network), shape, seed=self._seed)

    def _validation(self) -> Iterator[Batch]:
        for starts in torch.split(self._windows.validation_starts, max(1, _EVALUATION_TOKENS // self._shape.context)):
            yield self._at(starts)

    def _at(self, starts: torch.Tensor) -> Batch:
        tokens, half = self._windows.at(starts), self._shape.context // 2
        if self._shape.kind == "decoder":
            return (tokens[:, :-1],), tokens[:, 1:]
        if self._shape.kind == "encoder_decoder":  # each token of the second half from all before it
            return (tokens[:, :half], tokens[:, half - 1 : -1]), tokens[:, half:]
        return self._hide(starts, tokens)

    def _hide(self, starts: torch.Tensor, tokens: torch.Tensor) -> Batch:
        places = (starts[:, None] * LOTS_STRIDE + self._offsets) % LOTS
        rank = self._lots[places].argsort(dim=1, stable=True).argsort(dim=1)
        guessed, hidden, changed = counts(tokens.shape[1])
        given = torch.where(rank < hidden, torch.full_like(tokens, MASK), tokens)
        given = torch.where((rank >= hidden) & (rank < hidden + changed), self._others[places], given)
        return (given,), torch.where(rank < guessed, tokens, torch.full_like(tokens, UNASKED))


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, LanguageModelling)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # sums of exponentials overflow in 16 bits; autocast computes them in FP32 too
    exact = logits if logits.dtype is torch.float64 else logits.float()
    return F.cross_entropy(exact.flatten(0, 1), labels.flatten(), ignore_index=UNASKED)
