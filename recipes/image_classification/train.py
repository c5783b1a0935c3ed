"""Train a small image classifier in the precision that the run asks for; README.md says what is reported."""

from __future__ import annotations

import os
import sys

from task import RecipeError, Task

_NEEDED = ("hpcml_client", "numpy", "torch")


def main() -> int:
    """Train, and return the exit status: 2 where the request cannot be met, in one line on stderr."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic cuBLAS; read when CUDA starts
    try:
        # imported here, so that what is missing can be said in one line
        import training  # noqa: PLC0415

        import hpcml_client  # noqa: PLC0415
        from hpcml_client.datasets import DatasetError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        return _refuse(f"{error.name} is missing: pip install 'hpcml[torch]'")
    try:
        with hpcml_client.connect() as run:
            training.train(run, Task.from_config(run.config))
    except (RecipeError, DatasetError) as error:
        return _refuse(str(error))
    return 0


def _refuse(reason: str) -> int:
    print(f"image_classification: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
