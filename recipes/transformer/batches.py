"""What a transformer is given of a text and what it should say, in any framework; how tokens are hidden in NumPy."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from shape import MASK, UNASKED, Shape

from hpcml_train.data.texts import TEXTS, read_text
from hpcml_train.data.windows import Array, Place, Windows, in_numpy
from hpcml_train.task import Task

# BERT guesses 15 % of the tokens; of these 80 % are hidden, 10 % are others than they were, and 10 % stay.
_GUESSED, _HIDDEN, _CHANGED = 0.15, 0.8, 0.1
LOTS = 1 << 20  # drawn once: which tokens are hidden depends on where a window begins, and on nothing else
LOTS_STRIDE = 7919
_EVALUATION_TOKENS = 8192  # bounds the memory only

Batch = tuple[Array, ...]  # what the model is given, and last what it should say


class Counts(NamedTuple):
    """How many tokens of every window: the same, so that a mean over parts of a batch is that of the whole."""

    guessed: int
    hidden: int
    changed: int


def counts(tokens: int) -> Counts:
    """Return them for windows of *tokens*."""
    guessed = max(1, round(_GUESSED * tokens))
    return Counts(guessed, max(1, round(_HIDDEN * guessed)), round(_CHANGED * guessed))


class TextBatches(abc.ABC):
    """Windows of the text that a task names; *place* makes of NumPy's arrays those of a framework."""

    def __init__(self, task: Task, shape: Shape, place: Place) -> None:
        self._shape = shape
        self._text = read_text(task.choose("data", TEXTS), task.data_path)
        self._windows = Windows(
            self._text,
            length=shape.context + (shape.kind == "decoder"),  # the last token is only guessed
            holdout=task.holdout,
            validation_windows=shape.validation_windows,
            place=place,
        )

    def __len__(self) -> int:
        return len(self._windows)

    def training(self, indices: Array) -> Batch:
        """Return the training samples *indices*."""
        return self._at(self._windows.starts[indices])

    def validation(self) -> Iterator[Batch]:
        """Yield all that is held out."""
        starts, size = self._windows.validation_starts, max(1, _EVALUATION_TOKENS // self._shape.context)
        return (self._at(starts[begin : begin + size]) for begin in range(0, len(starts), size))

    def facts(self) -> Mapping[str, object]:
        """Return details of the event ``training``."""
        held_out = len(self._windows.validation_starts)
        return {"training_samples": len(self), "validation_samples": held_out, **self._text.facts()}

    @abc.abstractmethod
    def hide(self, starts: Array, tokens: Array) -> Batch:
        """Return *tokens* with some hidden, by lots drawn for where their windows start, and what these were."""

    def _at(self, starts: Array) -> Batch:
        tokens, half = self._windows.at(starts), self._shape.context // 2
        if self._shape.kind == "decoder":
            return tokens[:, :-1], tokens[:, 1:]
        if self._shape.kind == "encoder_decoder":  # each token of the second half from all before it
            return tokens[:, :half], tokens[:, half - 1 : -1], tokens[:, half:]
        return self.hide(starts, tokens)


class Batches(TextBatches):
    """The same as NumPy's arrays."""

    def __init__(self, task: Task, shape: Shape) -> None:
        super().__init__(task, shape, in_numpy)
        lots = np.random.RandomState(0)  # the same for every seed: validation must be
        self._lots, self._others = lots.random_sample(LOTS), lots.randint(MASK, size=LOTS)

    def hide(self, starts: Array, tokens: Array) -> Batch:
        places = (starts[:, None] * LOTS_STRIDE + np.arange(tokens.shape[1])) % LOTS
        rank = self._lots[places].argsort(axis=1, kind="stable").argsort(axis=1)
        guessed, hidden, changed = counts(tokens.shape[1])
        given = np.where(rank < hidden, MASK, tokens)
        given = np.where((rank >= hidden) & (rank < hidden + changed), self._others[places], given)
        return given.astype(np.int32), np.where(rank < guessed, tokens, UNASKED).astype(np.int32)
