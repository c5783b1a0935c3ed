"""What JAX and TensorFlow trainings share: the order of samples, and checkpoints of plain arrays (.npz)."""

from __future__ import annotations

import functools
import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcml_client.checkpoints import Saved
from hpcml_train import loop
from hpcml_train.errors import cannot_go_on
from hpcml_train.task import Task

Array = Any  # numpy.ndarray, whose type parameters differ between the versions of NumPy


def sample_orders(count: int, task: Task) -> Iterator[Array]:
    """Yield the samples of each step: epoch after epoch, in an order that only the seed decides."""
    generator = np.random.RandomState(task.seed)  # whose numbers NumPy has promised not to change
    return loop.batches(functools.partial(generator.permutation, count), np.concatenate, task.batch_size)


def write_arrays(path: str, name: str, arrays: Iterable[Array], precision: str) -> None:
    """Save *arrays* to the .npz file *path*, named *name* and a number, with the *precision* they were trained in.

    BF16 arrays are saved as the bits that they are (uint16).
    """
    kept: dict[str, Any] = {f"{name}{number}": _as_numpy_knows(array) for number, array in enumerate(arrays)}
    with open(path, "wb") as file:  # given a name, NumPy would append .npz to it
        np.savez(file, precision=np.array(precision), **kept)


def read_arrays(saved: Saved, name: str, shapes: Sequence[tuple[int, ...]], precision: str) -> list[Array]:
    """Return the arrays that `write_arrays` saved, in order, BF16 as uint16.

    Raises `RecipeError` where the file is damaged, or of another precision or other *shapes*.
    """
    try:
        with np.load(saved.path, allow_pickle=False) as arrays:
            was = str(arrays["precision"])
            found = [arrays[f"{name}{number}"] for number in range(len(arrays.files) - 1)]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise cannot_go_on(saved.path, error) from error
    if was != precision:
        raise cannot_go_on(saved.path, f"a checkpoint of precision={was} is no start for {precision}")
    if [array.shape for array in found] != list(shapes):
        raise cannot_go_on(saved.path, "it holds another model")
    return found


def digest(named: Iterable[tuple[object, Array]]) -> str:
    """Return the SHA-256, in hexadecimal, of all arrays with their names and types: equal for bit-equal trainings."""
    hashed = hashlib.sha256()
    for name, array in named:
        hashed.update(f"{name} {array.dtype} {array.shape}\n".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _as_numpy_knows(array: Array) -> Array:
    """Return *array*, BF16 as its bits: NumPy's files have no such type."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
