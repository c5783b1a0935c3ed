"""Windows of a text, and what a transformer says about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from hiding import LOTS, LOTS_STRIDE, counts
from models import Block, Embedding, Head, Transformer
from shape import MASK, UNASKED, Shape
from torch import nn

from hpcml_train.data.texts import BYTES, TEXTS, read_text
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import NextToken
from hpcml_train.torch.continuing import continue_with
from hpcml_train.torch.training import train as train_recipe
from hpcml_train.torch.windows import Windows

_EVALUATION_TOKENS = 8192  # bounds the memory only

if TYPE_CHECKING:
    Batch = tuple[torch.Tensor, ...]  # what the model is given, and last what it should say


class LanguageModelling(NextToken):
    """Bytes of a text, guessed from those before them or around them."""

    unasked = UNASKED

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        strategy = task.choose(
            "strategy", ("single", "cpu_threads", "ddp", "horovod", "fsdp", "pipeline", "model_parallel")
        )
        self._shape = shape = Shape(**task.options)
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
        self.samples, self.held_out = len(self._windows), len(self._windows.validation_starts)
        self.tokens_per_sample = shape.context
        self.model = Transformer(shape)

    def batch(self, indices: torch.Tensor) -> Batch:
        return self._at(self._windows.starts[indices])

    def validation(self) -> Iterator[Batch]:
        at_once = max(1, _EVALUATION_TOKENS // self._shape.context)
        return map(self._at, self._windows.validation_starts.split(at_once))

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return embedding, blocks and head; those of encoder_decoder do not just follow each other: for fsdp only."""
        return [part for part in model.modules() if isinstance(part, (Embedding, Block, Head))]

    def facts(self) -> Mapping[str, object]:
        return {**super().facts(), **self._text.facts()}

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        known = {"head.weight": weights["embedding.tokens.weight"], **weights}
        return continue_with(lambda: Transformer(self._shape), known, self._shape, seed=self._seed)

    def _at(self, starts: torch.Tensor) -> Batch:
        tokens, half = self._windows.at(starts), self._shape.context // 2
        if self._shape.kind == "decoder":
            return tokens[:, :-1], tokens[:, 1:]
        if self._shape.kind == "encoder_decoder":  # each token of the second half from all before it
            return tokens[:, :half], tokens[:, half - 1 : -1], tokens[:, half:]
        return self._hide(starts, tokens)

    def _hide(self, starts: torch.Tensor, tokens: torch.Tensor) -> Batch:
        places = (starts[:, None] * LOTS_STRIDE + self._offsets) % LOTS
        rank = self._lots[places].argsort(dim=1, stable=True).argsort(dim=1)
        guessed, hidden, changed = counts(tokens.shape[1])
        given = torch.where(rank < hidden, torch.full_like(tokens, MASK), tokens)
        given = torch.where((rank >= hidden) & (rank < hidden + changed), self._others[places], given)
        return given, torch.where(rank < guessed, tokens, torch.full_like(tokens, UNASKED))


train = partial(train_recipe, make=LanguageModelling)
