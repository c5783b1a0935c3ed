"""What an LSTM may continue: Fibonacci's sequences modulo m, or windows of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from models import Shape

from hpcml_train.data.texts import TEXTS, read_text, spread
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.windows import BYTES, Windows

if TYPE_CHECKING:
    from typing import Protocol

    class Sequences(Protocol):
        """Sequences to train on and to validate on, and where the tokens that can be guessed begin."""

        vocabulary: int
        first_guess: int  # tokens before it have nothing that they follow from

        def __len__(self) -> int: ...

        def training(self, indices: torch.Tensor) -> torch.Tensor: ...

        def validation(self) -> torch.Tensor: ...

        def facts(self) -> Mapping[str, object]: ...


def fibonacci(pairs: torch.Tensor, length: int, modulus: int) -> torch.Tensor:
    """Return the sequences that begin with *pairs*, one a row: each number is the sum of the two before it."""
    terms = [pairs[:, 0], pairs[:, 1]]
    while len(terms) < length:
        terms.append((terms[-1] + terms[-2]) % modulus)
    return torch.stack(terms, dim=1)


class Fibonacci:
    """The sequences from all m x m pairs; some pairs are held out, evenly spread."""

    first_guess = 2

    def __init__(self, shape: Shape, holdout: float, device: torch.device) -> None:
        self.vocabulary = shape.modulus
        count = shape.modulus**2
        kept, held_out = spread(count, holdout)
        if not held_out or not kept:
            raise RecipeError(
                f"data.holdout={holdout:g} of {count} pairs leaves none to train or to validate on: choose another"
            )
        # in an order drawn once and for all: every fifth pair as they come would be all with the same second term
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        pairs = torch.stack([order // shape.modulus, order % shape.modulus], dim=1)
        sequences = fibonacci(pairs, shape.context + 1, shape.modulus).to(device)
        self._training = sequences[kept]
        self._validation = sequences[held_out][: shape.validation_windows]

    def __len__(self) -> int:
        return len(self._training)

    def training(self, indices: torch.Tensor) -> torch.Tensor:
        return self._training[indices]

    def validation(self) -> torch.Tensor:
        return self._validation

    def facts(self) -> Mapping[str, object]:
        return {"modulus": self.vocabulary}


class TextSequences:
    """Windows of a text, as bytes."""

    first_guess = 1
    vocabulary = BYTES

    def __init__(self, shape: Shape, task: Task, device: torch.device) -> None:
        self._text = read_text(task.data, task.data_path)
        self._windows = Windows(
            self._text,
            length=shape.context + 1,
            holdout=task.holdout,
            validation_windows=shape.validation_windows,
            device=device,
        )

    def __len__(self) -> int:
        return len(self._windows)

    def training(self, indices: torch.Tensor) -> torch.Tensor:
        return self._windows.at(self._windows.starts[indices])

    def validation(self) -> torch.Tensor:
        return self._windows.at(self._windows.validation_starts)

    def facts(self) -> Mapping[str, object]:
        return {"text_bytes": len(self._text), "text_sha256": self._text.sha256}


def choose_sequences(task: Task, shape: Shape, device: torch.device) -> Sequences:
    """Return the sequences that *task* names."""
    if task.choose("data", ("fibonacci", *TEXTS)) in TEXTS:
        return TextSequences(shape, task, device)
    return Fibonacci(shape, task.holdout, device)
