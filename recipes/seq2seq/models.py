"""Sequence to sequence: an LSTM reads, another writes, and looks at what was read by Bahdanau's attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """What recipe.toml calls the options; the defaults are those of conf/model/seq2seq.yaml."""

    width: int = 64
    embedding: int = 16
    length: int = 8
    symbols: int = 10
    sequences: int = 8192
    validation_sequences: int = 512
    attention: str = "bahdanau"


class Attention(nn.Module):
    """Additive attention: e_j = v^T tanh(W s + U h_j), the context is the sum of softmax(e)_j h_j.

    D. Bahdanau, K. Cho, Y. Bengio, Neural machine translation by jointly learning to align and translate (2015),
    appendix A.1.2, without biases.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_state = nn.Linear(width, width, bias=False)  # W
        self.of_read = nn.Linear(width, width, bias=False)  # U
        self.score = nn.Linear(width, 1, bias=False)  # v

    def forward(self, state: torch.Tensor, read: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the context and the weights of *read* (batch x places x width); *keys* are U h_j, computed once."""
        scores = self.score(torch.tanh(self.of_state(state).unsqueeze(1) + keys)).squeeze(2)
        exact = scores if scores.dtype is torch.float64 else scores.float()
        weights = torch.softmax(exact, dim=1).to(read.dtype)
        return torch.bmm(weights.unsqueeze(1), read).squeeze(1), weights


class Translator(nn.Module):
    """Symbols in, and what was written so far; one number for each possible next symbol out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        vocabulary = shape.symbols + 1  # and the one that begins what is written
        self._looks = shape.attention == "bahdanau"
        self.embedding = nn.Embedding(vocabulary, shape.embedding)
        self.reader = nn.LSTM(shape.embedding, shape.width, batch_first=True)
        context = shape.width if self._looks else 0
        self.writer = nn.LSTMCell(shape.embedding + context, shape.width)
        self.attention = Attention(shape.width) if self._looks else None
        self.out = nn.Linear(shape.width + context, vocabulary)

    def forward(self, given: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        """Return the numbers for each place of *written*, each from *given* and what was written before it."""
        return self.aligned(given, written)[0]

    def aligned(self, given: torch.Tensor, written: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the same, and the weights of attention: batch x written x given; None without attention."""
        read, (state, memory) = self.reader(self.embedding(given))
        state, memory = state[0], memory[0]
        keys = self.attention.of_read(read) if self.attention is not None else None
        logits, looks = [], []
        for symbol in self.embedding(written).unbind(dim=1):
            inputs = symbol
            if self.attention is not None and keys is not None:
                context, weights = self.attention(state, read, keys)
                looks.append(weights)
                inputs = torch.cat([symbol, context.to(symbol.dtype)], dim=1)
            state, memory = self.writer(inputs, (state, memory))
            seen = torch.cat([state, context.to(state.dtype)], dim=1) if self.attention is not None else state
            logits.append(self.out(seen))
        return torch.stack(logits, dim=1), torch.stack(looks, dim=1) if looks else None
