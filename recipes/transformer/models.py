"""Transformers of three kinds, out of one block."""

from __future__ import annotations

import torch
from shape import SPREAD, Shape
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, dropout: float = 0.0
) -> torch.Tensor:
    """Return softmax(query key^T / sqrt(d)) value over the last two axes; *causal*: no token sees a later one."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal, dropout_p=dropout)


class Attention(nn.Module):
    """Attention with several heads: of a sequence to itself, or to another one."""

    def __init__(self, shape: Shape, *, causal: bool) -> None:
        super().__init__()
        self._heads, self._causal, self._dropout = shape.heads, causal, shape.dropout
        self.query = nn.Linear(shape.width, shape.width)
        self.key_value = nn.Linear(shape.width, 2 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        key, value = self.key_value(memory).chunk(2, dim=-1)
        heads = [self._split(part) for part in (self.query(x), key, value)]
        mixed = attend(*heads, causal=self._causal, dropout=self._dropout if self.training else 0.0)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (self._heads, -1)).transpose(1, 2)  # batch, head, token, width of a head


class Block(nn.Module):
    """Attention and a hidden layer, each normalised before and added to what came in (pre-norm, as in GPT-2)."""

    def __init__(self, shape: Shape, *, causal: bool, has_memory: bool) -> None:
        super().__init__()
        width = shape.width
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(shape, causal=causal)
        self.memory_norm = nn.LayerNorm(width) if has_memory else None
        self.memory_attention = Attention(shape, causal=False) if has_memory else None
        self.hidden_norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, shape.feed_forward)
        self.out = nn.Linear(shape.feed_forward, width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        normed = self.norm(x)
        x = x + self.dropout(self.attention(normed, normed))
        if self.memory_attention is not None and self.memory_norm is not None:
            x = x + self.dropout(self.memory_attention(self.memory_norm(x), memory))
        hidden = self.out(F.gelu(self.hidden(self.hidden_norm(x))))
        result: torch.Tensor = x + self.dropout(hidden)
        return result


class Embedding(nn.Module):
    """What each token is, and where it stands."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        result: torch.Tensor = self.dropout(self.tokens(tokens) + self.positions(places))
        return result


class Head(nn.Module):
    """How well each token of the vocabulary fits; *tokens*, their embedding, has the same weights."""

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(tokens.embedding_dim)
        self.weight = tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(x), self.weight.to(x.device))  # they lie where the embedding is


class Transformer(nn.Module):
    """Tokens in, one number for each token of the vocabulary out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        encoders = {"decoder": 0, "encoder": shape.layers, "encoder_decoder": shape.layers // 2}[shape.kind]
        has_memory = shape.kind == "encoder_decoder"
        self.embedding = Embedding(shape)
        self.encoder = nn.ModuleList(Block(shape, causal=False, has_memory=False) for _ in range(encoders))
        self.memory_norm = nn.LayerNorm(shape.width) if has_memory else None
        self.decoder = nn.ModuleList(
            Block(shape, causal=True, has_memory=has_memory) for _ in range(shape.layers - encoders)
        )
        self.head = Head(self.embedding.tokens)
        self._draw_weights(shape.layers)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits of *tokens*, or of *target*, which encoder_decoder takes besides."""
        x, memory = self.embedding(tokens), None
        for block in self.encoder:
            x = block(x)
        if self.memory_norm is not None:
            x, memory = self.embedding(target), self.memory_norm(x)
        for block in self.decoder:
            x = block(x, memory)
        logits: torch.Tensor = self.head(x)
        return logits

    def _draw_weights(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # GPT-2: what is added to the stream is drawn smaller the more often it is added
                added = name.endswith("out.weight")
                nn.init.normal_(parameter, std=SPREAD / (2 * layers) ** 0.5 if added else SPREAD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
