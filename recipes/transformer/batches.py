"""What a transformer is given and what it should say, as NumPy arrays, for JAX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from hiding import LOTS, LOTS_STRIDE, counts
from shape import MASK, UNASKED, Shape

from hpcml_train.data.texts import TEXTS, read_text
from hpcml_train.data.windows import Windows
from hpcml_train.task import Task

Array = np.ndarray[Any, np.dtype[Any]]

_EVALUATION_TOKENS = 8192  # bounds the memory only


class Batches:
    """Windows of the text that a task names: what the model is given of each, and last what it should say."""

    def __init__(self, task: Task, shape: Shape) -> None:
        self._shape = shape
        self._text = read_text(task.choose("data", TEXTS), task.data_path)
        self._windows = Windows(
            self._text,
            length=shape.context + (shape.kind == "decoder"),  # the last token is only guessed
            holdout=task.holdout,
            validation_windows=shape.validation_windows,
        )
        lots = np.random.RandomState(0)  # the same for every seed: validation must be
        self._lots, self._others = lots.random_sample(LOTS), lots.randint(MASK, size=LOTS)

    def __len__(self) -> int:
        return len(self._windows)

    def training(self, indices: Array) -> tuple[Array, ...]:
        """Return the training samples *indices*."""
        return self._at(self._windows.starts[indices])

    def validation(self) -> Iterator[tuple[Array, ...]]:
        """Yield all that is held out."""
        starts, size = self._windows.validation_starts, max(1, _EVALUATION_TOKENS // self._shape.context)
        for begin in range(0, len(starts), size):
            yield self._at(starts[begin : begin + size])

    def facts(self) -> Mapping[str, object]:
        """Return details of the event ``training``."""
        starts = self._windows.validation_starts
        return {
            "training_samples": len(self),
            "validation_samples": len(starts),
            **self._text.facts(),
        }

    def _at(self, starts: Array) -> tuple[Array, ...]:
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
