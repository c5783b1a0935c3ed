"""Train a small image classifier in the precision that the run asks for; README.md says what is reported."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from task import RecipeError, Task

_NEEDED = ("hpcml_client", "numpy", "torch")


def main() -> int:
    """Train, and return the exit status: 2 where the request cannot be met, in one line on stderr.

    Where it was asked to leave, it leaves at a checkpoint, by `SystemExit` with status 75.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic cuBLAS; read when CUDA starts
    try:
        # imported here, so that what is missing can be said in one line
        import hpcml_client  # noqa: PLC0415
        from hpcml_client.datasets import DatasetError  # noqa: PLC0415

        with hpcml_client.connect() as run:
            try:
                task = Task.from_config(run.config)
                checkpoints = run.checkpoints(every_steps=task.checkpoint_every)
                import training  # noqa: PLC0415 - imports torch, which takes seconds: too long not to listen

                if not training.train(run, task, checkpoints):
                    checkpoints.leave()
            except (RecipeError, DatasetError) as error:
                return _refuse(str(error))
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        return _refuse(f"{error.name} is missing: pip install 'hpcml[torch]'")
    return 0


def _refuse(reason: str) -> int:
    print(f"image_classification: {reason}", file=sys.stderr)
    return 2


def _end(status: int) -> NoReturn:
    """End at once: torch's threads sometimes abort a process that takes Python's way out, when all is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as left:
        status = int(left.code or 0)
    _end(status)
