"""The same transformers as a function of their weights, which have the names and shapes of torch's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from shape import SPREAD, Shape

Weights = Mapping[str, jax.Array]
_NORM_EPS = 1e-5  # torch's


def first_weights(shape: Shape, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Draw them by the law of the torch half: NumPy's numbers, in FP32, the same for every precision."""
    state = np.random.RandomState(seed)  # whose numbers NumPy has promised not to change
    # GPT-2: what is added to the stream is drawn smaller the more often it is added
    added = SPREAD / (2 * shape.layers) ** 0.5
    found = {}
    for name, size in _sizes(shape):
        if len(size) > 1:
            drawn = state.standard_normal(size).astype(np.float32)
            found[name] = drawn * np.float32(added if name.endswith("out.weight") else SPREAD)
        else:
            found[name] = np.full(size, 0.0 if name.endswith("bias") else 1.0, np.float32)
    return found


class Transformer:
    """Tokens in, one number for each token of the vocabulary out; *key* draws what is left out, None: nothing."""

    def __init__(self, shape: Shape, weights: Weights, key: jax.Array | None = None) -> None:
        self._shape, self._weights = shape, weights
        self._key = key if shape.dropout > 0 else None
        self._drawn = 0

    def logits(self, tokens: jax.Array, target: jax.Array | None = None) -> jax.Array:
        """Return the logits of *tokens*, or of *target*, which encoder_decoder takes besides."""
        x, memory = self._embed(tokens), None
        encoders, decoders = _halves(self._shape)
        for index in range(encoders):
            x = self._block(f"encoder.{index}", x, None, causal=False)
        if target is not None:
            x, memory = self._embed(target), self._norm("memory_norm", x)
        for index in range(decoders):
            x = self._block(f"decoder.{index}", x, memory, causal=True)
        return self._norm("head.norm", x) @ self._weights["embedding.tokens.weight"].T

    def _embed(self, tokens: jax.Array) -> jax.Array:
        places = self._weights["embedding.positions.weight"][: tokens.shape[1]]
        return self._drop(self._weights["embedding.tokens.weight"][tokens] + places)

    def _block(self, name: str, x: jax.Array, memory: jax.Array | None, *, causal: bool) -> jax.Array:
        normed = self._norm(f"{name}.norm", x)
        x = x + self._drop(self._attention(f"{name}.attention", normed, normed, causal=causal))
        if memory is not None:
            normed = self._norm(f"{name}.memory_norm", x)
            x = x + self._drop(self._attention(f"{name}.memory_attention", normed, memory, causal=False))
        hidden = self._linear(f"{name}.hidden", self._norm(f"{name}.hidden_norm", x))
        return x + self._drop(self._linear(f"{name}.out", jax.nn.gelu(hidden, approximate=False)))

    def _attention(self, name: str, x: jax.Array, memory: jax.Array, *, causal: bool) -> jax.Array:
        key, value = jnp.split(self._linear(f"{name}.key_value", memory), 2, axis=-1)
        query, key, value = (self._split(part) for part in (self._linear(f"{name}.query", x), key, value))
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
        if causal:
            scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
        shares = self._drop(jax.nn.softmax(_wide(scores), axis=-1).astype(x.dtype))
        mixed = (shares @ value).swapaxes(1, 2)
        return self._linear(f"{name}.out", mixed.reshape(*mixed.shape[:2], -1))

    def _split(self, x: jax.Array) -> jax.Array:
        # batch, head, token, width of a head
        return x.reshape(*x.shape[:2], self._shape.heads, -1).swapaxes(1, 2)

    def _linear(self, name: str, x: jax.Array) -> jax.Array:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name: str, x: jax.Array) -> jax.Array:
        wide = _wide(x)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        normed = centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + _NORM_EPS)
        return normed.astype(x.dtype) * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _drop(self, x: jax.Array) -> jax.Array:
        if self._key is None:
            return x
        self._drawn += 1  # each place draws its own
        kept = 1.0 - self._shape.dropout
        drawn = jax.random.uniform(jax.random.fold_in(self._key, self._drawn), x.shape, jnp.float32)
        return jnp.where(drawn < kept, x / kept, 0)


def _halves(shape: Shape) -> tuple[int, int]:
    encoders = {"decoder": 0, "encoder": shape.layers, "encoder_decoder": shape.layers // 2}[shape.kind]
    return encoders, shape.layers - encoders


def _sizes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the size of every weight."""
    width = shape.width
    encoders, decoders = _halves(shape)
    yield "embedding.tokens.weight", (shape.vocabulary, width)
    yield "embedding.positions.weight", (shape.context, width)
    has_memory = shape.kind == "encoder_decoder"
    for index in range(encoders):
        yield from _block_sizes(f"encoder.{index}", shape, has_memory=False)
    for index in range(decoders):
        yield from _block_sizes(f"decoder.{index}", shape, has_memory=has_memory)
    if has_memory:
        yield from _affine("memory_norm", (width,))
    yield from _affine("head.norm", (width,))


def _block_sizes(block: str, shape: Shape, *, has_memory: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = shape.width
    for part in ("", "memory_") if has_memory else ("",):
        yield from _affine(f"{block}.{part}norm", (width,))
        yield from _affine(f"{block}.{part}attention.query", (width, width))
        yield from _affine(f"{block}.{part}attention.key_value", (2 * width, width))
        yield from _affine(f"{block}.{part}attention.out", (width, width))
    yield from _affine(f"{block}.hidden_norm", (width,))
    yield from _affine(f"{block}.hidden", (shape.feed_forward, width))
    yield from _affine(f"{block}.out", (width, shape.feed_forward))


def _affine(name: str, size: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", size
    yield f"{name}.bias", size[:1]


def _wide(x: jax.Array) -> jax.Array:
    # sums of squares and of exponentials overflow, or lose what is small, in 16 bits
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
