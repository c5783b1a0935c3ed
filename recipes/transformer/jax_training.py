"""Windows of a text, and what a transformer in JAX says about them: the same batches as the torch half's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from batches import Batches
from jax_models import Transformer, Weights, first_weights
from shape import UNASKED, Shape

from hpcml_train.continuing import continue_text
from hpcml_train.data.windows import Array
from hpcml_train.jax.arithmetic import Arithmetic
from hpcml_train.jax.recipe import Recipe
from hpcml_train.jax.training import train as train_recipe
from hpcml_train.loop import perplexity
from hpcml_train.task import Task


class LanguageModelling(Recipe):
    """Bytes of a text, guessed from those before them or around them."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._shape = shape = Shape(**task.options)
        self._batches = Batches(task, shape)
        self._examine = jax.jit(self._judge)
        self.samples = len(self._batches)
        self.tokens_per_sample = shape.context
        self._seed = task.seed

    def first_weights(self) -> Mapping[str, Array]:
        return first_weights(self._shape, self._seed)

    def batch(self, indices: Array) -> tuple[Array, ...]:
        return self._batches.training(indices)

    def loss(self, weights: Weights, key: jax.Array, *batch: jax.Array) -> jax.Array:
        *inputs, labels = batch
        return _sum_of_losses(Transformer(self._shape, weights, key).logits(*inputs), labels) / _asked(labels)

    def evaluate(self, weights: Weights) -> Mapping[str, float]:
        loss, correct, guessed = 0.0, 0, 0
        for batch in self._batches.validation():
            losses, right = self._examine(weights, *batch)
            loss, correct, guessed = loss + float(losses), correct + int(right), guessed + int(_asked(batch[-1]))
        mean = loss / guessed
        return {"val_loss": mean, "perplexity": perplexity(mean), "val_accuracy": correct / guessed}

    def facts(self) -> Mapping[str, object]:
        return self._batches.facts()

    def results(self, weights: Weights) -> Mapping[str, Mapping[str, object]]:
        """Return the event ``generated``, where text was asked for."""
        shape = self._shape
        if not shape.generate:
            return {}
        say = jax.jit(lambda tokens: Transformer(shape, weights).logits(tokens)[0])

        def next_byte(tokens: Array) -> Array:
            # of one shape, so that it is compiled once; a decoder does not look at what stands behind the last byte
            padded = np.pad(tokens, [(0, 0), (0, shape.context - tokens.shape[1])]).astype(np.int32)
            return np.asarray(say(padded)[tokens.shape[1] - 1])

        return continue_text(next_byte, shape, seed=self._seed)

    def _judge(self, weights: Weights, *batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        *inputs, labels = batch
        logits = Transformer(self._shape, weights).logits(*inputs)
        return _sum_of_losses(logits, labels), (logits.argmax(axis=-1) == labels).sum()


train = partial(train_recipe, make=LanguageModelling)


def _asked(labels: jax.Array | Array) -> jax.Array:
    return jnp.sum(labels != UNASKED)


def _sum_of_losses(logits: jax.Array, labels: jax.Array) -> jax.Array:
    # sums of exponentials overflow in 16 bits
    exact = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    wanted = jnp.take_along_axis(exact, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(exact, axis=-1) - wanted
    return jnp.where(labels == UNASKED, 0, losses).sum()
