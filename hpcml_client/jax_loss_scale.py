"""Dynamic loss scaling as a value that goes through `jax.jit`: torch's rules, since JAX has none of its own."""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

import jax
import jax.numpy as jnp

_INITIAL = 65536.0  # these four are torch.amp.GradScaler's
_GROWTH = 2.0
_BACKOFF = 0.5
_GROWTH_INTERVAL = 2000

Tree = Any  # whatever jax.tree_util takes: parameters and gradients


class LossScale(NamedTuple):
    """The scale of the next step, and what became of the steps so far."""

    scale: jax.Array
    good_steps: jax.Array  # since the scale changed
    skipped_steps: jax.Array
    overflowed_gradients: jax.Array  # elements that were not finite, in the last step


def first_scale(*, scaled: bool) -> LossScale:
    """Return what a training begins with; where nothing is *scaled*, a scale of one that stays."""
    counters = (jnp.zeros((), jnp.int32) for _ in range(3))  # of their own: a step may be given their memory
    return LossScale(jnp.asarray(_INITIAL if scaled else 1.0, jnp.float32), *counters)


def unscale(gradients: Tree, state: LossScale) -> Tuple[Tree, jax.Array, LossScale]:
    """Return the gradients as they are, whether all are finite, and the scale of the next step."""
    unscaled = jax.tree_util.tree_map(lambda gradient: gradient / state.scale.astype(gradient.dtype), gradients)
    leaves = jax.tree_util.tree_leaves(unscaled)
    overflowed = sum((~jnp.isfinite(leaf)).sum().astype(jnp.int32) for leaf in leaves)
    finite = jnp.asarray(overflowed == 0)
    grows = finite & (state.good_steps + 1 >= _GROWTH_INTERVAL)
    factor = jnp.where(finite, jnp.where(grows, _GROWTH, 1.0), _BACKOFF)
    following = LossScale(
        scale=(state.scale * factor).astype(jnp.float32),
        good_steps=jnp.where(finite & ~grows, state.good_steps + 1, 0),
        skipped_steps=state.skipped_steps + jnp.where(finite, 0, 1),
        overflowed_gradients=jnp.asarray(overflowed, jnp.int32),
    )
    return unscaled, finite, following
