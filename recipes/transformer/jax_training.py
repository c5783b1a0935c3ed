"""Windows of a text, and what a transformer in JAX says about them: the same batches as the torch half's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hiding import LOTS, LOTS_STRIDE, counts
from jax_models import Transformer, Weights, first_weights
from shape import MASK, UNASKED, Shape

from hpcml_client import Checkpoints, Client
from hpcml_train.data.texts import TEXTS, read_text
from hpcml_train.data.twister import Twister
from hpcml_train.data.windows import Windows
from hpcml_train.jax.arithmetic import Arithmetic
from hpcml_train.jax.recipe import Recipe
from hpcml_train.jax.training import train as train_recipe
from hpcml_train.loop import perplexity
from hpcml_train.task import Task

_EVALUATION_TOKENS = 8192  # bounds the memory only

Array = np.ndarray[Any, np.dtype[Any]]


class LanguageModelling(Recipe):
    """Bytes of a text, guessed from those before them or around them."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._shape = shape = Shape.of(task.options)
        self._text = read_text(task.choose("data", TEXTS), task.data_path)
        self._windows = Windows(
            self._text,
            length=shape.context + (shape.kind == "decoder"),  # the last token is only guessed
            holdout=task.holdout,
            validation_windows=shape.validation_windows,
        )
        lots = Twister(0)  # the same for every seed: validation must be
        self._lots, self._others = lots.uniform(LOTS), lots.integers(MASK, LOTS)
        self._examine = jax.jit(self._judge)
        self.samples = len(self._windows)
        self.tokens_per_sample = shape.context
        self._seed = task.seed

    def first_weights(self) -> Mapping[str, Array]:
        return first_weights(self._shape, self._seed)

    def batch(self, indices: Array) -> tuple[Array, ...]:
        return self._at(self._windows.starts[indices])

    def loss(self, weights: Weights, key: jax.Array, *batch: jax.Array) -> jax.Array:
        *inputs, labels = batch
        return _sum_of_losses(Transformer(self._shape, weights, key).logits(*inputs), labels) / _asked(labels)

    def evaluate(self, weights: Weights) -> Mapping[str, float]:
        loss, correct, guessed = 0.0, 0, 0
        for batch in self._validation():
            losses, right = self._examine(weights, *batch)
            loss, correct, guessed = loss + float(losses), correct + int(right), guessed + int(_asked(batch[-1]))
        mean = loss / guessed
        return {"val_loss": mean, "perplexity": perplexity(mean), "val_accuracy": correct / guessed}

    def facts(self) -> Mapping[str, object]:
        return {
            "training_samples": self.samples,
            "validation_samples": len(self._windows.validation_starts),
            "text_sha256": self._text.sha256,
            "text_bytes": len(self._text),
        }

    def _judge(self, weights: Weights, *batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        *inputs, labels = batch
        logits = Transformer(self._shape, weights).logits(*inputs)
        return _sum_of_losses(logits, labels), (logits.argmax(axis=-1) == labels).sum()

    def _validation(self) -> Iterator[tuple[Array, ...]]:
        starts, size = self._windows.validation_starts, max(1, _EVALUATION_TOKENS // self._shape.context)
        for begin in range(0, len(starts), size):
            yield self._at(starts[begin : begin + size])

    def _at(self, starts: Array) -> tuple[Array, ...]:
        """Return what the model is given, and last what it should say."""
        tokens, half = self._windows.at(starts), self._shape.context // 2
        if self._shape.kind == "decoder":
            return tokens[:, :-1], tokens[:, 1:]
        if self._shape.kind == "encoder_decoder":  # each token of the second half from all before it
            return tokens[:, :half], tokens[:, half - 1 : -1], tokens[:, half:]
        return self._hide(starts, tokens)

    def _hide(self, starts: Array, tokens: Array) -> tuple[Array, ...]:
        places = (starts[:, None] * LOTS_STRIDE + np.arange(tokens.shape[1])) % LOTS
        rank = self._lots[places].argsort(axis=1, kind="stable").argsort(axis=1)
        guessed, hidden, changed = counts(tokens.shape[1])
        given = np.where(rank < hidden, MASK, tokens)
        given = np.where((rank >= hidden) & (rank < hidden + changed), self._others[places], given)
        return given.astype(np.int32), np.where(rank < guessed, tokens, UNASKED).astype(np.int32)


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, LanguageModelling)


def _asked(labels: jax.Array | Array) -> jax.Array:
    return jnp.sum(labels != UNASKED)


def _sum_of_losses(logits: jax.Array, labels: jax.Array) -> jax.Array:
    # sums of exponentials overflow in 16 bits
    exact = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    wanted = jnp.take_along_axis(exact, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(exact, axis=-1) - wanted
    return jnp.where(labels == UNASKED, 0, losses).sum()
