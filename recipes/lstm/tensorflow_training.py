"""Sequences, and what a recurrent network in Keras says comes next in them: the same data and measures as in torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import tensorflow as tf
from sequences import choose_sequences
from shape import Shape

from hpcml_train.continuing import check_prompt
from hpcml_train.data.windows import Array
from hpcml_train.loop import perplexity
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.as_torch import begins_as_torch, cross_entropies, evenly, normally
from hpcml_train.tensorflow.continuing import continue_with
from hpcml_train.tensorflow.recipe import Batch, Recipe
from hpcml_train.tensorflow.training import train as train_recipe

_EVALUATION_BATCH = 256  # bounds the memory only


class Continuation(Recipe):
    """Sequences, continued by one token."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._shape, self._seed = Shape(**task.options), task.seed
        self._sequences = choose_sequences(task, self._shape)
        check_prompt(self._shape.prompt, self._shape.generate, reads_text=task.data != "fibonacci")
        self.samples = len(self._sequences)
        self.tokens_per_sample = self._shape.context

    def build(self) -> tf.keras.Model:
        return next_token(self._shape, self._sequences.vocabulary)

    def build_counted(self) -> tf.keras.Model:
        return next_token(self._shape, self._sequences.vocabulary, unroll=True)

    def batch(self, indices: Array) -> Batch:
        return _shifted(self._sequences.training(indices))

    def loss(self, model: tf.keras.Model, batch: Batch) -> tf.Tensor:
        tokens, following = batch
        return self._cross_entropy(model(tokens, training=True), following)

    def evaluate(self, model: tf.keras.Model) -> Mapping[str, float]:
        loss, correct, begin = 0.0, 0, self._sequences.first_guess - 1
        held_out = self._sequences.validation()
        for at in range(0, len(held_out), _EVALUATION_BATCH):
            tokens, following = _shifted(held_out[at : at + _EVALUATION_BATCH])
            logits = model(tokens, training=False)
            loss += float(self._cross_entropy(logits, following)) * len(following)
            guessed = logits.numpy().argmax(axis=-1)
            correct += int((guessed == following.numpy())[:, begin:].sum())
        mean, guesses = loss / len(held_out), (self._shape.context - begin) * len(held_out)
        return {"val_loss": mean, "perplexity": perplexity(mean), "val_accuracy": correct / guesses}

    def facts(self) -> Mapping[str, object]:
        return {
            "training_samples": self.samples,
            "validation_samples": len(self._sequences.validation()),
            **self._sequences.facts(),
        }

    def results(self, model: tf.keras.Model) -> Mapping[str, Mapping[str, object]]:
        """Return the event ``generated``, where text was asked for."""
        shape = self._shape
        if not shape.generate:
            return {}
        return continue_with(model, shape, seed=self._seed)

    def _cross_entropy(self, logits: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
        begin = self._sequences.first_guess - 1
        return tf.reduce_mean(cross_entropies(logits[:, begin:], following[:, begin:]))


train = partial(train_recipe, make=Continuation)


def next_token(shape: Shape, vocabulary: int, *, unroll: bool = False) -> tf.keras.Model:
    """Return tokens in, one number for each possible next token out; *unroll* writes the loop over tokens out.

    Weights begin as in torch, which has two biases where Keras has one.
    """
    layers, width = tf.keras.layers, shape.width
    cell = {"lstm": layers.LSTM, "rnn": layers.SimpleRNN}[shape.cell]
    forget = {"unit_forget_bias": False} if shape.cell == "lstm" else {}  # torch adds nothing to that bias
    recurrent = [
        cell(
            width,
            return_sequences=True,
            unroll=unroll,
            kernel_initializer=evenly(width),
            recurrent_initializer=evenly(width),
            bias_initializer=evenly(width),
            name=f"{shape.cell}{number}",
            **forget,
        )
        for number in range(shape.layers)
    ]
    return tf.keras.Sequential(
        [
            layers.Input((shape.context,), dtype="int32"),
            layers.Embedding(vocabulary, shape.embedding, embeddings_initializer=normally(1.0), name="embedding"),
            *recurrent,
            layers.Dense(vocabulary, name="out", **begins_as_torch(width)),
        ]
    )


def _shifted(sequences: Array) -> Batch:
    rows = tf.constant(sequences, tf.int32)
    return rows[:, :-1], rows[:, 1:]
