"""What an LSTM may continue, on the device: Fibonacci's sequences modulo m, or windows of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import arrays
import torch
from shape import Shape

from hpcml_train.data.texts import BYTES, TEXTS, read_text
from hpcml_train.task import Task
from hpcml_train.torch.windows import Windows

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


class Fibonacci:
    """The sequences from all m x m pairs; some pairs are held out, evenly spread."""

    first_guess = arrays.Fibonacci.first_guess

    def __init__(self, shape: Shape, holdout: float, device: torch.device) -> None:
        found = arrays.Fibonacci(shape, holdout)
        self.vocabulary, self._facts = found.vocabulary, found.facts()
        self._training = torch.from_numpy(found.rows).to(device)
        self._validation = torch.from_numpy(found.validation()).to(device)

    def __len__(self) -> int:
        return len(self._training)

    def training(self, indices: torch.Tensor) -> torch.Tensor:
        return self._training[indices]

    def validation(self) -> torch.Tensor:
        return self._validation

    def facts(self) -> Mapping[str, object]:
        return self._facts


class TextSequences:
    """Windows of a text, as bytes."""

    first_guess = arrays.TextSequences.first_guess
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
        return self._text.facts()


def choose_sequences(task: Task, shape: Shape, device: torch.device) -> Sequences:
    """Return the sequences that *task* names."""
    if task.choose("data", ("fibonacci", *TEXTS)) in TEXTS:
        return TextSequences(shape, task, device)
    return Fibonacci(shape, task.holdout, device)
