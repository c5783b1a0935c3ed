"""Start and end of every recipe: signals are caught before the framework is imported, errors become one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from hpcml_client.client import Client, connect
from hpcml_train.errors import DatasetError, NoGpuError, RecipeError, TrainingFailed
from hpcml_train.task import Task

_EXTRAS = {
    "torch": "torch",
    "numpy": "torch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "jax": "jax",
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "inference"),
}


def start(name: str, module: str = "training", *, learning_rate: float | None = None, **modules: str) -> NoReturn:
    """Train as the run asks, and end the process; *module*, beside train.py, has ``train(run, task, checkpoints)``.

    *modules* names the modules of other frameworks, *learning_rate* is that of a start by hand. ``train`` returns False
    where it left at a checkpoint. Exit status 0: finished; 1: the training failed; 2: the request cannot be met; both
    with one line on stderr; 75: left at a checkpoint.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: else TensorFlow begins with a page about itself
    # By itself TensorFlow takes oneDNN's kernels only on CPUs with AVX-512, and without them has no convolution in NCHW
    # (2.21): a recipe would end on one node and train on the other.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    try:
        with connect() as run:
            status = _train(run, name, module, modules, learning_rate)
    except SystemExit as left:
        status = int(left.code or 0)
    _end(status)


def _train(run: Client, name: str, module: str, modules: Mapping[str, str], learning_rate: float | None) -> int:
    try:
        task = Task.from_config(run.config)
        if learning_rate is not None and not run.config:
            task = replace(task, learning_rate=learning_rate)
        checkpoints = run.checkpoints(every_steps=task.checkpoint_every)
        # Imported here, since a framework takes seconds: too long not to listen.
        if not importlib.import_module(modules.get(task.framework or "", module)).train(run, task, checkpoints):
            checkpoints.leave()
    except (RecipeError, DatasetError) as error:
        return _say(name, str(error), 2)
    except (TrainingFailed, NoGpuError) as error:
        # hpcml/model/failure_causes.py knows these words: the agent takes them for the reason
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
    """End at once: torch's threads sometimes abort a process that exits as Python normally does."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
