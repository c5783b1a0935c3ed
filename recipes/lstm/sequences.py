"""What a recurrent network may continue: Fibonacci's sequences modulo m, or windows of a text.

*place* makes of NumPy's arrays what a framework computes with: tensors of torch on a device, say.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from shape import Shape

from hpcml_train.data.texts import BYTES, TEXTS, read_text, spread
from hpcml_train.data.windows import Array, Place, Windows, in_numpy
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task


def fibonacci(pairs: Array, length: int, modulus: int) -> Array:
    """Return the sequences that begin with *pairs*, one a row: each number is the sum of the two before it."""
    terms = [pairs[:, 0], pairs[:, 1]]
    while len(terms) < length:
        terms.append((terms[-1] + terms[-2]) % modulus)
    return np.stack(terms, axis=1)


class Fibonacci:
    """The sequences from all m x m pairs; some pairs are held out, evenly spread."""

    first_guess = 2  # tokens before it have nothing that they follow from

    def __init__(self, shape: Shape, holdout: float, place: Place = in_numpy) -> None:
        self.vocabulary = shape.modulus
        count = shape.modulus**2
        kept, held_out = spread(count, holdout)
        if not held_out or not kept:
            raise RecipeError(
                f"data.holdout={holdout:g} of {count} pairs leaves none to train or to validate on: choose another"
            )
        # in an order drawn once and for all: every fifth pair as they come would be all with the same second term
        order = np.random.RandomState(0).permutation(count)
        pairs = np.stack([order // shape.modulus, order % shape.modulus], axis=1)
        sequences = fibonacci(pairs, shape.context + 1, shape.modulus)
        self._training = place(sequences[kept])
        self._validation = place(sequences[held_out][: shape.validation_windows])

    def __len__(self) -> int:
        return len(self._training)

    def training(self, indices: Array) -> Array:
        return self._training[indices]

    def validation(self) -> Array:
        return self._validation

    def facts(self) -> Mapping[str, object]:
        return {"modulus": self.vocabulary}


class TextSequences:
    """Windows of a text, as bytes."""

    first_guess = 1
    vocabulary = BYTES

    def __init__(self, shape: Shape, task: Task, place: Place = in_numpy) -> None:
        self._text = read_text(task.data, task.data_path)
        self._windows = Windows(
            self._text,
            length=shape.context + 1,
            holdout=task.holdout,
            validation_windows=shape.validation_windows,
            place=place,
        )

    def __len__(self) -> int:
        return len(self._windows)

    def training(self, indices: Array) -> Array:
        return self._windows.at(self._windows.starts[indices])

    def validation(self) -> Array:
        return self._windows.at(self._windows.validation_starts)

    def facts(self) -> Mapping[str, object]:
        return self._text.facts()


def choose_sequences(task: Task, shape: Shape, place: Place = in_numpy) -> Fibonacci | TextSequences:
    """Return the sequences that *task* names."""
    if task.choose("data", ("fibonacci", *TEXTS)) in TEXTS:
        return TextSequences(shape, task, place)
    return Fibonacci(shape, task.holdout, place)
