"""Ends of a JAX training that have a cure, in one line that names it."""

from __future__ import annotations

import contextlib
from typing import Iterator

from hpcml_client.recipe_task import TrainingFailed

_NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")


@contextlib.contextmanager
def said_in_one_line() -> Iterator[None]:
    """Turn XLA's words, and NumPy's, for exhausted memory into one line with what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # XLA's own error is a RuntimeError, whatever its name
        said = next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), "")
        if not isinstance(error, MemoryError) and not any(words in said for words in _NO_MEMORY):
            raise
        raise TrainingFailed(
            f"out of memory ({said}): "
            "set training.accumulate=2 or more for the same batch in parts, or a smaller training.batch_size"
        ) from error
