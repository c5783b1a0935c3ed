"""Transformers of three kinds, out of one block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_client.recipe_task import RecipeError

MASK = 256  # the token that hides another one; the 256 before it are the bytes
KINDS = ("decoder", "encoder", "encoder_decoder")
_SPREAD = 0.02  # of initial weights, as in BERT and GPT-2


@dataclass(frozen=True)
class Shape:
    """What recipe.toml calls the options; the defaults are those of transformer_tiny."""

    kind: str = "decoder"
    layers: int = 2
    width: int = 128
    heads: int = 4
    feed_forward: int = 512
    context: int = 64
    vocabulary: int = 257
    dropout: float = 0.0
    validation_windows: int = 256

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RecipeError(f"model.options.kind={self.kind}: choose {', '.join(KINDS)}")
        if self.width % self.heads:
            raise RecipeError(f"model.options.heads={self.heads} does not divide model.options.width={self.width}")
        if self.kind == "encoder_decoder" and self.layers % 2:
            raise RecipeError(f"model.options.layers={self.layers} must be even: half encode and half decode")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Shape:
        """Return what *options* say, and the defaults for the rest."""
        return cls(**options)


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


class Transformer(nn.Module):
    """Tokens in, one number for each token of the vocabulary out; the last layer shares the embedding's weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        encoders = {"decoder": 0, "encoder": shape.layers, "encoder_decoder": shape.layers // 2}[shape.kind]
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.encoder = nn.ModuleList(Block(shape, causal=False, has_memory=False) for _ in range(encoders))
        self.encoder_norm = nn.LayerNorm(shape.width) if encoders else None
        has_memory = shape.kind == "encoder_decoder"
        self.decoder = nn.ModuleList(
            Block(shape, causal=True, has_memory=has_memory) for _ in range(shape.layers - encoders)
        )
        self.decoder_norm = nn.LayerNorm(shape.width) if len(self.decoder) else None
        self._draw_weights(shape.layers)

    def forward(self, *sequences: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last of *sequences*; encoder_decoder takes two, the others one."""
        x: torch.Tensor | None = None
        remaining: list[torch.Tensor] = list(sequences)
        if self.encoder_norm is not None:
            x = self._embed(remaining.pop(0))
            for block in self.encoder:
                x = block(x)
            x = self.encoder_norm(x)
        if self.decoder_norm is not None:
            memory, x = x, self._embed(remaining.pop(0))
            for block in self.decoder:
                x = block(x, memory)
            x = self.decoder_norm(x)
        if x is None:
            raise RuntimeError("a transformer without blocks")
        return F.linear(x, self.tokens.weight)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        result: torch.Tensor = self.dropout(self.tokens(tokens) + self.positions(places))
        return result

    def _draw_weights(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # GPT-2: what is added to the stream is drawn smaller the more often it is added
                added = name.endswith("out.weight")
                nn.init.normal_(parameter, std=_SPREAD / (2 * layers) ** 0.5 if added else _SPREAD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
