"""Ends of a torch training that have a cure, in one line that names it."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch

from hpcml_client.recipe_task import RecipeError, TrainingFailed

_NO_HOST_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
# gloo's words where a connection broke, NCCL's (ncclRemoteError) and Horovod's
_GONE = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited"),
    "Horovod has been shut down",
)
_COMPILERS = ("torch._dynamo", "torch._inductor")


@contextlib.contextmanager
def said_in_one_line() -> Iterator[None]:
    """Turn torch's words for exhausted memory, and for code that it cannot compile, into one line with what to do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise TrainingFailed(_out_of_memory(error)) from error
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_HOST_MEMORY):
            raise TrainingFailed(_out_of_memory(error)) from error
        if any(words in str(error) for words in _GONE):
            raise TrainingFailed(
                f"another process of this training is gone ({_first_sentences(error)}): its own words say why"
            ) from error
        if type(error).__module__.startswith(_COMPILERS):
            raise RecipeError(
                f"training.compile=true: {type(error).__name__}: {_first_sentences(error)}: set it to false"
            ) from error
        raise


def _out_of_memory(error: Exception) -> str:
    return (
        f"out of memory ({_first_sentences(error)}): "
        "set training.accumulate=2 or more for the same batch in parts, or a smaller training.batch_size"
    )


def _first_sentences(error: Exception) -> str:
    """Return what torch says first; it goes on with advice and stacks."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ". ".join(line.split(". ")[:2]).rstrip(".")
