"""The exceptions that end a recipe with one line (see `hpcml_train.start`), and the messages several of them share."""

from __future__ import annotations


class RecipeError(Exception):
    """The request cannot be met here; the message is one line. Exit status 2."""


class TrainingFailed(Exception):  # noqa: N818 - it says what happened
    """The training cannot go on; the message is one line. Exit status 1."""


class DatasetError(Exception):
    """The data set is absent or damaged; the message is one line that names the cure. Exit status 2."""


class NoGpuError(RuntimeError):
    """A GPU was planned for this process, and its framework sees none."""

    def __init__(self, framework: str, version: str) -> None:
        super().__init__(
            f"the plan says cuda, but {framework} {version} sees no GPU: is it built for CUDA, "
            "and does nvidia-smi show a GPU on this node?"
        )


def cannot_go_on(path: str, reason: object) -> RecipeError:
    """Return the error for a checkpoint *path* that is unreadable, or of another model or precision."""
    said = " ".join(str(reason).split())
    return RecipeError(f"cannot go on from {path}: {said}: remove it to go on from the one before")


def out_of_memory(said: str) -> TrainingFailed:
    """Return the error for exhausted memory; *said* is the framework's message."""
    return TrainingFailed(
        f"out of memory ({said}): "
        "set training.accumulate=2 or more for the same batch in parts, or a smaller training.batch_size"
    )


def first_line(error: Exception) -> str:
    """Return the first line of a framework's message, without its full stop; advice and stacks follow in later ones."""
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
