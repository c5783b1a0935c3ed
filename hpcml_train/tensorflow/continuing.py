"""Text that a network in Keras goes on with."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hpcml_train.continuing import Array, Asked, continue_text
from hpcml_train.tensorflow.recipe import Model


def continue_with(model: Model, asked: Asked, *, seed: int) -> dict[str, dict[str, object]]:
    """Return the event ``generated``, as `continue_text` does, said by *model*.

    *model* takes as many tokens as the context has at once, and what it says of a token must not depend on those behind
    it.
    """
    # of one shape, so that there is one graph; what stands behind the last byte is not looked at
    say: Any = tf.function(lambda tokens, at: model(tokens, training=False)[0, at])

    def next_byte(tokens: Array) -> Array:
        last = tokens.shape[1] - 1
        padded = np.pad(tokens, [(0, 0), (0, asked.context - tokens.shape[1])]).astype(np.int32)
        return say(tf.constant(padded), tf.constant(last)).numpy()

    return continue_text(next_byte, asked, seed=seed)
