"""A recurrent network that says what comes next: an LSTM, or a plain one."""

from __future__ import annotations

import torch
from shape import Shape
from torch import nn


class LongShortTerm(nn.LSTM):
    """An LSTM that hands on the states of all places, and keeps its memory to itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        states: torch.Tensor = super().forward(x)[0]
        return states.contiguous()


class PlainRecurrent(nn.RNN):
    """The same of a plain recurrent network, h_t = tanh(W_hh h_(t-1) + W_xh x_t + b) (J. L. Elman, 1990)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        states: torch.Tensor = super().forward(x)[0]
        return states.contiguous()


CELLS = {"lstm": LongShortTerm, "rnn": PlainRecurrent}


class Output(nn.Linear):
    """A dense layer that returns no view of another tensor, nor do the recurrent ones: FSDP warns of such."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clone()


class Recurrent(nn.Module):
    """Tokens in, one number for each possible next token out."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, shape.embedding)
        self._cell = shape.cell  # also the name of its part, so that no checkpoint of one fits the other
        recurrent = CELLS[shape.cell](shape.embedding, shape.width, num_layers=shape.layers, batch_first=True)
        self.add_module(shape.cell, recurrent)
        self.out = Output(shape.width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.get_submodule(self._cell)(self.embedding(tokens)))
        return logits
