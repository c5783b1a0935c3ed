"""The interface of a JAX recipe: its weights, samples, loss, evaluation and optimiser (Adam)."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hpcml_train.jax.arithmetic import Tree

Array = Any  # numpy.ndarray, which old NumPys cannot say more of
_BETA1, _BETA2 = 0.9, 0.999


class Moments(NamedTuple):
    """Adam's state: running means of gradients and of their squares, in the parameters' types, and the step count."""

    first: Tree
    second: Tree
    steps: jax.Array


@dataclass(frozen=True)
class Adam:
    """Adam (D. Kingma, J. Ba, ICLR 2015, arXiv:1412.6980) as torch computes it.

    *eps* is one that the parameters' format can represent.
    """

    learning_rate: float
    eps: float

    def begin(self, parameters: Tree) -> Moments:
        """Return the state before the first step."""
        first, second = (jax.tree_util.tree_map(jnp.zeros_like, parameters) for _ in range(2))
        return Moments(first, second, jnp.zeros((), jnp.int32))

    def step(self, parameters: Tree, gradients: Tree, moments: Moments) -> tuple[Tree, Moments]:
        """Return the parameters after a step. Computed in FP32 or wider, and kept in the parameters' types."""
        steps = moments.steps + 1

        def one(
            parameter: jax.Array, gradient: jax.Array, first: jax.Array, second: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
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
        done = [one(*leaf) for leaf in zip(leaves, *others, strict=True)]
        updated, first, second = (jax.tree_util.tree_unflatten(shape, found) for found in zip(*done, strict=True))
        return updated, Moments(first, second, steps)


class Recipe(abc.ABC):
    """The base of recipes: set `samples` in ``__init__(task, arithmetic)``, and pass the class to `train`."""

    samples: int  # in the training set
    tokens_per_sample: int | None = None  # of texts

    @abc.abstractmethod
    def first_weights(self) -> Mapping[str, Array]:
        """Return the first weights by name, as NumPy arrays in FP32, drawn by the seed."""

    @abc.abstractmethod
    def batch(self, indices: Array) -> tuple[Array, ...]:
        """Return the training samples *indices* as NumPy arrays, one row a sample."""

    @abc.abstractmethod
    def loss(self, weights: Tree, key: jax.Array, *batch: jax.Array) -> jax.Array:
        """Return the mean loss of the samples in *batch*; compiled, and computed in the run's precision.

        *key* is for what a training step draws at random: another one in each step and part of a batch.
        """

    @abc.abstractmethod
    def evaluate(self, weights: Tree) -> Mapping[str, float]:
        """Return the validation metrics of *weights*, which are FP32 (fp64: FP64), as are all computations here."""

    def optimizer(self, *, learning_rate: float, eps: float) -> Adam:
        """Return the optimiser; *eps* is one that the parameters' format can hold."""
        return Adam(learning_rate, eps)

    def facts(self) -> Mapping[str, object]:
        """Return further details of the event ``training``."""
        return {"training_samples": self.samples}

    def results(self, weights: Tree) -> Mapping[str, Mapping[str, object]]:
        """Return events about what was learned, by name, with their details; *weights* are as in `evaluate`."""
        del weights
        return {}
