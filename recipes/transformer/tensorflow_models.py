"""The same transformers in Keras, out of one block."""

from __future__ import annotations

import math

import tensorflow as tf
from shape import SPREAD, Shape

from hpcml_train.tensorflow.as_torch import normally

_NORM_EPS = 1e-5  # torch's

Layer = tf.keras.layers.Layer


class Attention(Layer):
    """Attention with several heads: of a sequence to itself, or to another one."""

    def __init__(self, shape: Shape, *, causal: bool, name: str) -> None:
        super().__init__(name=name)
        self._heads, self._causal = shape.heads, causal
        width = shape.width
        self.query = _dense("query", width, width)
        self.key_value = _dense("key_value", width, 2 * width)
        self.out = _dense("out", width, width, SPREAD / (2 * shape.layers) ** 0.5)
        self.dropout = tf.keras.layers.Dropout(shape.dropout)
        self.built = True

    def call(self, x: tf.Tensor, memory: tf.Tensor, training: bool = False) -> tf.Tensor:  # noqa: FBT001, FBT002 - Keras' own
        key, value = tf.split(self.key_value(memory), 2, axis=-1)
        query, key, value = (self._split(part) for part in (self.query(x), key, value))
        scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(query.shape[-1])
        if self._causal:  # no token sees a later one
            seen = tf.linalg.band_part(tf.ones(scores.shape[-2:], tf.bool), -1, 0)
            scores = tf.where(seen, scores, scores.dtype.min)
        # sums of exponentials lose what is small in 16 bits
        wide = scores if scores.dtype == tf.float64 else tf.cast(scores, tf.float32)
        shares = self.dropout(tf.cast(tf.nn.softmax(wide), scores.dtype), training=training)
        mixed = tf.transpose(tf.matmul(shares, value), (0, 2, 1, 3))
        return self.out(tf.reshape(mixed, x.shape))

    def _split(self, x: tf.Tensor) -> tf.Tensor:
        batch, tokens, width = x.shape
        heads = tf.reshape(x, (batch, tokens, self._heads, width // self._heads))
        return tf.transpose(heads, (0, 2, 1, 3))  # batch, head, token, width of a head


class Block(Layer):
    """Attention and a hidden layer, each normalised before and added to what came in (pre-norm, as in GPT-2)."""

    def __init__(self, shape: Shape, *, causal: bool, has_memory: bool, name: str) -> None:
        super().__init__(name=name)
        width = shape.width
        self.norm = _norm("norm", width)
        self.attention = Attention(shape, causal=causal, name="attention")
        self.memory_norm = _norm("memory_norm", width) if has_memory else None
        self.memory_attention = Attention(shape, causal=False, name="memory_attention") if has_memory else None
        self.hidden_norm = _norm("hidden_norm", width)
        self.hidden = _dense("hidden", width, shape.feed_forward)
        self.out = _dense("out", shape.feed_forward, width, SPREAD / (2 * shape.layers) ** 0.5)
        self.dropout = tf.keras.layers.Dropout(shape.dropout)
        self.built = True

    def call(self, x: tf.Tensor, memory: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:  # noqa: FBT001, FBT002
        normed = self.norm(x)
        x = x + self.dropout(self.attention(normed, normed, training=training), training=training)
        if self.memory_attention is not None and self.memory_norm is not None:
            read = self.memory_attention(self.memory_norm(x), memory, training=training)
            x = x + self.dropout(read, training=training)
        hidden = self.hidden(self.hidden_norm(x))
        # GELU; Keras' own divides by an FP32 root of 2, in FP64 too
        hidden = self.out(0.5 * hidden * (1.0 + tf.math.erf(hidden * math.sqrt(0.5))))
        return x + self.dropout(hidden, training=training)


class Transformer(tf.keras.Model):
    """Tokens in, one number for each token of the vocabulary out; encoder_decoder takes a pair, and says the second."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(name="model")
        encoders = {"decoder": 0, "encoder": shape.layers, "encoder_decoder": shape.layers // 2}[shape.kind]
        has_memory = shape.kind == "encoder_decoder"
        self.tokens = _table("tokens", shape.vocabulary, shape.width)
        self.positions = _table("positions", shape.context, shape.width)
        self.dropout = tf.keras.layers.Dropout(shape.dropout)
        self.encoder = [
            Block(shape, causal=False, has_memory=False, name=f"encoder{number}") for number in range(encoders)
        ]
        self.memory_norm = _norm("memory_norm", shape.width) if has_memory else None
        self.decoder = [
            Block(shape, causal=True, has_memory=has_memory, name=f"decoder{number}")
            for number in range(shape.layers - encoders)
        ]
        self.norm = _norm("norm", shape.width)
        self.built = True

    def call(self, inputs: tuple[tf.Tensor, ...], training: bool = False) -> tf.Tensor:  # noqa: FBT001, FBT002
        tokens, *target = inputs
        x, memory = self._embed(tokens, training=training), None
        for block in self.encoder:
            x = block(x, training=training)
        if self.memory_norm is not None:
            x, memory = self._embed(target[0], training=training), self.memory_norm(x)
        for block in self.decoder:
            x = block(x, memory, training=training)
        # as one matrix: of many products with one the gradients would be kept apart before they are added up
        rows = tf.reshape(self.norm(x), (-1, x.shape[-1]))
        with tf.name_scope("head"):  # whose weights are those of the embedding
            logits = tf.matmul(rows, tf.cast(self.tokens.embeddings, rows.dtype), transpose_b=True)
        return tf.reshape(logits, (*x.shape[:-1], logits.shape[-1]))

    def _embed(self, tokens: tf.Tensor, *, training: bool) -> tf.Tensor:
        places = self.positions(tf.range(tokens.shape[1]))
        return self.dropout(self.tokens(tokens) + places, training=training)


def _dense(name: str, inputs: int, outputs: int, deviation: float = SPREAD) -> Layer:
    """Return a dense layer that has its weights; what is added to the stream is drawn smaller, as in GPT-2."""
    layer = tf.keras.layers.Dense(outputs, kernel_initializer=normally(deviation), name=name)
    layer.build((None, None, inputs))
    return layer


def _norm(name: str, width: int) -> Layer:
    layer = tf.keras.layers.LayerNormalization(epsilon=_NORM_EPS, name=name)
    layer.build((None, None, width))
    return layer


def _table(name: str, rows: int, width: int) -> Layer:
    layer = tf.keras.layers.Embedding(rows, width, embeddings_initializer=normally(SPREAD), name=name)
    layer.build((None, None))
    return layer
