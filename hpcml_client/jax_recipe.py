"""What distinguishes one JAX training from another: its weights, its samples, its loss and how it is examined."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

import jax

from hpcml_client.jax_adam import Adam
from hpcml_client.jax_loss_scale import Tree

Array = Any  # numpy.ndarray, which old NumPys cannot say more of


class Recipe:
    """Derive from it, set `samples` in ``__init__(task, arithmetic)``, and hand the class to `train`."""

    samples: int  # in the training set
    tokens_per_sample: Optional[int] = None  # of texts

    def first_weights(self) -> Mapping[str, Array]:
        """Return the weights that a training begins with, by their names: NumPy's, drawn by the seed, in FP32."""
        raise NotImplementedError

    def batch(self, indices: Array) -> Tuple[Array, ...]:
        """Return the training samples *indices* as NumPy's arrays, a sample a row of each."""
        raise NotImplementedError

    def loss(self, weights: Tree, key: jax.Array, *batch: jax.Array) -> jax.Array:
        """Return the mean loss of the samples in *batch*; compiled, and computed in the run's precision.

        *key* is for what a training step draws at random: another one in each step and part of a batch.
        """
        raise NotImplementedError

    def evaluate(self, weights: Tree) -> Mapping[str, float]:
        """Return the validation metrics of *weights*, which are in FP32 (fp64: FP64), as is what is computed here."""
        raise NotImplementedError

    def optimizer(self, *, learning_rate: float, eps: float) -> Adam:
        """Return the optimiser; *eps* is one that the parameters' format can hold."""
        return Adam(learning_rate, eps)

    def facts(self) -> Mapping[str, object]:
        """Return what the event ``training`` says besides the settings and the number of parameters."""
        return {"training_samples": self.samples}
