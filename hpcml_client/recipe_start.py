"""How a recipe starts and ends: it listens before it imports its framework, and what is refused is one line."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Mapping, NoReturn

from hpcml_client.client import Client, connect
from hpcml_client.datasets import DatasetError
from hpcml_client.planned_device import NoGpuError
from hpcml_client.recipe_task import RecipeError, Task, TrainingFailed

_EXTRAS = {
    "torch": "torch",
    "numpy": "torch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "jax": "jax",
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "inference"),
}


def start(name: str, module: str = "training", **modules: str) -> NoReturn:
    """Train as the run asks, and end the process; *module*, beside train.py, has ``train(run, task, checkpoints)``.

    *modules* are those of other frameworks, by their names. ``train`` returns False where it left at a checkpoint, as
    it was asked to. Exit status 2: the request cannot be met, 1: the training failed, each in one line on stderr; 75:
    left at a checkpoint.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic cuBLAS; read when CUDA starts
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: else TensorFlow begins with a page about itself
    try:
        with connect() as run:
            status = _train(run, name, module, modules)
    except SystemExit as left:
        status = int(left.code or 0)
    _end(status)


def _train(run: Client, name: str, module: str, modules: Mapping[str, str]) -> int:
    try:
        task = Task.from_config(run.config)
        checkpoints = run.checkpoints(every_steps=task.checkpoint_every)
        # Imported here, since a framework takes seconds: too long not to listen.
        if not importlib.import_module(modules.get(task.framework or "", module)).train(run, task, checkpoints):
            checkpoints.leave()
    except (RecipeError, DatasetError) as error:
        return _say(name, str(error), 2)
    except (TrainingFailed, NoGpuError) as error:
        # hpcml/causes.py knows these words: the agent takes them for the reason
        return _say("hpcml_client", f"ended, because {error}", 1)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        return _say(name, f"{error.name} is missing: pip install 'hpcml[{_EXTRAS[error.name]}]'", 2)
    return 0


def _say(name: str, reason: str, status: int) -> int:
    print(f"{name}: {reason}", file=sys.stderr)  # noqa: T201 - a program's own words
    return status


def _end(status: int) -> NoReturn:
    """End at once: torch's threads sometimes abort a process that takes Python's way out, when all is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
