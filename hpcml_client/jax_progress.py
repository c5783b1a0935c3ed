"""How far a JAX training has got: written to a file, and taken up again bit for bit."""

from __future__ import annotations

import hashlib
import zipfile
from typing import Any, Dict, List, Mapping, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpcml_client.checkpoints import Saved
from hpcml_client.jax_adam import Moments
from hpcml_client.jax_loss_scale import LossScale
from hpcml_client.recipe_task import RecipeError

Array = Any  # numpy.ndarray, which old NumPys cannot say more of


class Progress(NamedTuple):
    """All that the next step depends on, but for the samples and the random numbers, which only the seed decides."""

    weights: Mapping[str, jax.Array]
    moments: Moments
    scale: LossScale


def write(progress: Progress, precision: str, path: str) -> None:
    """Save *progress* as the file *path*."""
    leaves = [_as_numpy_knows(np.asarray(leaf)) for leaf in jax.tree_util.tree_leaves(progress)]
    arrays: Dict[str, Any] = {f"leaf{index}": array for index, array in enumerate(leaves)}
    with open(path, "wb") as file:  # given a name, NumPy would append .npz to it
        np.savez(file, precision=np.array(precision), **arrays)


def read(saved: Saved, like: Progress, precision: str) -> Progress:
    """Return what was saved, where *like* lies; raise `RecipeError` where it is unreadable or of something else."""
    wanted, shape = jax.tree_util.tree_flatten(like)
    try:
        with np.load(saved.path, allow_pickle=False) as arrays:
            was = str(arrays["precision"])
            found = [arrays[f"leaf{index}"] for index in range(len(arrays.files) - 1)]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise _cannot_go_on(saved, " ".join(str(error).split())) from error
    if was != precision:
        raise _cannot_go_on(saved, f"a checkpoint of precision={was} is no start for {precision}")
    if [array.shape for array in found] != [leaf.shape for leaf in wanted]:
        raise _cannot_go_on(saved, "it holds another model")
    leaves: List[jax.Array] = []
    for array, leaf in zip(found, wanted):  # noqa: B905 - Python 3.8
        kept = array if array.dtype == leaf.dtype else array.view(leaf.dtype)
        leaves.append(jax.device_put(jnp.array(kept), leaf.sharding))
    restored: Progress = jax.tree_util.tree_unflatten(shape, leaves)
    return restored


def digest(weights: Mapping[str, jax.Array]) -> str:
    """Return the SHA-256 of all *weights*, bit by bit: equal for equal trainings."""
    hashed = hashlib.sha256()
    for name, value in sorted(weights.items()):
        array = np.asarray(value)
        hashed.update(f"{name} {array.dtype} {array.shape}\n".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _as_numpy_knows(array: Array) -> Array:
    """Return *array*, but BF16 numbers as the bits that they are: NumPy's files have no such type."""
    return array.view(np.uint16) if array.dtype == jnp.bfloat16 else array


def _cannot_go_on(saved: Saved, reason: str) -> RecipeError:
    return RecipeError(f"cannot go on from {saved.path}: {reason}: remove it to go on from the one before")
