"""How far a TensorFlow training has got: written to a file, and taken up again bit for bit."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from typing import Any, Dict, List

import numpy as np
import tensorflow as tf

from hpcml_client.checkpoints import Saved
from hpcml_client.recipe_task import RecipeError


@dataclass(frozen=True)
class Progress:
    """All that the next step depends on, but for the order of the samples, which only the seed decides."""

    model: Any  # Keras has no types
    optimizer: Any  # built, so that its state is there
    precision: str

    def write(self, path: str) -> None:
        """Save it as the file *path*; whatever strategy trains can take it up, since replicas hold the same."""
        kept = [_as_numpy_knows(np.asarray(variable)) for variable in self._variables()]
        arrays: Dict[str, Any] = {f"variable{index}": array for index, array in enumerate(kept)}
        with open(path, "wb") as file:  # given a name, NumPy would append .npz to it
            np.savez(file, precision=np.array(self.precision), **arrays)

    def read(self, saved: Saved) -> None:
        """Take up what was saved; raise `RecipeError` where it cannot be read or belongs to something else."""
        variables = self._variables()
        try:
            with np.load(saved.path, allow_pickle=False) as arrays:
                precision = str(arrays["precision"])
                found = [arrays[f"variable{index}"] for index in range(len(arrays.files) - 1)]
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise _cannot_go_on(saved, " ".join(str(error).split())) from error
        if precision != self.precision:
            raise _cannot_go_on(saved, f"a checkpoint of precision={precision} is no start for {self.precision}")
        if [array.shape for array in found] != [tuple(variable.shape) for variable in variables]:
            raise _cannot_go_on(saved, "it holds another model")
        for index, array in enumerate(found):
            kept_in = tf.as_dtype(variables[index].dtype).as_numpy_dtype
            variables[index].assign(array if array.dtype == kept_in else array.view(kept_in))

    def _variables(self) -> List[Any]:
        return [*self.model.variables, *self.optimizer.variables]  # of the model also the state of its random numbers


def _as_numpy_knows(array: Any) -> Any:  # noqa: ANN401 - NumPy's arrays
    """Return *array*, but BF16 numbers as the bits that they are: NumPy's files have no such type."""
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array


def _cannot_go_on(saved: Saved, reason: str) -> RecipeError:
    return RecipeError(f"cannot go on from {saved.path}: {reason}: remove it to go on from the one before")


def digest(model: Any) -> str:  # noqa: ANN401 - Keras has no types
    """Return the SHA-256 of all weights, bit by bit: equal for equal trainings."""
    hashed = hashlib.sha256()
    for index, array in enumerate(model.get_weights()):
        hashed.update(f"{index} {array.dtype} {array.shape}\n".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()
