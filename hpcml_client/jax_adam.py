"""Adam (Kingma and Ba, 2015) as torch computes it, for JAX, which has no optimisers of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Tuple

import jax
import jax.numpy as jnp

from hpcml_client.jax_loss_scale import Tree

_BETA1, _BETA2 = 0.9, 0.999


class Moments(NamedTuple):
    """The running means of gradients and of their squares, in the parameters' types, and the steps so far."""

    first: Tree
    second: Tree
    steps: jax.Array


@dataclass(frozen=True)
class Adam:
    """The optimiser; *eps* is one that the parameters' format can hold."""

    learning_rate: float
    eps: float

    def begin(self, parameters: Tree) -> Moments:
        """Return what a training begins with."""
        first, second = (jax.tree_util.tree_map(jnp.zeros_like, parameters) for _ in range(2))
        return Moments(first, second, jnp.zeros((), jnp.int32))

    def step(self, parameters: Tree, gradients: Tree, moments: Moments) -> Tuple[Tree, Moments]:
        """Return the parameters after a step. Computed in FP32 or wider, and kept in the parameters' types."""
        steps = moments.steps + 1

        def one(
            parameter: jax.Array, gradient: jax.Array, first: jax.Array, second: jax.Array
        ) -> Tuple[jax.Array, jax.Array, jax.Array]:
            wide = jnp.promote_types(parameter.dtype, jnp.float32)
            passed = steps.astype(wide)
            gradient = gradient.astype(wide)
            # rounded before they are used: what is added to a small mean in 16 bits may be lost, as it is in torch
            first = (_BETA1 * first.astype(wide) + (1 - _BETA1) * gradient).astype(parameter.dtype)
            second = (_BETA2 * second.astype(wide) + (1 - _BETA2) * gradient**2).astype(parameter.dtype)
            # 1 - beta^steps, of which FP32 would lose four digits in the first steps
            bias1, bias2 = (-jnp.expm1(passed * math.log(beta)) for beta in (_BETA1, _BETA2))
            spread = jnp.sqrt(second.astype(wide) / bias2) + self.eps
            change = self.learning_rate / bias1 * first.astype(wide) / spread
            return (parameter.astype(wide) - change).astype(parameter.dtype), first, second

        leaves, shape = jax.tree_util.tree_flatten(parameters)
        others = [jax.tree_util.tree_leaves(tree) for tree in (gradients, moments.first, moments.second)]
        done = [one(*leaf) for leaf in zip(leaves, *others)]  # noqa: B905 - Python 3.8
        updated, first, second = (jax.tree_util.tree_unflatten(shape, found) for found in zip(*done))  # noqa: B905
        return updated, Moments(first, second, steps)
